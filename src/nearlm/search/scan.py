"""Search in inverted lists of 8-bit codes, many queries at once.

FAISS scans a list once for every query that probes it. Here the queries of a batch are grouped by list: a list is read
once and multiplied with all its queries, so that the work is bound by arithmetic instead of memory. Codes lie in plain
arrays in list order, which can be mapped from disk.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from nearlm.base import Array, ArrayFile, Floats, Ints, blocks, files
from nearlm.base.arrays import FEW
from nearlm.search.few_queries import FewScan
from nearlm.search.nearest import EVERY, guess_limits, nearest_lists, select
from nearlm.search.vectors import multiply_matrix
from nearlm.search.visits import Kept, Visits, visit, weigh
from nearlm.store import IndexData

Found = tuple[Floats, Ints]  # squared distances and ids, [n, k]

_QUERIES = 4096  # searched together
_CANDIDATES = 1 << 25  # for which there is room at once, unless one query alone has more


def can_scan(index: Any) -> bool:
    """Tell whether lists of this FAISS index can be scanned here: an IVF of 8-bit codes with L2 distances."""
    return (
        isinstance(index, faiss.IndexIVFScalarQuantizer)
        and index.sq.qtype == faiss.ScalarQuantizer.QT_8bit
        and index.metric_type == faiss.METRIC_L2
    )


@dataclass(frozen=True)
class Lists:
    """Inverted lists end to end: where each begins, and the ids, codes and code norms of their records."""

    offsets: Ints
    ids: Ints
    codes: npt.NDArray[np.int8]
    bias: Floats

    def put_into(self, index: Any) -> None:
        """Copy the lists into a FAISS index that has none yet."""
        for number, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            if begin < end:
                ids = np.array(self.ids[begin:end])
                codes = self.codes[begin:end].view(np.uint8) ^ 128
                index.invlists.add_entries(number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes))
        index.ntotal = len(self.ids)

    @classmethod
    def open(cls, data: IndexData, index: Any) -> "Lists":
        """Map the lists that were written for this index."""
        offsets = _open(data.offsets, "int64", index.nlist + 1)
        records = int(offsets[-1])
        return cls(
            offsets,
            _open(data.ids, "int64", records),
            _open(data.codes, "int8", records, index.sq.d),
            _open(data.bias, "float32", records),
        )


def _open(path: Path, dtype: str, *shape: int) -> Array:
    file = ArrayFile(path, np.dtype(dtype), shape)
    file.check()
    return file.open()


def without_lists(index: Any) -> Any:
    """Return a FAISS index with the quantiser and codec of another, and no records."""
    codec = faiss.IndexIVFScalarQuantizer(
        index.quantizer, index.d, index.nlist, index.sq.qtype, faiss.METRIC_L2, index.by_residual
    )
    faiss.copy_array_to_vector(faiss.vector_to_array(index.sq.trained), codec.sq.trained)
    codec.is_trained = True
    return codec


def write_lists(index: Any, data: IndexData) -> None:
    """Write the lists of a FAISS index as arrays, list by list."""
    inverted = index.invlists
    width = index.sq.d
    lengths = [inverted.list_size(number) for number in range(index.nlist)]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    files.write_array(data.offsets, np.int64, offsets.shape, [offsets])
    scale, _ = _scale_and_centre(index)

    filled = np.flatnonzero(lengths).tolist()

    def codes() -> Iterator[npt.NDArray[np.int8]]:
        for number in filled:
            raw = faiss.rev_swig_ptr(inverted.get_codes(number), lengths[number] * width)
            yield (raw ^ 128).view(np.int8).reshape(-1, width)

    ids = (faiss.rev_swig_ptr(inverted.get_ids(number), lengths[number]) for number in filled)
    bias = (np.square(block * scale).sum(axis=1, dtype=np.float32) for block in codes())
    files.write_array(data.ids, np.int64, (offsets[-1],), ids)
    files.write_array(data.codes, np.int8, (offsets[-1], width), codes())
    files.write_array(data.bias, np.float32, (offsets[-1],), bias)


class ListScan:
    """Searches lists whose quantiser and codec are those of a FAISS index."""

    def __init__(self, index: Any, lists: Lists):
        self.quantizer = index.quantizer
        self.lists = lists
        self._scratch = threading.local()
        self.scale, self.centre = _scale_and_centre(index)
        self.centroids = np.zeros((index.nlist, index.d), np.float32)
        means = index.quantizer.reconstruct_n(0, index.nlist)
        if index.by_residual:
            self.centroids = means
        self.means = means if isinstance(index.quantizer, faiss.IndexFlat) else None
        self.squares = np.square(means).sum(1)
        self._few = FewScan(self)

    def search(self, queries: Floats, k: int, nprobe: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids, [n, k], padded with inf and -1, nearest first if `ordered`."""
        distances = np.full((len(queries), k), np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        if len(queries) <= FEW:
            self._few.search(queries, self._lists_of(queries, nprobe), ordered, distances, ids)
            return distances, ids
        for part in blocks(len(queries), _QUERIES):
            self._search(queries[part], nprobe, ordered, distances[part], ids[part])
        return distances, ids

    def _lists_of(self, queries: Floats, nprobe: int) -> Ints:
        """Return the lists of a few queries if FAISS must find them, and else room for them."""
        nprobe = min(nprobe, len(self.lists.offsets) - 1)
        if self.means is None:
            return self._probe(queries, nprobe)
        return np.full((len(queries), nprobe), -1, np.int64)

    def _search(
        self, queries: Floats, nprobe: int, ordered: bool, distances: Floats, ids: Ints, *, guess: bool = True
    ) -> None:
        lists = self.lists
        visits = Visits.plan(self._probe(queries, min(nprobe, len(lists.offsets) - 1)), lists.offsets)
        if not visits.candidates:  # NaN queries probe no list
            return
        if len(queries) > 1 and visits.candidates > _CANDIDATES:
            half = len(queries) // 2
            for part in (slice(0, half), slice(half, None)):
                self._search(queries[part], nprobe, ordered, distances[part], ids[part], guess=guess)
            return
        weights = weigh(queries, self.centroids, self.scale, self.centre, visits)
        limits = np.full(len(queries), np.inf, np.float32)
        if guess:
            sampled = visits.sample(lists.offsets, EVERY)
            sample = visit(weights, limits, lists, sampled, self._room(sampled))
            limits = guess_limits(sample.distances, sampled, visits, distances.shape[1])
        kept = visit(weights, limits, lists, visits, self._room(visits))
        missed = select(kept, limits, visits, lists.offsets, lists.ids, ordered, distances, ids)
        if guess and missed.any():
            near = distances[missed]
            found = ids[missed]
            self._search(queries[missed], nprobe, ordered, near, found, guess=False)
            distances[missed] = near
            ids[missed] = found

    def _probe(self, queries: Floats, nprobe: int) -> Ints:
        """Return the nearest lists of queries, [n, nprobe].

        FAISS is asked only if it has more than centroids: its threads and numba's get in each other's way.
        """
        if self.means is None:
            return self.quantizer.search(queries, nprobe)[1]  # type: ignore[no-any-return]
        return nearest_lists(multiply_matrix(queries, self.means), self.squares, nprobe)

    def _room(self, visits: Visits) -> Kept:
        """Return room for all candidates, the same each time: fresh pages cost more than what is written into them."""
        room: Kept | None = getattr(self._scratch, "room", None)
        count = visits.candidates
        if room is None or len(room.distances) < count:
            most = count * 5 // 4
            room = Kept(np.empty(most, np.float32), np.empty(most, np.int32), np.empty(0, np.int32))
            self._scratch.room = room
        return room._replace(counts=np.zeros(visits.probed.size, np.int32))


def _scale_and_centre(index: Any) -> tuple[Floats, Floats]:
    """Return per dimension how much a step of a code is worth, and what code 128 stands for."""
    trained = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    scale = trained[1] / np.float32(255)
    return scale, trained[0] + np.float32(128.5) * scale
