"""A search of one query or a few: everything from the coarse quantiser to the ids in one call of a kernel.

Steps of a batch that take a microsecond per query take twenty each for a single one: calls from Python, threads that
are woken, arrays that are made. Here one thread does all of them, one query after the other, in memory that is used
again. What it finds is what a batch finds, to the bit: the same functions compute it.
"""

import threading
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Ints
from nearlm.search.nearest import EVERY, guess_limit, pick_lists, write_nearest
from nearlm.search.vectors import ROWS, distances_within, multiply, multiply_parts, padded, widen
from nearlm.search.visits import keep, weigh_one


class _Room(NamedTuple):
    """What one thread works in: products with centroids, weights, their constants and steps, candidates and places."""

    products: Floats
    weights: npt.NDArray[np.integer[Any]]
    constants: Floats
    steps: Floats
    distances: Floats
    rows: npt.NDArray[np.int32]
    places: Ints
    block: npt.NDArray[np.int8]


class FewScan:
    """Searches the lists of a `ListScan` for a few queries at a time."""

    def __init__(self, scan: Any):
        lists = scan.lists
        self._width = padded(len(scan.scale))
        self._coding = scan.coding
        self._lists = (lists.offsets, lists.ids, lists.codes.view(np.int8), lists.bias)
        self._code = (scan.centroids, scan.scale, scan.centre, self._coding.numbers)
        self._means = np.zeros((0, self._width), np.float32)
        self._squares = np.zeros(0, np.float32)
        if scan.means is not None:
            count = -(-len(scan.means) // 4) * 4
            self._means = np.zeros((count, self._width), np.float32)
            self._means[: len(scan.means)] = widen(scan.means, self._width)
            self._squares = scan.squares
        self._longest = np.sort(np.diff(lists.offsets))[::-1]
        self._rooms = threading.local()

    def search(self, queries: Floats, probed: Ints, ordered: bool, distances: Floats, ids: Ints) -> None:
        """Write distances and ids of the nearest records, [n, k], in the lists `probed` [n, nprobe].

        Lists are found here, unless the coarse quantiser is not one of plain centroids.
        """
        wide = widen(queries, self._width) if len(self._means) else queries
        room = self._room(probed.shape[1])
        _search_kernel(
            queries, wide, self._means, self._squares, self._code, self._lists, room, probed, ordered, distances, ids
        )

    def _room(self, nprobe: int) -> tuple[Any, ...]:
        """Return room for all candidates of a query, the same each time."""
        rooms: dict[int, _Room] = vars(self._rooms).setdefault("by_lists", {})
        if nprobe not in rooms:
            most = int(self._longest[:nprobe].sum()) + ROWS
            rooms[nprobe] = _Room(
                np.empty((1, len(self._means)), np.float32),
                np.empty((nprobe, self._coding.parts, self._coding.width), self._coding.kind),
                np.empty(nprobe, np.float32),
                np.empty(nprobe, np.float32),
                np.empty(most, np.float32),
                np.empty(most, np.int32),
                np.empty(most, np.int64),
                np.zeros((ROWS, self._coding.code_width), np.int8),
            )
        return tuple(rooms[nprobe])


@numba.njit(cache=True, nogil=True)
def _search_kernel(queries, wide, means, squares, code, lists, room, probed, ordered, distances, ids):  # type: ignore[no-untyped-def]
    offsets, record_ids, _, _ = lists
    k = ids.shape[1]
    products, _, _, _, near, _, places, _ = room
    for i in range(len(queries)):
        if len(means):
            for row in range(0, len(means), 4):
                multiply(wide, i, 1, means, row, 1, 4, products[:, row:])
            pick_lists(products[0], squares, probed[i])
        candidates = _weigh(queries[i], probed[i], code, offsets, room)
        sampled = _visit(probed[i], EVERY, np.float32(np.inf), lists, room)
        limit = guess_limit(near[:sampled], k, candidates)
        kept = _visit(probed[i], 1, limit, lists, room)
        if limit < np.inf and kept < min(k, candidates):
            kept = _visit(probed[i], 1, np.float32(np.inf), lists, room)
        write_nearest(near[:kept], places[:kept], record_ids, ordered, distances[i], ids[i])


@numba.njit(cache=True)
def _weigh(query, probed, code, offsets, room):  # type: ignore[no-untyped-def]
    """Turn a query into weights for each of its lists; return how many records these have."""
    centroids, scale, centre, coding = code
    _, weights, constants, steps, _, _, _, _ = room
    candidates = 0
    for probe in range(len(probed)):
        number = probed[probe]
        if number >= 0:
            found = weigh_one(query, centroids[number], scale, centre, coding, weights[probe])
            constants[probe], steps[probe] = found
            candidates += offsets[number + 1] - offsets[number]
    return candidates


@numba.njit(cache=True)
def _visit(probed, every, limit, lists, room):  # type: ignore[no-untyped-def]
    """Keep the records of the lists within a limit, or of every so manieth; return how many there are."""
    offsets, _, codes, bias = lists
    _, weights, constants, steps, distances, rows, places, block = room
    parts = weights.shape[1]
    flat = weights.reshape(-1, weights.shape[2])
    sums = np.empty((2, ROWS), np.int32)
    near = np.empty(ROWS, np.float32)
    norms = np.empty(ROWS, np.float32)
    kept = 0
    for probe in range(len(probed)):
        number = probed[probe]
        if number < 0:
            continue
        begin = kept
        records = (offsets[number + 1] - offsets[number] + every - 1) // every
        for first in range(0, records, ROWS):
            here = min(ROWS, records - first)
            row = offsets[number] + first * every
            for r in range(ROWS):
                norms[r] = bias[row + r * every] if r < here else np.float32(np.nan)  # is within no limit
            if here == ROWS and codes.shape[1] == block.shape[1]:
                multiply_parts(flat, probe, 1, parts, codes, row, every, sums)
            else:
                for r in range(here):
                    block[r, : codes.shape[1]] = codes[row + r * every]
                multiply_parts(flat, probe, 1, parts, block, 0, 1, sums)
            within = distances_within(sums, 0, constants[probe], steps[probe], norms, limit, near)
            kept = keep(within, near, first, distances, rows, kept)
        for j in range(begin, kept):
            places[j] = offsets[number] + rows[j]
    return kept
