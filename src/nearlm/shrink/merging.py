"""Greedy merging (Algorithm 1 of the paper): a record absorbs those of its neighbours that have the same target.

Records are visited in a seeded random order. One that has been absorbed is skipped, and one that has absorbed is
never absorbed itself: a record is free ("s = 1") as long as neither has happened to it in this pass.
"""

import numba
import numpy as np

from nearlm.base import Int32s, OptionError
from nearlm.shrink.neighbors import saved_neighbors
from nearlm.shrink.options import MOST_NEIGHBORS, PruneOptions
from nearlm.shrink.selection import Selection, target
from nearlm.store import DEFAULT, Derivation

_AHEAD = 8


def select(work: Derivation, options: PruneOptions) -> Selection:
    """Merge records, by the number of neighbours given, or the smallest that reaches `keep`."""
    store = work.parent
    most = options.neighbors or MOST_NEIGHBORS
    spare = work.job.folder / "search"
    neighbors = saved_neighbors(store, options.index or DEFAULT, most, work.reporter, spare)
    values = store.values[:]
    order = np.random.default_rng(options.seed or 0).permutation(len(store)).astype(np.int32)
    k = min(most, neighbors.shape[1])
    least = 1
    if options.keep is not None:
        least = target(options.keep, len(store))
        k = work.job.once("merge", int, lambda: _fewest_neighbors(neighbors, values, order, least))
    leaders, _ = merge(neighbors, k, values, order, least)
    return Selection.of_leaders(leaders, {"neighbors": k})


def merge(neighbors: Int32s, k: int, values: Int32s, order: Int32s, least: int = 1) -> tuple[Int32s, int]:
    """Merge by the first k neighbours, and return which record stands for each, and how many are left.

    A record that was not absorbed stands for itself. Merging stops when only `least` records are left.
    """
    absorbers = np.arange(len(values), dtype=np.int32)
    free = values.astype(np.int32)
    return absorbers, _merge_kernel(np.asarray(neighbors), k, order, least, free, absorbers)[0]


def _fewest_neighbors(neighbors: Int32s, values: Int32s, order: Int32s, least: int) -> int:
    """Return the smallest number of neighbours with which merging gets down to `least` records."""
    left = len(values)
    for k in range(1, neighbors.shape[1] + 1):
        if k > 1:
            left = min(left, merge(neighbors, k, values, order, least)[1])
        if left <= least:
            return k
    raise OptionError(
        f"merging by up to {neighbors.shape[1]} neighbours leaves {left:,} of {len(values):,} records, "
        f"`keep={least / len(values):.4g}` means {least:,}; the least that can be reached is "
        f"`keep={left / len(values):.4f}` (the result can be pruned again)"
    )


@numba.njit(cache=True, nogil=True)
def _merge_kernel(neighbors, k, order, least, free, absorbers):  # type: ignore[no-untyped-def]
    """Merge and return how many records are left; `free` holds a record's value while it is free, -1 after.

    Rows are read some records ahead (`touched` makes sure that they are), so that memory is not waited for.
    """
    left = len(free)
    touched = 0
    for p in range(len(order)):
        if p + _AHEAD < len(order) and free[order[p + _AHEAD]] >= 0:
            ahead = order[p + _AHEAD]
            touched ^= neighbors[ahead, 0] ^ neighbors[ahead, k - 1]
        i = order[p]
        value = free[i]
        if value < 0:
            continue
        for j in range(k):
            t = neighbors[i, j]
            if t < 0 or free[t] != value or t == i:
                continue
            if left <= least:
                return left, touched
            absorbers[t] = i
            free[t] = -1
            free[i] = -1
            left -= 1
    return left, touched
