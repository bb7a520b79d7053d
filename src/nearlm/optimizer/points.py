"""Memories as points of perplexity and time: what is estimated of those not made, which is cheapest, and a choice."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nearlm.base import OptionError, check_at_least, line_up, size
from nearlm.mixing import SHARES, SURE
from nearlm.search import Retriever
from nearlm.store import SearchSettings


@dataclass(frozen=True)
class Setup:
    """A memory that was measured: its size, its index, and how it is searched.

    `index_bytes` are those of all that is needed beside the records: the index, and a gate with its tables.
    """

    records: int
    dim: int
    store_bytes: int
    index_bytes: int
    kind: str
    search: SearchSettings

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("records", "dim", "store_bytes", "index_bytes")}
        check_at_least(0, **sizes)

    @classmethod
    def of(cls, retriever: Retriever, search: SearchSettings, tables: int = 0) -> "Setup":
        """Describe a memory; `tables` are the bytes of its gate."""
        store = retriever.store
        kind = str(retriever.index.spec)
        return cls(len(store), store.dim, store.bytes, retriever.bytes + tables, kind, search.over(retriever.settings))

    @classmethod
    def without_search(cls, mixture: str, tables: int) -> "Setup":
        """Describe a memory that searches nothing; `tables` are the bytes of all that its mixture looks up."""
        return cls(0, 0, 0, tables, "∞-gram", SearchSettings(mixture=mixture))

    @property
    def tuned(self) -> bool:
        """Whether λ, T and k are known."""
        return {"lam", "knn_temperature", "k"} <= self.search.values.keys()

    @property
    def sizes(self) -> tuple[str, str, str]:
        """How many records it has, and what these and all else take of a disk, for people."""
        return f"{self.records:,}", size(self.store_bytes), size(self.index_bytes)

    @property
    def disk(self) -> int:
        """What it takes of a disk: records, index, and tables."""
        return self.store_bytes + self.index_bytes


class Shape(NamedTuple):
    """What a store keeps: a share of the records, and dimensions."""

    keep: float
    dim: int

    @property
    def folder(self) -> str:
        """The name of a folder for it."""
        return f"keep-{self.keep:g}-dim-{self.dim}"

    def label(self, whole: "Shape", search: SearchSettings) -> str:
        """Return a store of this shape and how it is searched, in words."""
        parts = {
            f"keep {self.keep:.0%}": self.keep < 1,
            f"dim {self.dim}": self.dim < whole.dim,
            f"nprobe {search.nprobe}": search.nprobe,
            f"k {search.k}": True,
        }
        return ", ".join(name for name, told in parts.items() if told)


@dataclass(frozen=True)
class Point:
    """One memory and what it costs on the validation text.

    `microseconds` are those of a token's search (and gate). With a gate, perplexity is that of the tokens held
    out from its training, and `sure` tells whether it is within the budget by two standard errors, there and on the
    whole text. `beyond` is the difference from the vanilla kNN-LM on the same tokens, in every case, and `margin` two
    standard errors of it without a gate.
    """

    label: str
    setup: Setup
    keep: float
    perplexity: float
    microseconds: float
    learned: bool = False
    sure: bool = False
    beyond: float = 0.0
    margin: float = 0.0
    pareto: bool = False
    chosen: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise OptionError(f"`keep` is {self.keep}, expected more than 0 and at most 1")
        if not self.perplexity > 0 or not self.microseconds > 0:
            found = f"perplexity {self.perplexity} at {self.microseconds} µs"
            raise OptionError(f"a memory was measured with {found}, expected more than 0 of both")

    @property
    def gate(self) -> bool:
        """Whether a gate decides which tokens skip retrieval."""
        return self.setup.search.gate is not None


@dataclass(frozen=True)
class Skipping:
    """What a gate does to perplexity (a ratio for every percent of searches skipped), and its own time.

    `margin` is how much better than allowed a perplexity must be to be sure of it.
    """

    ratios: list[float]
    margin: float
    microseconds: float

    def __post_init__(self) -> None:
        if len(self.ratios) != len(SHARES):
            raise OptionError(f"{len(self.ratios)} ratios, expected one for each of {len(SHARES)} shares")


@dataclass(frozen=True)
class HeldOutTokens:
    """Perplexities of the tokens held out from a gate's training."""

    tokens: int
    vanilla: float
    constant: float
    nlm: float


@dataclass(frozen=True, repr=False)
class Choice:
    """All points, which of them was chosen, and why.

    By the paper's rule: within a budget of perplexity, for which there is a target. Otherwise: within a limit of µs per
    token, an overhead relative to the LM's own time.
    """

    tokens: int
    nlm_perplexity: float
    vanilla: Point
    points: list[Point]
    paragraph: str
    budget: float | None = None
    target: float | None = None
    held_out: HeldOutTokens | None = None
    overhead: float | None = None
    limit: float | None = None

    def __repr__(self) -> str:
        return self.table()

    @property
    def winner(self) -> Point:
        """The memory that was chosen."""
        return next(point for point in (self.vanilla, *self.points) if point.chosen)

    def table(self) -> str:
        """Return the points and the choice, for people; those that no other beats have a star."""
        rows: list[tuple[str, ...]] = [("", "perplexity", "(beyond)", "µs/token", "records", "store", "index")]
        for point in (self.vanilla, *self.points):
            mark = "*" if point.pareto else " "
            name = f"{'→' if point.chosen else mark} {point.label}"
            sure = f" ± {point.margin:.3f}" if point.margin else ""
            numbers = (f"{point.perplexity:.3f}", f"{point.beyond:+.3f}{sure}", f"{point.microseconds:.1f}")
            rows.append((name, *numbers, *point.setup.sizes))
        lines = [f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}", *line_up(rows)]
        if self.held_out is not None and any(point.gate for point in self.points):
            lines.append(f"with a gate: on the {self.held_out.tokens:,} tokens held out from its training")
        return "\n".join([*lines, "", self.paragraph])


