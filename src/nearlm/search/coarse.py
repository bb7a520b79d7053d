"""The way to very many lists: centroids in groups, of which those nearest to a query are looked into.

Products with all centroids grow with their number, and a graph of them reads them one by one, all over memory. Groups
are lists of centroids, in codes of 8 bits, and are scanned as lists of records are.
"""

import math
from typing import Any

import faiss
import numpy as np

from nearlm.base import ArrayFile, Floats, Int32s, Ints, blocks
from nearlm.base.verification import check_that
from nearlm.search.packing import unpack_from_faiss
from nearlm.search.scan import Lists, ListScan, scale_and_centre
from nearlm.store import IndexData

LOOKED_INTO = 8  # groups, at least
_ROUNDS = 2  # that move centroids
_BLOCK = 1 << 15


def group_count(lists: int) -> int:
    """Return how many groups of so many centroids make the way to the lists shortest."""
    return max(1, round(math.sqrt(LOOKED_INTO * lists)))


class Coarse:
    """Finds the nearest of many centroids, which lie group by group; `groups` has the number of each one's."""

    def __init__(self, centroids: Floats, groups: Int32s):
        self.groups = groups
        begins = np.searchsorted(groups, np.arange(int(groups[-1]) + 2))
        sums = np.add.reduceat(centroids, begins[:-1])
        middles = np.asarray(sums / np.diff(begins)[:, None], np.float32)
        flat = faiss.IndexFlatL2(centroids.shape[1])
        flat.add(middles)
        codec = faiss.IndexIVFScalarQuantizer(
            flat, flat.d, len(middles), faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2, False
        )
        codec.sq.train(centroids)
        codes = unpack_from_faiss(codec.sq.compute_codes(centroids), flat.d, 8)
        scale, _ = scale_and_centre(codec)
        bias = np.empty(len(codes), np.float32)
        for rows in blocks(len(codes), _BLOCK):
            bias[rows] = np.square(codes[rows] * scale).sum(axis=1)
        columns: list[Any] = [begins.astype(np.int64), np.arange(len(centroids), dtype=np.int32), codes, bias]
        for column in columns:
            column.flags.writeable = False  # as mapped files are: one type for the kernels
        self._scan = ListScan(codec, Lists(*columns))

    def nearest(self, queries: Floats, count: int) -> Ints:
        """Return the nearest centroids of queries, [n, count], nearest first; -1 for queries that are no numbers."""
        return self._scan.search(queries, count, max(LOOKED_INTO, count))[1]

    def write(self, data: IndexData) -> None:
        """Keep the groups with an index, whose quantiser has the centroids."""
        _file(data, len(self.groups)).write(self.groups)

    @classmethod
    def read(cls, data: IndexData, index: Any) -> "Coarse | None":
        """Read the groups of an index, None if it has none."""
        if not data.groups.exists():
            return None
        file = _file(data, index.nlist)
        file.check()
        groups = np.asarray(file.open())
        steps = np.diff(groups, prepend=-1)
        check_that(groups[0] == 0 and bool(((steps[1:] == 0) | (steps[1:] == 1)).all()), data.groups, "groups in order")
        return cls(index.quantizer.reconstruct_n(0, index.nlist), groups)


def refine(keys: Floats, centroids: Floats, groups: Int32s) -> Floats:
    """Move centroids to the means of the keys nearest to them, as k-means does, across the borders of groups."""
    for _ in range(_ROUNDS):
        coarse = Coarse(centroids, groups)
        sums = np.zeros_like(centroids)
        sizes = np.zeros((len(centroids), 1), np.float32)
        for rows in blocks(len(keys), _BLOCK):
            nearest = coarse.nearest(keys[rows], 1)[:, 0]
            order = np.argsort(nearest, kind="stable")
            lists, begins, counts = np.unique(nearest[order], return_index=True, return_counts=True)
            sums[lists] += np.add.reduceat(keys[rows][order], begins)
            sizes[lists, 0] += counts
        centroids = np.where(sizes > 0, sums / np.maximum(sizes, 1), centroids)
    return centroids


def _file(data: IndexData, lists: int) -> ArrayFile:
    return ArrayFile(data.groups, np.dtype(np.int32), (lists,))
