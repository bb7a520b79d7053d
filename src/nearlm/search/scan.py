"""Search in inverted lists of 8-bit or 4-bit codes, many queries at once.

FAISS scans a list once for every query that probes it. Here the queries of a batch are grouped by list: a list is read
once and multiplied with all its queries, so that the work is bound by arithmetic instead of memory. Codes lie in plain
arrays in list order, which can be mapped from disk.
"""

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import numpy.typing as npt

from nearlm.base import Array, ArrayFile, Floats, Ids, Ints, blocks, files
from nearlm.base.arrays import FEW
from nearlm.search.few_queries import FewScan
from nearlm.search.nearest import EVERY, guess_limits, nearest_lists, select
from nearlm.search.packing import Codes, pack, pack_like_faiss, unpack, unpack_from_faiss
from nearlm.search.vectors import multiply_matrix
from nearlm.search.visits import Coding, Kept, Visits, visit, weigh
from nearlm.store import IndexData

Found = tuple[Floats, Ints]  # squared distances and ids, [n, k]

QUERIES = 4096  # searched together
_CANDIDATES = 1 << 25  # for which there is room at once, unless one query alone has more
_BITS = {faiss.ScalarQuantizer.QT_8bit: 8, faiss.ScalarQuantizer.QT_4bit: 4}  # of a code that can be scanned


def can_scan(index: Any) -> bool:
    """Tell whether lists of this FAISS index can be scanned here: an IVF of 8-bit or 4-bit codes with L2 distances."""
    return (
        isinstance(index, faiss.IndexIVFScalarQuantizer)
        and index.sq.qtype in _BITS
        and index.metric_type == faiss.METRIC_L2
    )


def id_type(records: int) -> str:
    """Return the narrowest type of ids of so many records."""
    return "int32" if records <= 1 << 31 else "int64"


