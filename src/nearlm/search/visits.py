"""The lists that some queries probe, list by list, and the distances of their records.

With codes c from -128 to 127, scale s and centre m (per dimension) a record is x = centroid + m + s·c, so for a query
q and r = q - centroid - m the squared distance is |r|² + Σ s²c² - 2 Σ r·s·c; the middle term is a record's `bias`.
r·s is rounded for each list. For codes of 8 bits it has 16, which changes a distance by a 30,000th of its terms, about
as much as computing with 32-bit floats would. For codes of 4 bits it has 8, far finer than these, as long as axes are
about equally wide, as those of `auto` are. Rounding does the same to all axes, but codes are coarse where an axis is
wide: if one is much wider than the others, weights have 15 bits in two parts, which are multiplied one after the other.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Int32s, Ints
from nearlm.search.tiles import LANES, NIBBLE_OFFSET, PACKED_LANES
from nearlm.search.vectors import PART, ROWS, distances_within, lowest_bit, multiply_parts

_MOST = 2**15 - 1  # of a weight of 16 bits
_MOST_BYTE = 2**7 - 1  # of one of 8
_UNLIKE = 30  # times the mean of scale⁴: rounding to 8 bits then adds a tenth to the errors of 4-bit codes
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


class Coding(NamedTuple):
    """How weights must lie for their codes: those of the first `half` axes, and from `rest` on the others.

    A weight is at most `most`, in one part or two; `offset` is what the product adds to each code.
    """

    half: int
    rest: int
    most: int
    offset: int
    parts: int
    kind: npt.DTypeLike

    @classmethod
    def of(cls, scale: Floats, *, packed: bool) -> "Coding":
        """Return that for codes with steps of these sizes, two of which may be packed into a byte."""
        dim = len(scale)
        if not packed:
            width = _padded(dim, LANES)
            return cls(dim, width, min(_MOST, _MOST_SUM // (128 * width)), 0, 1, np.int16)
        half = -(-dim // 2)
        width = _padded(half, PACKED_LANES)
        errors = np.asarray(scale, np.float64) ** 4
        if errors.max(initial=0) <= _UNLIKE * errors.sum() / dim:
            return cls(half, width, _MOST_BYTE, NIBBLE_OFFSET, 1, np.int8)
        most = min(_MOST_BYTE * PART - PART // 2, _MOST_SUM // (2 * NIBBLE_OFFSET * 2 * width))
        return cls(half, width, most, NIBBLE_OFFSET, 2, np.int8)

    @property
    def code_width(self) -> int:
        """How wide a record's codes are when they are multiplied, in bytes."""
        return self.rest

    @property
    def width(self) -> int:
        """How many weights a query has."""
        return 2 * self.rest if self.offset else self.rest

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """What kernels take of it."""
        return self.half, self.rest, self.most, self.offset


