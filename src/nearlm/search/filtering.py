"""Searches that leave out records which were forgotten, in indexes that FAISS searches."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Ints

Mask = npt.NDArray[np.bool_]
Found = tuple[Floats, Ints]  # squared distances and ids, [n, k]
_MORE = 64  # neighbours that are asked for at first, beyond k


def search_around(search: Callable[[Floats, int], Found], queries: Floats, k: int, records: int, gone: Mask) -> Found:
    """Return the k nearest that are not gone, [n, k], padded with inf and -1.

    More than k are asked for, and ever more for the queries that have lost too many of them: whatever the kind of the
    index, the k nearest of what remains are found where the nearest of all are.
    """
    distances = np.full((len(queries), k), np.inf, np.float32)
    ids = np.full((len(queries), k), -1, np.int64)
    rows = np.arange(len(queries))
    more = _MORE
    while len(rows):
        asked = min(k + more, records)
        near, found = search(queries[rows], asked)
        kept = (found >= 0) & ~gone[found]
        order = np.argsort(~kept, axis=1, kind="stable")[:, :k]  # what remains first, in its order
        there = np.take_along_axis(kept, order, 1)
        distances[rows, : there.shape[1]] = np.where(there, np.take_along_axis(near, order, 1), np.inf)
        ids[rows, : there.shape[1]] = np.where(there, np.take_along_axis(found, order, 1), -1)
        lacking = (kept.sum(axis=1) < k) & (found[:, -1] >= 0)
        if asked == records:
            break
        rows = rows[lacking]
        more *= 4
    return distances, ids