@dataclass(frozen=True)
class Lists:
    """Inverted lists end to end: where each begins, and the ids, codes and code norms of their records.

    Codes are bytes, one an axis, or two axes a byte (see `packing`).
    """

    offsets: Ints
    ids: Ids
    codes: Codes
    bias: Floats

    @property
    def packed(self) -> bool:
        """Whether a byte holds the codes of two axes."""
        return self.codes.dtype == np.uint8

    def put_into(self, index: Any) -> None:
        """Copy the lists into a FAISS index that has none yet."""
        for number, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            if begin < end:
                ids = np.array(self.ids[begin:end], np.int64)
                codes = pack_like_faiss(unpack(self.codes[begin:end], index.d), _BITS[index.sq.qtype])
                index.invlists.add_entries(number, len(ids), faiss.swig_ptr(ids), faiss.swig_ptr(codes))
        index.ntotal = len(self.ids)

    @classmethod
    def open(cls, data: IndexData, index: Any) -> "Lists":
        """Map the lists that were written for this index."""
        offsets = _open(data.offsets, "int64", index.nlist + 1)
        records = int(offsets[-1])
        codes = ("int8", index.d) if _BITS[index.sq.qtype] == 8 else ("uint8", -(-index.d // 2))
        old = ArrayFile(data.ids, np.dtype("int64"), (records,))  # as all were once
        return cls(
            offsets,
            _open(data.ids, "int64" if records and old.sound else id_type(records), records),
            _open(data.codes, codes[0], records, codes[1]),
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
    bits = _BITS[index.sq.qtype]
    lengths = [inverted.list_size(number) for number in range(index.nlist)]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    files.write_array(data.offsets, np.int64, offsets.shape, [offsets])
    scale, _ = scale_and_centre(index)

    filled = np.flatnonzero(lengths).tolist()

    def codes() -> Iterator[npt.NDArray[np.int8]]:
        for number in filled:
            raw = faiss.rev_swig_ptr(inverted.get_codes(number), lengths[number] * index.code_size)
            yield unpack_from_faiss(raw.reshape(lengths[number], -1), index.d, bits)

    kind = id_type(offsets[-1])
    ids = (faiss.rev_swig_ptr(inverted.get_ids(number), lengths[number]).astype(kind) for number in filled)
    bias = (np.square(block * scale).sum(axis=1, dtype=np.float32) for block in codes())
    packed = pack(np.empty((0, index.d), np.int8), bits)
    files.write_array(data.ids, np.dtype(kind), (offsets[-1],), ids)
    files.write_array(data.codes, packed.dtype, (offsets[-1], packed.shape[1]), (pack(some, bits) for some in codes()))
    files.write_array(data.bias, np.float32, (offsets[-1],), bias)


class Quantiser(Protocol):
    """Finds the nearest of many centroids."""

    def nearest(self, queries: Floats, count: int) -> Ints:
        """Return the numbers of the nearest centroids of queries, [n, count], nearest first."""


class ListScan:
    """Searches lists whose codec is that of a FAISS index, and its quantiser too, unless `coarse` is given."""

    searched = 1.0  # the share of the records that were there to be searched

    def __init__(self, index: Any, lists: Lists, coarse: Quantiser | None = None):
        self.coarse = coarse
        self.quantizer = faiss.downcast_index(index.quantizer)  # FAISS itself gives any attribute as a plain index
        self.lists = lists
        self._scratch = threading.local()
        self.scale, self.centre = scale_and_centre(index)
        self.centroids = np.zeros((index.nlist, index.d), np.float32)
        means = index.quantizer.reconstruct_n(0, index.nlist)
        if index.by_residual:
            self.centroids = means
        self.means = means if coarse is None and isinstance(self.quantizer, faiss.IndexFlat) else None
        self.squares = np.square(means).sum(1)
        self.coding = Coding.of(self.scale, packed=lists.packed)
        self._few = FewScan(self)

    def without(self, records: npt.NDArray[np.bool_]) -> "ListScan":
        """Return a scan that never finds some records: a norm that is no number is within no limit."""
        other = copy.copy(self)
        bias = np.array(self.lists.bias)
        for rows in blocks(len(bias), 1 << 20):
            bias[rows][records[self.lists.ids[rows]]] = np.nan
        bias.flags.writeable = False  # as mapped files are: one type for the kernels
        other.lists = replace(self.lists, bias=bias)
        other._scratch = threading.local()
        other._few = FewScan(other)
        return other

    def search(self, queries: Floats, k: int, nprobe: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids, [n, k], padded with inf and -1, nearest first if `ordered`."""
        nprobe = min(nprobe, len(self.lists.offsets) - 1)
        if len(queries) <= FEW:
            probed = np.full((len(queries), nprobe), -1, np.int64)  # room for lists, unless others find them
            if self.means is None:
                probed = self.probe(queries, nprobe)
            return self.search_lists(queries, probed, k, ordered=ordered)
        distances = np.full((len(queries), k), np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        for part in blocks(len(queries), QUERIES):
            self._search(queries[part], self.probe(queries[part], nprobe), ordered, distances[part], ids[part])
        return distances, ids

    def search_lists(self, queries: Floats, probed: Ints, k: int, *, ordered: bool = True) -> Found:
        """Search the lists that are given for each of up to `QUERIES` queries, [n, nprobe]; -1 is none.

        Neighbours that are not `ordered` come in the order of their lists, and of a list's records.
        """
        distances = np.full((len(queries), k), np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        if len(queries) <= FEW:
            self._few.search(queries, probed, ordered, distances, ids)
        else:
            self._search(queries, probed, ordered, distances, ids)
        return distances, ids

    def _search(
        self, queries: Floats, probed: Ints, ordered: bool, distances: Floats, ids: Ints, *, guess: bool = True
    ) -> None:
        lists = self.lists
        visits = Visits.plan(probed, lists.offsets)
        if not visits.candidates:  # NaN queries probe no list
            return
        if len(queries) > 1 and visits.candidates > _CANDIDATES:
            half = len(queries) // 2
            for part in (slice(0, half), slice(half, None)):
                self._search(queries[part], probed[part], ordered, distances[part], ids[part], guess=guess)
            return
        weights = weigh(queries, self.centroids, self.scale, self.centre, visits, self.coding)
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
            self._search(queries[missed], probed[missed], ordered, near, found, guess=False)
            distances[missed] = near
            ids[missed] = found

    def probe(self, queries: Floats, nprobe: int) -> Ints:
        """Return the nearest lists of queries, [n, nprobe].

        FAISS is asked only if it has more than centroids: its threads and numba's get in each other's way.
        """
        if self.coarse is not None:
            return self.coarse.nearest(queries, nprobe)
        if self.means is None:
            return self.quantizer.search(queries, nprobe)[1]
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


def scale_and_centre(index: Any) -> tuple[Floats, Floats]:
    """Return per dimension how much a step of a code is worth, and what code 0 (FAISS's middle one) stands for."""
    trained = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    levels = 1 << _BITS[index.sq.qtype]
    scale = trained[1] / np.float32(levels - 1)
    return scale, trained[0] + np.float32(levels // 2 + 0.5) * scale