def _padded(width: int, lanes: int) -> int:
    return -(-width // lanes) * lanes


class Weights(NamedTuple):
    """Queries as they are multiplied with codes: weights [pairs, parts, width]; d = constant + bias - step · sum."""

    weights: npt.NDArray[np.integer[Any]]
    constant: Floats
    step: Floats


class Kept(NamedTuple):
    """Candidates: their distances and places in their list, and how many there are of each pair of `probed`."""

    distances: Floats
    rows: Int32s
    counts: Int32s


def weigh(queries: Floats, centroids: Floats, scale: Floats, centre: Floats, visits: Visits, coding: Coding) -> Weights:
    """Turn queries into weights of codes, for each pair in its order."""
    count = len(visits.pairs)
    weights = np.empty((count, coding.parts, coding.width), coding.kind)
    made = Weights(weights, np.empty(count, np.float32), np.empty(count, np.float32))
    _weigh_kernel(queries, centroids, scale, centre, visits.probed, visits.pairs, coding.numbers, *made)
    return made


@numba.njit(cache=True, parallel=True, nogil=True)
def _weigh_kernel(queries, centroids, scale, centre, probed, pairs, coding, weights, constant, step):  # type: ignore[no-untyped-def]
    for p in numba.prange(len(pairs)):
        i, probe = divmod(pairs[p], probed.shape[1])
        centroid = centroids[max(probed[i, probe], 0)]
        constant[p], step[p] = weigh_one(queries[i], centroid, scale, centre, coding, weights[p])


@numba.njit(cache=True)
def weigh_one(query, centroid, scale, centre, coding, weights):  # type: ignore[no-untyped-def]
    """Write a query's weights of the codes of one list; return the constant and the step of its distances."""
    half, other, most, offset = coding
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
    weights[:] = 0
    if not np.isfinite(constant):
        return np.float32(np.inf), np.float32(0)
    if not 0 < finer < np.inf:
        return constant, np.float32(0)
    total = np.int64(0)
    for d in range(dim):
        place = d if d < half else other + d - half
        weight = np.int32(np.rint(rest[d] * finer))
        total += weight
        if len(weights) == 2:
            high = (weight + PART // 2) // PART
            weights[1, place] = weight - high * PART
            weight = high
        weights[0, place] = weight
    step = np.float32(2) * largest / np.float32(most)
    return constant + step * np.float32(offset * total), step


def visit(weights: Weights, limits: Floats, lists: Any, visits: Visits, room: Kept) -> Kept:
    """Keep, in the room that there is, the records within the limit of each query that looks at them."""
    width = weights.weights.shape[2] // (2 if lists.packed else 1)
    codes = lists.codes.view(np.int8)
    _visit_kernel(*weights, limits, (codes, width, lists.bias, lists.offsets), *visits, *room)
    return room


@numba.njit(cache=True, parallel=True, nogil=True)
def _visit_kernel(  # type: ignore[no-untyped-def]
    weights, constant, step, limits, lists, probed, pairs, groups, begins, every, distances, rows, counts
):
    codes, width, bias, offsets = lists
    parts = weights.shape[1]
    flat = weights.reshape(-1, weights.shape[2])
    for g in numba.prange(len(groups) - 1):
        begin = groups[g]
        number = probed[pairs[begin] // probed.shape[1], pairs[begin] % probed.shape[1]]
        records = (offsets[number + 1] - offsets[number] + every - 1) // every
        sums = np.empty((4 * parts, ROWS), np.int32)
        near = np.empty(ROWS, np.float32)
        norms = np.empty(ROWS, np.float32)
        block = np.zeros((ROWS, width), np.int8)
        here_pairs = pairs[begin : groups[g + 1]]
        starts, within_of = _places_and_limits(here_pairs, begins, limits)
        ends = starts.copy()  # of what has been kept of each pair
        for first in range(0, records, ROWS):
            here = min(ROWS, records - first)
            row = offsets[number] + first * every
            for r in range(ROWS):
                norms[r] = bias[row + r * every] if r < here else np.float32(np.nan)  # is within no limit
            whole = here == ROWS and codes.shape[1] == width
            if not whole:
                for r in range(here):
                    block[r, : codes.shape[1]] = codes[row + r * every]
            m = 0
            while m < len(ends):
                some = 4 if len(ends) - m >= 4 else 1
                if whole:
                    multiply_parts(flat, begin + m, some, parts, codes, row, every, sums)
                else:
                    multiply_parts(flat, begin + m, some, parts, block, 0, 1, sums)
                for n in range(m, m + some):
                    pair = begin + n
                    within = distances_within(sums, n - m, constant[pair], step[pair], norms, within_of[n], near)
                    ends[n] = keep(within, near, first, distances, rows, ends[n])
                m += some
        for m in range(len(ends)):
            counts[here_pairs[m]] = ends[m] - starts[m]


@numba.njit(cache=True)
def _places_and_limits(pairs, begins, limits):  # type: ignore[no-untyped-def]
    """Return where the room of each pair begins, and the limit of its query."""
    places = np.empty(len(pairs), np.int64)
    within = np.empty(len(pairs), np.float32)
    for m in range(len(pairs)):
        i, probe = divmod(pairs[m], begins.shape[1] - 1)
        places[m] = begins[i, probe]
        within[m] = limits[i]
    return places, within


@numba.njit(cache=True, inline="always")
def keep(within, near, first, distances, rows, at):  # type: ignore[no-untyped-def]
    """Write what is within the limit from some place on, bit by bit; return where it ends."""
    while within:
        r = lowest_bit(within)
        distances[at] = near[r]
        rows[at] = first + r
        at += 1
        within &= within - np.uint32(1)
    return at
