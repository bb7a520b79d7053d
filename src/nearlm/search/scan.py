"""Search in inverted lists of 8-bit codes, many queries at once.

FAISS scans a list once for every query that probes it. Here the queries of a batch are grouped by list: a list is read
and decoded once, and scored against all its queries by register-blocked products, so that the work is bound by
arithmetic instead of memory. Codes lie in plain arrays in list order, which can be mapped from disk.

With codes c from -128 to 127, scale s and centre m (per dimension) a record is x = centroid + m + s·c, so for a query
q and r = q - centroid - m the squared distance is |r|² + Σ s²c² - 2 Σ r·s·c; the middle term is `bias`.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Array, ArrayFile, Floats, Ints, blocks, files
from nearlm.store import IndexData

Found = tuple[Floats, Ints]  # squared distances and ids, [n, k]

_QUERIES = 1024  # searched together: their distances to all candidates are held at once
_CANDIDATES = 1 << 25  # distances held at once, unless one query alone has more
_ROWS = 32  # of a list, decoded together
_SAMPLE = 512
_BINS = 512


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
        if index.by_residual:
            index.quantizer.reconstruct_n(0, index.nlist, self.centroids)

    def search(self, queries: Floats, k: int, nprobe: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids, [n, k], padded with inf and -1, nearest first if `ordered`."""
        distances = np.full((len(queries), k), np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        for part in blocks(len(queries), _QUERIES):
            self._search(queries[part], nprobe, ordered, distances[part], ids[part])
        return distances, ids

    def _search(self, queries: Floats, nprobe: int, ordered: bool, distances: Floats, ids: Ints) -> None:
        offsets = self.lists.offsets
        _, probed = self.quantizer.search(queries, min(nprobe, len(offsets) - 1))
        ends = np.cumsum(np.where(probed >= 0, offsets[probed + 1] - offsets[probed], 0), axis=1)
        if len(queries) > 1 and ends[:, -1].sum() > _CANDIDATES:
            half = len(queries) // 2
            self._search(queries[:half], nprobe, ordered, distances[:half], ids[:half])
            self._search(queries[half:], nprobe, ordered, distances[half:], ids[half:])
            return
        begins = np.hstack((np.zeros((len(queries), 1), np.int64), ends))
        begins += np.concatenate(([0], np.cumsum(ends[:-1, -1])))[:, None]
        pairs = np.argsort(probed, axis=None, kind="stable")
        pairs = pairs[np.searchsorted(probed.reshape(-1)[pairs], 0) :]
        if not len(pairs):  # NaN queries probe no list
            return
        grouped = probed.reshape(-1)[pairs]
        groups = np.concatenate(([0], np.flatnonzero(np.diff(grouped)) + 1, [len(grouped)])).astype(np.int64)
        candidates = self._room(int(ends[:, -1].sum()))
        decoder = self.centroids, self.scale, self.centre
        records = offsets, self.lists.codes, self.lists.bias
        _score_lists(queries, *decoder, *records, probed, pairs, groups, begins, candidates)
        _select(candidates, probed, offsets, self.lists.ids, begins, ordered, distances, ids)

    def _room(self, count: int) -> Floats:
        """Return memory for distances, the same each time: fresh pages cost more than what is written into them."""
        room: Floats | None = getattr(self._scratch, "room", None)
        if room is None or len(room) < count:
            room = self._scratch.room = np.empty(count * 5 // 4, np.float32)
        return room[:count]


def _scale_and_centre(index: Any) -> tuple[Floats, Floats]:
    """Return per dimension how much a step of a code is worth, and what code 128 stands for."""
    trained = faiss.vector_to_array(index.sq.trained).reshape(2, -1)
    scale = trained[1] / np.float32(255)
    return scale, trained[0] + np.float32(128.5) * scale


@numba.njit(cache=True, parallel=True, nogil=True, fastmath=True)
def _score_lists(  # type: ignore[no-untyped-def]
    queries, centroids, scale, centre, offsets, codes, bias, probed, pairs, groups, begins, out
):
    """Write the distance of every query to every record of every list it probes."""
    dim, nprobe = queries.shape[1], probed.shape[1]
    for g in numba.prange(len(groups) - 1):
        members = pairs[groups[g] : groups[g + 1]]
        number = probed[members[0] // nprobe, members[0] % nprobe]
        count = len(members)
        scaled = np.zeros(((count + 3) // 4 * 4, dim), np.float32)
        constant = np.empty(count, np.float32)
        rest = np.empty(dim, np.float32)
        for m in range(count):
            query = queries[members[m] // nprobe]
            for d in range(dim):
                rest[d] = query[d] - centroids[number, d] - centre[d]
            total = np.float32(0)  # in a loop that writes no array: one that does may add up in another order next time
            for d in range(dim):
                total += rest[d] * rest[d]
            constant[m] = total
            for d in range(dim):
                scaled[m, d] = np.float32(-2) * rest[d] * scale[d]
        rows, products = np.zeros((_ROWS, dim), np.float32), np.empty((4, _ROWS), np.float32)
        for first in range(offsets[number], offsets[number + 1], _ROWS):
            here = min(_ROWS, offsets[number + 1] - first)
            for r in range(here):
                for d in range(dim):
                    rows[r, d] = np.float32(codes[first + r, d])
            for m in range(0, count, 4):
                _multiply(scaled, m, rows, (here + 1) // 2 * 2, products)
                for n in range(m, min(m + 4, count)):
                    i, at = members[n] // nprobe, first - offsets[number]
                    at += begins[i, members[n] % nprobe]
                    for r in range(here):
                        out[at + r] = products[n - m, r] + constant[n] + bias[first + r]


@numba.njit(cache=True, fastmath=True, inline="always")
def _multiply(a, m, b, rows, out):  # type: ignore[no-untyped-def]
    """Write four rows of `a` times the rows of `b`; eight sums at a time stay in registers."""
    for r in range(0, rows, 2):
        p0 = p1 = p2 = p3 = q0 = q1 = q2 = q3 = np.float32(0)
        for d in range(a.shape[1]):
            x, y = b[r, d], b[r + 1, d]
            a0, a1, a2, a3 = a[m, d], a[m + 1, d], a[m + 2, d], a[m + 3, d]
            p0 += a0 * x
            p1 += a1 * x
            p2 += a2 * x
            p3 += a3 * x
            q0 += a0 * y
            q1 += a1 * y
            q2 += a2 * y
            q3 += a3 * y
        out[0, r], out[1, r], out[2, r], out[3, r] = p0, p1, p2, p3
        out[0, r + 1], out[1, r + 1], out[2, r + 1], out[3, r + 1] = q0, q1, q2, q3


@numba.njit(cache=True, parallel=True, nogil=True)
def _select(candidates, probed, offsets, record_ids, begins, ordered, distances, ids):  # type: ignore[no-untyped-def]
    """Keep each query's k nearest candidates."""
    k = distances.shape[1]
    for i in numba.prange(len(probed)):
        row = candidates[begins[i, 0] : begins[i, -1]]
        at = np.empty(len(row) + 1, np.int32)
        kept = _below(row, _guess(row, k), at)
        if kept < min(k, len(row)):
            kept = _below(row, np.float32(np.inf), at)
        if kept > k:
            kept = _nearest(row, at[:kept], k)
        _write(row, at[:kept], probed[i], offsets, record_ids, begins[i], distances[i], ids[i])
        if ordered:
            order = np.argsort(distances[i, :kept], kind="mergesort")
            distances[i, :kept], ids[i, :kept] = distances[i][order], ids[i][order]


@numba.njit(cache=True)
def _guess(row, k):  # type: ignore[no-untyped-def]
    """Guess from a sample a distance below which a little more than k lie."""
    step = len(row) // _SAMPLE
    if step < 2 or k * 2 > len(row):
        return np.float32(np.inf)
    sample, rank = row[::step].copy(), k / step
    return _smallest(sample, min(int(rank + 3 * np.sqrt(rank) + 3), len(sample)))


@numba.njit(cache=True, inline="always")
def _bin(value, low, scale):  # type: ignore[no-untyped-def]
    """Return the bin of a value; what is infinite or no number, which an index or a query may hold, is in the last."""
    place = (value - low) * scale
    return int(place) if 0 <= place < _BINS else _BINS - 1


@numba.njit(cache=True)
def _smallest(values, k):  # type: ignore[no-untyped-def]
    """Return the k-th smallest value: count them into bins, then sort only the bin that holds it."""
    low, high = values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    if not low < high:
        return low
    scale = np.float32(_BINS - 1) / (high - low)
    counts = np.zeros(_BINS, np.int32)
    for value in values:
        counts[_bin(value, low, scale)] += 1
    chosen = 0
    while counts[chosen] < k:
        k -= counts[chosen]
        chosen += 1
    inside, taken = np.empty(counts[chosen] + 1, np.float32), 0
    for value in values:
        inside[taken] = value
        taken += _bin(value, low, scale) == chosen
    return np.sort(inside[:taken])[k - 1]


@numba.njit(cache=True, inline="always")
def _below(row, limit, at):  # type: ignore[no-untyped-def]
    """Collect the places of the candidates up to a distance; without a branch, as most guesses would be wrong."""
    kept = 0
    for j in range(len(row)):
        at[kept] = j
        kept += row[j] <= limit
    return kept


@numba.njit(cache=True)
def _nearest(row, at, k):  # type: ignore[no-untyped-def]
    """Move the k nearest of some candidates to the front."""
    near = row[at]
    kth = _smallest(near, k)
    ties = k
    for j in range(len(near)):
        ties -= near[j] < kth
    taken = 0
    for j in range(len(near)):
        tied = near[j] == kth and ties > 0
        at[taken] = at[j]
        taken += near[j] < kth or tied
        ties -= tied
    return k


@numba.njit(cache=True)
def _write(row, at, probed, offsets, record_ids, begins, distances, ids):  # type: ignore[no-untyped-def]
    """Write distances and ids of candidates, which are in ascending order of place."""
    probe, shift = -1, 0
    for j in range(len(at)):
        while at[j] >= begins[probe + 1] - begins[0]:
            probe += 1
            shift = offsets[probed[probe]] - begins[probe] + begins[0]
        distances[j] = max(row[at[j]], np.float32(0))
        ids[j] = record_ids[at[j] + shift]
