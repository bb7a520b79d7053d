"""How long a draft pays: how often drafted tokens are accepted, against what a pass over so many tokens takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from nearlm.base import Doubles, Int32s, Ints
from nearlm.knnlm.draft_votes import Chain

_ALIKE = np.array([3, 5, 7, 9, 13, 17, 25])  # edges of cells: tokens before a drafted one that are alike
_SHARES = np.array([0.5, 0.8, 0.999])  # and its share of the votes
_USUAL = np.array(  # shares accepted, [alike, share of votes]: of licences by others, rounded
    [
        [0.15, 0.30, 0.40, 0.45],
        [0.15, 0.30, 0.45, 0.55],
        [0.20, 0.35, 0.50, 0.70],
        [0.20, 0.35, 0.65, 0.75],
        [0.20, 0.45, 0.75, 0.80],
        [0.20, 0.50, 0.80, 0.85],
        [0.20, 0.50, 0.80, 0.90],
        [0.20, 0.50, 0.80, 0.95],
    ]
)
_TRUST = 6.0  # tokens that the usual share counts for
_FORGET = 0.97  # what an earlier token counts for when the next of its cell is seen
_STEADY = 0.95  # what a pass counts for when the next one is done


@dataclass
class Acceptance:
    """The share of drafted tokens that are accepted, by how they came about; it follows the text that is written.

    Every chain teaches it something, drafted or not: the tokens that are written after it tell.
    """

    hits: Doubles = field(default_factory=lambda: np.zeros(_USUAL.shape))
    seen: Doubles = field(default_factory=lambda: np.zeros(_USUAL.shape))

    def rates(self, chain: Chain) -> Doubles:
        """Return how likely each token of a chain is accepted if those before it are."""
        cells = _cells(chain)
        return np.asarray((self.hits[cells] + _TRUST * _USUAL[cells]) / (self.seen[cells] + _TRUST))

    def learn(self, chain: Chain, written: Int32s) -> None:
        """Learn from what was written where a chain was expected, up to the first token that differs."""
        count = min(len(chain), len(written))
        same = chain.tokens[:count] == written[:count]
        right = count if same.all() else int(same.argmin())
        rows, columns = _cells(chain)
        for step in range(min(right + 1, count)):
            cell = rows[step], columns[step]
            self.hits[cell] = _FORGET * self.hits[cell] + (step < right)
            self.seen[cell] = _FORGET * self.seen[cell] + 1


@dataclass
class Pace:
    """Tokens per second of late, of so many rows, by what passes usually take; at first those without drafts."""

    seconds: Doubles  # of passes over one token, two, three, …
    rows: int = 1
    _tokens: float = 0.0
    _spent: float = 0.0

    def __post_init__(self) -> None:
        self._tokens = 8.0 * self.rows
        self._spent = 8.0 * self._cost(1)

    def _cost(self, columns: int) -> float:
        return float(self.seconds[min(self.rows * columns, len(self.seconds)) - 1])

    def count(self, columns: int, written: int) -> None:
        """Count a pass over so many tokens of each row, and what it added to the texts."""
        self._tokens = _STEADY * self._tokens + written
        self._spent = _STEADY * self._spent + self._cost(columns)

    def best_length(self, rates: Sequence[Doubles]) -> int:
        """Return how much of each row's chain to draft, if each token is accepted at its rate once those before it are.

        Time could also be spent on the passes to come: a draft is worth the tokens that it adds, less those that would
        be written in the same time at the pace of late. Rows of a pass have the same width.
        """
        longest = min(max(map(len, rates)), len(self.seconds) // self.rows - 1)
        added = np.zeros(max(longest, 0) + 1)
        for each in rates:
            accepted = np.cumprod(each[: len(added) - 1])
            added[1 : 1 + len(accepted)] += accepted
        costs = np.array([self._cost(1 + length) for length in range(len(added))])
        worth = np.cumsum(added) - self._tokens / self._spent * costs
        return int(worth.argmax())


def _cells(chain: Chain) -> tuple[Ints, Ints]:
    return (
        np.searchsorted(_ALIKE, chain.alike, side="right"),
        np.searchsorted(_SHARES, chain.shares, side="right"),
    )
