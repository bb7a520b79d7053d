"""Selection of the nearest among candidates: a limit guessed from a sample, and then the k nearest within it."""

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Ids, Ints
from nearlm.search.visits import Kept, Visits

EVERY = 16  # of the records one is in the sample that a limit is guessed from
_BINS = 512


def nearest_lists(products: Floats, squares: Floats, nprobe: int) -> Ints:
    """Return the nearest lists, [n, nprobe], nearest first, by the products q·c with their centroids, and |c|².

    They are -1 where there are no more, or products are no numbers.
    """
    lists = np.full((len(products), nprobe), -1, np.int64)
    _lists_kernel(products, squares, lists)
    return lists


@numba.njit(cache=True, parallel=True, nogil=True)
def _lists_kernel(products, squares, lists):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(lists)):
        pick_lists(products[i], squares, lists[i])


@numba.njit(cache=True)
def pick_lists(products, squares, lists):  # type: ignore[no-untyped-def]
    """Write the nearest lists of one query, nearest first; what is there where there are no more stays."""
    nprobe = len(lists)
    best = np.full(nprobe, np.inf, np.float32)
    for number in range(len(squares)):
        score = squares[number] - 2 * products[number]
        if not score < best[-1]:
            continue
        place = nprobe - 1
        while place > 0 and score < best[place - 1]:
            best[place] = best[place - 1]
            lists[place] = lists[place - 1]
            place -= 1
        best[place] = score
        lists[place] = number


def guess_limits(sample: Floats, sampled: Visits, visits: Visits, k: int) -> Floats:
    """Guess from a sample, for each query, a distance within which a little more than k of its candidates lie."""
    limits = np.full(len(visits.probed), np.inf, np.float32)
    _guess_kernel(sample, sampled.begins, visits.begins, k, limits)
    return limits


def select(
    kept: Kept,
    limits: Floats,
    visits: Visits,
    offsets: Ints,
    record_ids: Ids,
    ordered: bool,
    distances: Floats,
    ids: Ints,
) -> npt.NDArray[np.bool_]:
    """Write distances and ids of the k nearest candidates of each query; say for which the limit was too low.

    Of equally near ones those come first that are met first.
    """
    missed = np.zeros(len(ids), np.bool_)
    places = visits.probed, visits.begins, offsets, record_ids
    _select_kernel(*kept, limits, *places, ordered, distances, ids, missed)
    return missed


@numba.njit(cache=True, parallel=True, nogil=True)
def _guess_kernel(sample, places, begins, k, limits):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(limits)):
        limits[i] = guess_limit(sample[places[i, 0] : places[i, -1]], k, begins[i, -1] - begins[i, 0])


@numba.njit(cache=True)
def guess_limit(sample, k, candidates):  # type: ignore[no-untyped-def]
    """Return a distance within which a little more than k of so many candidates lie; infinity if it does not pay."""
    rank = k / EVERY
    taken = int(rank + 3 * np.sqrt(rank) + 3)
    if 2 * k <= candidates and taken < len(sample):
        limit = _kth(sample, taken)[0]
        return limit if limit < np.inf else np.float32(np.inf)  # an index may hold what is no number
    return np.float32(np.inf)


@numba.njit(cache=True, parallel=True, nogil=True)
def _select_kernel(near, rows, counts, limits, probed, begins, offsets, record_ids, ordered, distances, ids, missed):  # type: ignore[no-untyped-def]
    k = ids.shape[1]
    nprobe = probed.shape[1]
    for i in numba.prange(len(ids)):
        kept = 0
        for probe in range(nprobe):
            kept += counts[i * nprobe + probe]
        if limits[i] < np.inf and kept < min(k, begins[i, -1] - begins[i, 0]):
            missed[i] = True
            continue
        values = np.empty(kept, np.float32)
        places = np.empty(kept, np.int64)
        at = 0
        for probe in range(nprobe):
            count = counts[i * nprobe + probe]
            begin = begins[i, probe]
            for j in range(count):
                values[at + j] = near[begin + j]
                places[at + j] = rows[begin + j] + offsets[probed[i, probe]]
            at += count
        write_nearest(values, places, record_ids, ordered, distances[i], ids[i])


@numba.njit(cache=True)
def write_nearest(values, places, record_ids, ordered, distances, ids):  # type: ignore[no-untyped-def]
    """Write distances and ids of the nearest of a query's candidates; their values and places change."""
    kept = len(values)
    if kept > len(ids):
        kept = _nearest(values, places, len(ids))
    if ordered:
        order = np.argsort(values[:kept], kind="mergesort")
        values = values[order]
        places = places[order]
    for j in range(kept):
        distances[j] = max(values[j], np.float32(0))
        ids[j] = record_ids[places[j]]


@numba.njit(cache=True)
def _nearest(values, places, k):  # type: ignore[no-untyped-def]
    """Move the k nearest of some candidates to the front, in their order."""
    kth, ties = _kth(values, k)
    taken = 0
    for j in range(len(values)):
        value = values[j]
        tied = (value == kth) & (ties > 0)
        values[taken] = value
        places[taken] = places[j]
        taken += (value < kth) | tied
        ties -= tied
    return min(taken, k)


@numba.njit(cache=True)
def _kth(values, k):  # type: ignore[no-untyped-def]
    """Return the k-th smallest value, and how many that are equal to it are among the k smallest.

    Values are counted into bins, by the bits of their floats, and only the bin that holds it is sorted.
    """
    bins = np.empty(len(values), np.int32)
    counts = np.zeros(_BINS, np.int32)
    _fill_bins(values.view(np.int32), bins)
    for j in range(len(bins)):
        counts[bins[j]] += 1
    chosen = 0
    while counts[chosen] < k:
        k -= counts[chosen]
        chosen += 1
    inside = np.empty(counts[chosen], np.float32)
    taken = 0
    for j in range(len(bins)):
        if bins[j] == chosen:
            inside[taken] = values[j]
            taken += 1
    inside.sort()
    ties = 1
    while ties < k and inside[k - 1 - ties] == inside[k - 1]:
        ties += 1
    return inside[k - 1], ties


@numba.njit(cache=True)
def _fill_bins(bits, bins):  # type: ignore[no-untyped-def]
    """Write the bins of floats of these bits, each as wide as the others by their bits."""
    low = high = _ordered(bits[0])
    for j in range(len(bits)):
        one = _ordered(bits[j])
        low = one if one < low else low
        high = one if one > high else high
    shift = 0
    while (np.int64(high) - low) >> shift >= _BINS:
        shift += 1
    for j in range(len(bits)):
        bins[j] = (np.int64(_ordered(bits[j])) - low) >> shift


@numba.njit(cache=True, inline="always")
def _ordered(bits):  # type: ignore[no-untyped-def]
    """Return a number that is larger for a larger float of these bits."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
