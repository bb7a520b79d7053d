"""The lists that some queries probe, list by list, and the distances of their records.

With codes c from -128 to 127, scale s and centre m (per dimension) a record is x = centroid + m + s·c, so for a query
q and r = q - centroid - m the squared distance is |r|² + Σ s²c² - 2 Σ r·s·c; the middle term is a record's `bias`.
r·s is rounded to 16 bits for each list, which changes a distance by a 30,000th of its terms: about as much as
computing with 32-bit floats would.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Int32s, Ints
from nearlm.search.packing import unpack_row
from nearlm.search.vectors import ROWS, distances_within, lowest_bit, multiply, padded

_MOST = 2**15 - 1  # of a weight
_MOST_SUM = 2**31 - 1


class Visits(NamedTuple):
    """Which query looks at which list: `probed` [n, nprobe], and these as pairs, grouped by list.

    `pairs` are places in `probed`; those of one list are `pairs[groups[g] : groups[g + 1]]`. Of a list every record is
    looked at, or every so manieth. `begins` [n, nprobe + 1] says where there is room for the records of each pair.
    """

    probed: Ints
    pairs: Ints
    groups: Ints
    begins: Ints
    every: int

    @classmethod
    def plan(cls, probed: Ints, offsets: Ints) -> "Visits":
        """Group what was probed by list; what is -1 is no list."""
        pairs, groups = _group(probed.reshape(-1))
        return cls(probed, pairs, groups, _room(probed, offsets, 1), 1)

    def sample(self, offsets: Ints, every: int) -> "Visits":
        """Return the same visits, in which only every so manieth record is looked at."""
        return self._replace(begins=_room(self.probed, offsets, every), every=every)

    @property
    def candidates(self) -> int:
        """How many records are looked at, all queries together."""
        return int(self.begins[-1, -1])


@numba.njit(cache=True, nogil=True)
def _group(probed):  # type: ignore[no-untyped-def]
    """Return the places of lists in ascending order of list, and where each list begins among them, and the end."""
    pairs = np.argsort(probed, kind="mergesort")
    groups = np.empty(len(probed) + 1, np.int64)
    count = 0
    before = -1
    for place in range(len(pairs)):
        number = probed[pairs[place]]
        if number > before:
            groups[count] = place
            before = number
            count += 1
    groups[count] = len(pairs)
    return pairs, groups[: count + 1]


@numba.njit(cache=True, nogil=True)
def _room(probed, offsets, every):  # type: ignore[no-untyped-def]
    """Return where the records of each pair begin, if every so manieth is looked at, one query after the other."""
    begins = np.empty((probed.shape[0], probed.shape[1] + 1), np.int64)
    at = 0
    for i in range(len(probed)):
        begins[i, 0] = at
        for probe in range(probed.shape[1]):
            number = probed[i, probe]
            if number >= 0:
                at += (offsets[number + 1] - offsets[number] + every - 1) // every
            begins[i, probe + 1] = at
    return begins


class Weights(NamedTuple):
    """Queries as they are multiplied with codes: of each pair 16-bit weights, and d = constant + bias - step · sum."""

    weights: npt.NDArray[np.int16]
    constant: Floats
    step: Floats


class Kept(NamedTuple):
    """Candidates: their distances and places in their list, and how many there are of each pair of `probed`."""

    distances: Floats
    rows: Int32s
    counts: Int32s


def weigh(queries: Floats, centroids: Floats, scale: Floats, centre: Floats, visits: Visits) -> Weights:
    """Turn queries into weights of codes, for each pair in its order."""
    count = len(visits.pairs)
    width = padded(queries.shape[1])
    made = Weights(np.empty((count, width), np.int16), np.empty(count, np.float32), np.empty(count, np.float32))
    _weigh_kernel(queries, centroids, scale, centre, visits.probed, visits.pairs, most_weight(width), *made)
    return made


def most_weight(width: int) -> int:
    """Return the largest weight for which sums of so many products with codes fit in 32 bits."""
    return min(_MOST, _MOST_SUM // (128 * width))


@numba.njit(cache=True, parallel=True, nogil=True)
def _weigh_kernel(queries, centroids, scale, centre, probed, pairs, most, weights, constant, step):  # type: ignore[no-untyped-def]
    for p in numba.prange(len(pairs)):
        i, probe = divmod(pairs[p], probed.shape[1])
        centroid = centroids[max(probed[i, probe], 0)]
        constant[p], step[p] = weigh_one(queries[i], centroid, scale, centre, most, weights[p])


@numba.njit(cache=True)
def weigh_one(query, centroid, scale, centre, most, weights):  # type: ignore[no-untyped-def]
    """Write a query's weights of the codes of one list; return the constant and the step of its distances."""
    dim = len(query)
    largest = np.float32(0)
    squares = np.zeros(4, np.float64)
    rest = np.empty(dim, np.float32)
    for d in range(dim):
        away = query[d] - centroid[d] - centre[d]
        rest[d] = away * scale[d]
        largest = max(largest, abs(rest[d]))
        squares[d & 3] += away * away
    constant = np.float32(squares.sum())
    finer = np.float32(most) / largest if 0 < largest < np.inf else np.float32(0)
    for d in range(dim):
        weights[d] = np.int16(np.rint(rest[d] * finer)) if finer > 0 else np.int16(0)
    weights[dim:] = 0
    if not np.isfinite(constant):
        return np.float32(np.inf), np.float32(0)
    return constant, np.float32(2) * largest / np.float32(most)


