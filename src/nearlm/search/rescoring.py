"""Exact squared distances of queries to stored keys, read from the memory-mapped shards where they lie.

A key is compared as it is read: half-precision numbers and 8-bit codes are widened in registers, and nothing is copied.
Keys that fit in memory are read ahead once, in order; of a larger store the pages of each batch are read ahead, so that
a cold disk works in parallel.
"""

import mmap
import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from nearlm.base import Array, Floats, Ids, ShardedArray, available_ram, blocks, files
from nearlm.base.mapping import mapped_file
from nearlm.store import CodedKeys

_FEW = 8  # queries that one thread has compared before others are awake
_READ_QUERIES = 64  # whose pages are read ahead together


class Rescorer:
    """Computes true distances to the keys of one store."""

    def __init__(self, keys: ShardedArray):
        self.keys = keys
        self.in_memory = _fits(sum(shard.nbytes for shard in keys.shards))
        if self.in_memory:
            for shard in keys.shards:
                _advise(shard, 0, sys.maxsize)

    def distances(self, queries: Floats, ids: Ids) -> Floats:
        """Return the squared distances of queries [n, dim] to records [n, k] in float32 differences; inf for id -1."""
        out = np.full(ids.shape, np.inf, np.float32)
        kernel = _few_kernel if len(ids) <= _FEW else _kernel
        weights = None
        if isinstance(self.keys, CodedKeys):  # (q - m - s c)² = s² ((q - m) / s - c)²
            codec = self.keys.codec
            queries = (queries - codec.middle) / codec.step
            weights = codec.step**2
        for part in blocks(len(ids), max(len(ids), 1) if self.in_memory else _READ_QUERIES):
            if not self.in_memory:
                self._read_ahead(np.unique(ids[part][ids[part] >= 0]))
            for first, shard in self.keys.parts():
                rows = np.asarray(shard)
                if rows.dtype == np.float16:
                    rows = rows.view(np.uint16)  # numba has no half precision
                kernel(queries[part], rows, weights, ids[part], first, out[part])
        return out

    def _read_ahead(self, ids: Ids) -> None:
        for first, shard in self.keys.parts():
            here = ids[np.searchsorted(ids, first) : np.searchsorted(ids, first + len(shard))] - first
            if len(here):
                for begin, length in page_runs(here, shard.nbytes // len(shard), files.NPY_HEADER):
                    _advise(shard, begin, length)


def page_runs(rows: Ids, width: int, offset: int) -> list[tuple[int, int]]:
    """Return the runs of pages (begin, length in bytes) that hold some rows of a file."""
    first = (rows * width + offset) // mmap.PAGESIZE
    last = ((rows + 1) * width + offset - 1) // mmap.PAGESIZE
    cut = np.flatnonzero(first[1:] > last[:-1] + 1) + 1
    begins = first[np.concatenate(([0], cut))]
    ends = last[np.concatenate((cut - 1, [len(rows) - 1]))]
    return [(int(b) * mmap.PAGESIZE, int(e - b + 1) * mmap.PAGESIZE) for b, e in zip(begins, ends, strict=True)]


def _advise(shard: Array, begin: int, length: int) -> None:
    mapped = mapped_file(shard)
    if mapped is not None:  # Windows has none
        mapped.read_ahead(begin, length)


def _fits(count: int) -> bool:
    """Tell whether so many bytes fit in half of the memory that is free or holds files."""
    return count <= (available_ram() or 0) // 2


@intrinsic  # type: ignore[untyped-decorator]
def _widen(context: Any, number: Any) -> Any:
    """Return a float32 as it is, and what 8 bits of an integer or 16 of a half-precision number stand for."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if number == types.float32:
            return arguments[0]
        if number == types.int8:
            return builder.sitofp(arguments[0], ir.FloatType())
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(number), codegen


@numba.njit(cache=True, parallel=True, nogil=True, fastmath=True)
def _kernel(queries, rows, weights, ids, first, out):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(queries)):
        _compare(queries[i], rows, weights, ids[i], first, out[i])


@numba.njit(cache=True, nogil=True, fastmath=True)
def _few_kernel(queries, rows, weights, ids, first, out):  # type: ignore[no-untyped-def]
    for i in range(len(queries)):
        _compare(queries[i], rows, weights, ids[i], first, out[i])


@numba.njit(cache=True, fastmath=True)
def _compare(query, rows, weights, ids, first, out):  # type: ignore[no-untyped-def]
    """Write the squared distances of a query to those of its records that lie in a shard."""
    for j in range(len(ids)):
        at = ids[j] - first
        if 0 <= at < len(rows) and ids[j] >= 0:
            total = np.float32(0)
            for d in range(len(query)):
                difference = _widen(rows[at, d]) - query[d]
                total += difference * difference if weights is None else weights[d] * difference * difference
            out[j] = total
