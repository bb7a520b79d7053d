"""Near duplicates: which documents say largely the same, so that one of them is not unseen if the other was read.

A document is the set of its shingles: all runs of `SHINGLE` words, lower-cased, without punctuation and white space,
each as a hash of 64 bits. The overlap of two documents is the share of the smaller one's shingles that the other holds
too; from more than `THRESHOLD` on they are near duplicates.
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nearlm.base import Doubles, Ints

SHINGLE = 8
THRESHOLD = 0.5
MOST_SHINGLES = 40_000_000  # of a corpus; of a larger one a sample stands for all
TEMPLATE = 1000  # a shingle of more documents is a template's, and counts for none

Shingles = npt.NDArray[np.uint64]  # in order, each once
_WORD = re.compile(r"\w+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))


def shingles(text: str) -> Shingles:
    """Return the set of runs of `SHINGLE` words in a text; a shorter text is one shingle."""
    words = np.array([zlib.crc32(word.encode()) for word in _WORD.findall(text.lower())], np.uint64)
    count = max(1, len(words) - SHINGLE + 1)
    hashes = np.full(count, min(len(words), SHINGLE), np.uint64)
    for place in range(min(len(words), SHINGLE)):
        hashes = _mix(hashes * _FACTOR + words[place : place + count])
    return np.unique(hashes)


def _mix(values: Shingles) -> Shingles:
    """Spread what values differ in over all bits."""
    for shift, factor in _MIXERS:
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> np.uint64(31))


class Overlaps:
    """The overlaps of each of some documents with all, by one list of all shingles."""

    def __init__(self, sets: Sequence[Shingles]):
        self._sets = sets
        self._lengths = np.array(list(map(len, sets)))
        hashes = np.concatenate([*sets, np.empty(0, np.uint64)])
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._owners = np.repeat(np.arange(len(sets)), self._lengths)[order]

    def of(self, number: int) -> Doubles:
        """Return the overlap of a document with every one."""
        mine = self._sets[number]
        begin = np.searchsorted(self._hashes, mine, side="left")
        counts = np.searchsorted(self._hashes, mine, side="right") - begin
        rows = np.repeat(begin - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        shared = np.bincount(self._owners[rows], minlength=len(self._sets))
        return np.asarray(shared / np.minimum(self._lengths, len(mine)))


class ShingleSets:
    """The shingles of many documents; beyond `MOST_SHINGLES` those with the lowest hashes stand for all."""

    def __init__(self) -> None:
        self._sets: list[Shingles] = []
        self._count = 0
        self._limit = (1 << 64) - 1

    def add(self, text: str) -> None:
        """Add a document."""
        self._sets.append(self._sample(shingles(text)))
        self._count += len(self._sets[-1])
        while self._count > MOST_SHINGLES and self._limit > 1:
            self._limit //= 2
            self._sets = [self._sample(one) for one in self._sets]
            self._count = sum(map(len, self._sets))
            if self._count == len(self._sets):
                break

    def _sample(self, hashes: Shingles) -> Shingles:
        """Keep the hashes up to a limit, and one at least."""
        return hashes[: max(1, int(np.searchsorted(hashes, np.uint64(self._limit), side="right")))].copy()

    def near_pairs(self) -> list[tuple[int, int]]:
        """Return the numbers of documents that are near duplicates of each other, in pairs."""
        if not self._sets:
            return []
        lengths = np.array(list(map(len, self._sets)))
        hashes = np.concatenate(self._sets)
        order = np.argsort(hashes, kind="stable")  # within a shingle, documents stay in order
        owners = np.repeat(np.arange(len(lengths)), lengths)[order]
        begins = np.flatnonzero(np.append(True, np.diff(hashes[order]) != 0))
        sizes = np.diff(np.append(begins, len(owners)))
        ends = np.repeat(begins + sizes, sizes)
        counted = np.repeat(sizes, sizes) <= TEMPLATE
        lengths = np.bincount(owners[counted], minlength=len(lengths))
        return list(_count_pairs(owners, ends, counted, lengths))


def _count_pairs(owners: Ints, ends: Ints, counted: npt.NDArray[np.bool_], lengths: Ints) -> Iterator[tuple[int, int]]:
    """Yield near duplicates from all shingles in order: whose each is, and where the run of its equals ends."""
    places = np.flatnonzero(counted & (ends - np.arange(len(owners)) > 1))
    places = places[np.argsort(owners[places], kind="stable")]
    for group in np.split(places, np.flatnonzero(np.diff(owners[places])) + 1):
        if not len(group):
            continue
        one = int(owners[group[0]])
        after = ends[group] - group - 1
        rows = np.repeat(ends[group] - np.cumsum(after), after) + np.arange(after.sum())
        others, shared = np.unique(owners[rows], return_counts=True)
        near = shared > THRESHOLD * np.minimum(lengths[one], lengths[others])
        yield from ((one, int(other)) for other in others[near])


def connect(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each of so many things the first one that it is connected with, over any chain of pairs."""
    first = list(range(count))

    def root(one: int) -> int:
        while first[one] != one:
            first[one] = first[first[one]]
            one = first[one]
        return one

    for pair in pairs:
        low, high = sorted(map(root, pair))
        first[high] = low
    return [root(one) for one in range(count)]


def group(labels: Sequence[int]) -> dict[int, list[int]]:
    """Return the numbers of the things with each label."""
    groups: dict[int, list[int]] = {}
    for number, label in enumerate(labels):
        groups.setdefault(label, []).append(number)
    return groups
