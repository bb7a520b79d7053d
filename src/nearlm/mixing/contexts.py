"""Contexts: what was read before each of some tokens, as places in an array of tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearlm.base import Array, Int32s, Ints


@dataclass(frozen=True)
class Contexts:
    """What was read before each of n tokens: `tokens[begins[i]:ends[i]]`, from the beginning of its document on."""

    tokens: Int32s
    begins: Ints
    ends: Ints

    @classmethod
    def of_text(cls, tokens: Any, bounds: Ints, positions: Ints) -> "Contexts":
        """Return the contexts of some positions of a text whose documents begin at `bounds`."""
        begins = bounds[np.searchsorted(bounds, positions, side="right") - 1]
        return cls(tokens, np.asarray(begins, np.int64), np.asarray(positions, np.int64))

    @classmethod
    def none(cls, count: int) -> "Contexts":
        """Return empty contexts, where nobody asks for them."""
        places = np.zeros(count, np.int64)
        return cls(np.zeros(1, np.int32), places, places)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, rows: slice | Array) -> "Contexts":
        return Contexts(self.tokens, self.begins[rows], self.ends[rows])

    def last(self, count: int) -> Int32s:
        """Return the last tokens of each context, [n, count], the latest last; -1 before its beginning."""
        wanted = self.ends[:, None] + np.arange(-count, 0)
        inside = wanted >= self.begins[:, None]
        return np.where(inside, self.tokens[np.where(inside, wanted, 0)], -1).astype(np.int32)
