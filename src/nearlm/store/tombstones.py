"""Forgotten documents: which positions of the token stream and which records are theirs, until they are compacted."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Ids, Ints, ShardedArray, check_that
from nearlm.store.layout import Layout
from nearlm.store.manifest import Forgotten

if TYPE_CHECKING:
    from nearlm.store.datastore import Datastore

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Tombstones:
    """The forgotten documents of a store: their numbers in ascending order, in a stream of documents and of records."""

    documents: Ints
    bounds: Ints  # where all documents of the store begin, and, last, where the stream ends
    origin: ShardedArray

    @classmethod
    def open_if(cls, said: Forgotten | None, layout: Layout, bounds: Ints, origin: ShardedArray) -> "Tombstones | None":
        """Read which documents a manifest says are forgotten, if any are; refuse numbers that no document has."""
        if said is None:
            return None
        file = layout.forgotten(said.file, said.documents)
        file.check()
        numbers: Ints = file.open()
        sound = numbers[0] >= 0 and numbers[-1] < len(bounds) - 1 and (np.diff(numbers) > 0).all()
        check_that(sound, file.path, "ascending numbers of documents")
        return cls(numbers, bounds, origin)

    def __len__(self) -> int:
        return len(self.documents)

    def __contains__(self, document: int) -> bool:
        place = int(np.searchsorted(self.documents, document))
        return place < len(self.documents) and self.documents[place] == document

    @cached_property
    def runs(self) -> Ints:
        """The positions that they take, [n, 2]: where each run begins and ends."""
        first = np.concatenate(([True], np.diff(self.documents) > 1))
        last = np.concatenate((first[1:], [True]))
        return np.stack([self.bounds[self.documents[first]], self.bounds[self.documents[last] + 1]], axis=1)

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
        return int((self.runs[:, 1] - self.runs[:, 0]).sum())

    def holds(self, position: int) -> bool:
        """Tell whether a position of the token stream is in one of them."""
        run = int(np.searchsorted(self.runs[:, 0], position, side="right")) - 1
        return run >= 0 and position < int(self.runs[run, 1])

    @cached_property
    def positions(self) -> Mask:
        """Which positions of the token stream are theirs."""
        return mask_of(self.runs, int(self.bounds[-1]))

    @cached_property
    def record_runs(self) -> Ints:
        """The records that are theirs, [n, 2]: where each run begins and ends."""
        found = np.zeros(self.runs.shape, np.int64)
        for origin in self.origin.shards:
            found += np.searchsorted(origin, self.runs)
        return found[found[:, 0] < found[:, 1]]

    @property
    def records(self) -> int:
        """How many records are theirs."""
        return int((self.record_runs[:, 1] - self.record_runs[:, 0]).sum())

    @cached_property
    def record_mask(self) -> Mask:
        """Which records are theirs."""
        return mask_of(self.record_runs, len(self.origin))


def forgotten_segments(store: "Datastore") -> set[int]:
    """Return the numbers of the segments of which every document is forgotten."""
    if store.forgotten is None:
        return set()
    counts = [segment.documents for segment in store.manifest.segments]
    segment_of = np.repeat(np.arange(len(counts)), counts)
    gone = np.bincount(segment_of[store.forgotten.documents], minlength=len(counts))
    return set(np.flatnonzero(gone == counts).tolist())


def mask_of(runs: Ints, total: int) -> Mask:
    """Return a mask of so many places that is true in some runs."""
    mask = np.zeros(total, np.bool_)
    for begin, end in runs.tolist():
        mask[begin:end] = True
    return mask


def without(runs: Ints, begin: int, end: int) -> Iterator[slice]:
    """Yield the parts of begin:end that are in no run, as seen from `begin`."""
    at = begin
    for first, last in runs.tolist():
        if first >= end:
            break
        if min(first, end) > at:
            yield slice(at - begin, first - begin)
        at = max(at, last)
    if at < end:
        yield slice(at - begin, end - begin)


def count_before(runs: Ints, places: Any) -> Ids:
    """Return how many of the positions before each place are in some run."""
    lengths = np.concatenate(([0], np.cumsum(runs[:, 1] - runs[:, 0])))
    at = np.searchsorted(runs[:, 0], places, side="right")
    inside = np.where(at > 0, np.minimum(np.asarray(places) - runs[at - 1, 1], 0), 0)
    counted: Ids = lengths[at] + inside
    return counted