def visit(weights: Weights, limits: Floats, lists: Any, visits: Visits, room: Kept) -> Kept:
    """Keep, in the room that there is, the records within the limit of each query that looks at them."""
    codes = lists.codes.view(np.int8)  # one kernel for both kinds
    _visit_kernel(*weights, limits, (codes, lists.packed, lists.bias, lists.offsets), *visits, *room)
    return room


@numba.njit(cache=True, parallel=True, nogil=True)
def _visit_kernel(  # type: ignore[no-untyped-def]
    weights, constant, step, limits, lists, probed, pairs, groups, begins, every, distances, rows, counts
):
    codes, packed, bias, offsets = lists
    nprobe = probed.shape[1]
    for g in numba.prange(len(groups) - 1):
        number = probed[pairs[groups[g]] // nprobe, pairs[groups[g]] % nprobe]
        records = (offsets[number + 1] - offsets[number] + every - 1) // every
        sums = np.empty((4, ROWS), np.int32)
        near = np.empty(ROWS, np.float32)
        norms = np.empty(ROWS, np.float32)
        block = np.zeros((ROWS, weights.shape[1]), np.int8)
        for m in range(groups[g], groups[g + 1]):
            counts[pairs[m]] = 0
        for first in range(0, records, ROWS):
            here = min(ROWS, records - first)
            row = offsets[number] + first * every
            for r in range(ROWS):
                norms[r] = bias[row + r * every] if r < here else np.float32(np.nan)  # is within no limit
            whole = here == ROWS and codes.shape[1] == weights.shape[1] and not packed
            if packed:
                for r in range(here):
                    unpack_row(codes, row + r * every, block[r])
            elif not whole:
                for r in range(here):
                    block[r, : codes.shape[1]] = codes[row + r * every]
            m = groups[g]
            while m < groups[g + 1]:
                some = 4 if groups[g + 1] - m >= 4 else 1
                if whole:
                    multiply(weights, m, some, codes, row, every, ROWS, sums)
                else:
                    multiply(weights, m, some, block, 0, 1, ROWS, sums)
                for n in range(some):
                    pair = pairs[m + n]
                    limit = limits[pair // nprobe]
                    within = distances_within(sums, n, constant[m + n], step[m + n], norms, limit, near)
                    at = begins[pair // nprobe, pair % nprobe] + counts[pair]
                    counts[pair] += keep(within, near, first, distances[at:], rows[at:])
                m += some


@numba.njit(cache=True, inline="always")
def keep(within, near, first, distances, rows):  # type: ignore[no-untyped-def]
    """Write what is within the limit, bit by bit; return how many there are."""
    kept = 0
    while within:
        r = lowest_bit(within)
        distances[kept] = near[r]
        rows[kept] = first + r
        kept += 1
        within &= within - np.uint32(1)
    return kept