@dataclass(frozen=True)
class Goal:
    """The perplexity that a memory may have, and what a gate is known to do."""

    target: float
    skipping: Skipping | None = None

    @property
    def alone(self) -> "Goal":
        """The same without a gate."""
        return Goal(self.target)

    def price(self, perplexity: float, microseconds: float, margin: float = 0.0) -> float:
        """Return the least time of a memory surely within the target, with a gate or without, or else infinity.

        `margin` is how much better than allowed the perplexity must be without a gate.
        """
        prices = [microseconds] if perplexity + margin <= self.target else []
        if self.skipping is not None:
            ratios = zip(SHARES, self.skipping.ratios, strict=True)
            within = [share for share, ratio in ratios if perplexity * ratio + self.skipping.margin <= self.target]
            prices += [self.skipping.microseconds + (1 - max(within)) * microseconds] if within else []
        return min(prices, default=float("inf"))


def cheapest(points: Sequence[Point], goal: Goal) -> Point:
    """Return the point of least price within the target, or, if there is none, the one with the best perplexity."""
    return min(points, key=lambda one: (goal.price(one.perplexity, one.microseconds, one.margin), one.perplexity))


def is_preferred(gated: Point, plain: Point, target: float) -> bool:
    """Tell whether to take a memory with a gate: surely within the budget, and faster than one without that is."""
    return gated.sure and (plain.perplexity + plain.margin > target or gated.microseconds < plain.microseconds)


def mark_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Tell of points (perplexity, time) which no other beats in one and equals in the other."""
    return [not any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in points) for one in points]


def estimates(
    whole: Sequence[Point], alone: dict[Shape, Point], base: Shape
) -> list[tuple[float, float, Shape, Point]]:
    """Estimate (time, perplexity) of every store shape with every way to search, from each measured alone."""
    first = alone[base]
    keeps = {shape.keep for shape in alone if shape.dim == base.dim}
    dims = {shape.dim for shape in alone if shape.keep == 1}
    found = []
    for keep, dim in itertools.product(keeps, dims):
        parts = alone[Shape(keep, base.dim)], alone[Shape(1.0, dim)]
        worse = sum(part.perplexity - first.perplexity for part in parts)
        faster = float(np.prod([part.microseconds / first.microseconds for part in parts]))
        found += [(one.microseconds * faster, one.perplexity + worse, Shape(keep, dim), one) for one in whole]
    return sorted(found, key=lambda one: one[:2])


def compare_costs(chosen: Point, vanilla: Point) -> str:
    """Say what a memory takes compared with the vanilla kNN-LM; never that it takes more without saying so."""
    speed = vanilla.microseconds / chosen.microseconds
    times = f"{speed:.1f} times less" if speed >= 1 else f"{1 / speed:.1f} times MORE"
    disk, whole = chosen.setup.disk, vanilla.setup.disk
    larger = ", which is MORE" if disk > whole else ""
    return (
        f"it takes {chosen.microseconds:.1f} µs per token, {times} than the vanilla kNN-LM's "
        f"{vanilla.microseconds:.1f}, and {size(disk)} of disk instead of {size(whole)}{larger}"
    )


def tokens_to_settle(tokens: int, sure: float) -> str:
    """Say how many more tokens would settle a difference of so many standard errors; nothing if it is settled."""
    if not 0 < sure < SURE:
        return ""
    return f" About {tokens * ((SURE / sure) ** 2 - 1):,.0f} more validation tokens would settle it."


def explain(vanilla: Point, chosen: Point, budget: float, held_out: HeldOutTokens, tokens: int) -> str:
    """Explain a choice in words, made on so many tokens."""
    setup = chosen.setup
    search = setup.search
    records = f"all {vanilla.setup.records:,} records"
    if chosen.keep < 1:
        records = f"{setup.records:,} of {vanilla.setup.records:,} records"
    lists = f" in {search.nprobe} lists" if search.nprobe else ""
    policy = f"λ={search.lam:g}."
    if chosen.gate:
        policy = f"{'λ(c)' if chosen.learned else 'one λ'} and a gate that skips {search.skip:.0%} of the searches."
        verdict = (
            f"On the {held_out.tokens:,} held-out tokens its perplexity is {chosen.perplexity:.3f}, the vanilla "
            f"kNN-LM's {held_out.vanilla:.3f}, so it stays within the budget of {budget:g}."
        )
    elif chosen.beyond + chosen.margin <= budget:
        verdict = (
            f"Perplexity is {chosen.perplexity:.3f}, the vanilla kNN-LM's {vanilla.perplexity:.3f}, the budget "
            f"{budget:g}, of which {chosen.margin:.3f} are kept to be sure."
        )
    else:
        verdict = (
            f"No smaller or faster memory that was measured surely stays within {budget:g} of the vanilla kNN-LM's "
            f"{vanilla.perplexity:.3f}; this has the best perplexity, {chosen.perplexity:.3f}, {chosen.beyond:+.3f} ± "
            f"{chosen.margin:.3f}."
        )
        verdict += tokens_to_settle(tokens, SURE * (budget - chosen.beyond) / max(chosen.margin, 1e-12))
    return (
        f"Chosen: {records}, keys of {setup.dim} dimensions, {search.k} neighbours{lists}, "
        f"T={search.knn_temperature:g}, "
        f"{policy} {verdict} Compared: {compare_costs(chosen, vanilla)}."
    )
