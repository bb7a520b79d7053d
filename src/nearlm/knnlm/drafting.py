"""Drafts: what probably comes next, from places where the last token stood before.

Places come from the neighbours that hold the token just chosen (all positions that a merged record stands for), from
the longest suffix of the text so far that the store's text contains (∞-gram), and from the text so far itself.
"""

import dataclasses
import functools
import itertools
from dataclasses import dataclass, field

import numpy as np

from nearlm.base import Array, Int32s, Ints, StoreError
from nearlm.knnlm.draft_length import Acceptance
from nearlm.knnlm.draft_votes import WIDTH, Chain, repeats_of, vote, windows_of
from nearlm.mixing import InfiniGram, Memory
from nearlm.search import Neighbors
from nearlm.store import Datastore

_NEAREST = 32  # places from neighbours
_OCCURRENCES = 32  # from the ∞-gram
_REPEATS = 8  # from the text so far
_POSITIONS = 4  # of a merged record at least, more where few neighbours hold the token
_NOTHING = np.empty((0, WIDTH), np.int32)


class RecordPlaces:
    """Where the records of a store stand in its text."""

    def __init__(self, store: Datastore):
        self._store = store

    @functools.cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """All positions by the record that stands for them, and where each record's begin."""
        assign = np.asarray(self._store.assign)
        order = np.argsort(assign, kind="stable").astype(np.int64)
        return order, np.searchsorted(assign[order], np.arange(len(self._store) + 1))

    def of(self, records: Array, most: int = _POSITIONS) -> Ints:
        """Return the positions that records stand for, some of each."""
        if self._store.assign is None:
            return np.asarray(self._store.origin.take(records), np.int64)
        order, begins = self._sorted
        first = begins[records]
        count = begins[records + 1] - first
        chosen = np.minimum(count, most)
        within = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
        spread = within * np.repeat(count, chosen) // np.repeat(chosen, chosen)
        return np.asarray(order[np.repeat(first, chosen) + spread])


def _suffixes(store: Datastore) -> InfiniGram | None:
    """Open a store's suffix array, if there is one of its present state."""
    try:
        return InfiniGram.open(store)
    except StoreError:
        return None


@dataclass
class Drafter:
    """Proposes what comes next, and learns how often that is right."""

    store: Datastore
    infinigram: InfiniGram | None
    acceptance: Acceptance = field(default_factory=Acceptance)
    others: tuple["Drafter", ...] = ()  # of further stores, which only propose

    @classmethod
    def of(cls, store: Datastore, memory: Memory | None) -> "Drafter":
        """Make a drafter of the text of a store, or of all that a memory has, with their suffix arrays."""
        if memory is None:
            return cls(store, _suffixes(store))
        known = memory.mixture.infinigrams if memory.mixture is not None else ()
        pairs = itertools.zip_longest((one.store for one in memory.each), known)
        first, *others = [cls(one, infinigram or _suffixes(one)) for one, infinigram in pairs]
        return dataclasses.replace(first, others=tuple(others))

    @functools.cached_property
    def _places(self) -> RecordPlaces:
        return RecordPlaces(self.store)

    @functools.cached_property
    def _bounds(self) -> Ints:
        return np.ascontiguousarray(self.store.document_bounds, np.int64)

    @functools.cached_property
    def _parts(self) -> list[tuple[int, Int32s]]:
        """The store's text: in one piece if there is a suffix array."""
        return list(self.store.tokens.parts()) if self.infinigram is None else [(0, self.infinigram.tokens)]

    def chain(self, read: Int32s, near: Neighbors | None, row: int, *others: Neighbors | None) -> Chain:
        """Return what probably follows what was read; a row of neighbours was found before its last token.

        Those in `others` stores propose too.
        """
        parts = [repeats_of(read, _REPEATS), *self._proposed(read, near, row)]
        for other, found in zip(self.others, others or itertools.repeat(None), strict=False):
            parts += other._proposed(read, found, row)
        return vote(np.concatenate(parts), read)

    def _proposed(self, read: Int32s, near: Neighbors | None, row: int) -> list[Int32s]:
        """Return windows of the store's text around places like the last one that was read."""
        found = [self._from_infinigram(read)]
        if near is not None:
            found.append(self._from_neighbors(near, row, int(read[-1])))
        return found

    def _from_infinigram(self, read: Int32s) -> Int32s:
        if self.infinigram is None:
            return _NOTHING
        found = self.infinigram.look_up(read, np.zeros(1, np.int64), np.array([len(read)]))
        if found.length[0] < 2:
            return _NOTHING
        count = int(found.end[0] - found.begin[0])
        shown = min(count, _OCCURRENCES)
        rows = found.begin[0] + np.arange(shown) * count // shown
        return self._windows(self.infinigram.order[rows].astype(np.int64))

    def _from_neighbors(self, near: Neighbors, row: int, token: int) -> Int32s:
        held = np.flatnonzero(near.tokens[row] == token)
        if len(held) > _NEAREST:
            held = held[np.argpartition(near.distances[row, held], _NEAREST)[:_NEAREST]]
        each = max(_POSITIONS, _NEAREST // max(len(held), 1))
        return self._windows(self._places.of(near.ids[row, held], each))

    def _windows(self, places: Ints) -> Int32s:
        """Return the windows around places of the store's text, in any order."""
        if len(self._parts) == 1:
            return windows_of(self._parts[0][1], self._bounds, places)
        found = []
        for first, tokens in self._parts:
            inside = places[(places >= first) & (places < first + len(tokens))] - first
            bounds = self._bounds[(self._bounds >= first) & (self._bounds <= first + len(tokens))] - first
            found.append(windows_of(tokens, bounds, inside))
        return np.concatenate(found)
