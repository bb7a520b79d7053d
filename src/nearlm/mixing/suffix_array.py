"""All contexts of a text in order, compared from their last token backwards: a suffix array of the reversed text.

A context ends at a position and reaches back to the beginning of its document; of longer ones the last `MAX_LENGTH`
tokens count. Contexts with the same last tokens thus stand together, and a binary search finds them.

They are sorted by prefix doubling (Larsson and Sadakane 2007): groups of contexts that are alike in their last h tokens
are split by the ranks that the contexts h tokens earlier have, so that each round doubles h. The first rounds compare
tokens. All groups are split before ranks change, so that the result does not depend on the number of threads.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Advance, Ids, Int32s, Ints

MAX_LENGTH = 256
_KEY_BITS = 62
_FEW = 24  # contexts that are sorted by insertion
_PIECES = 256  # that are split independently of each other
_BEGINS = 1  # a row begins a group
_SPLIT_OFF = 2  # and did not before this round

Depths = npt.NDArray[np.uint8]


class SortedContexts(NamedTuple):
    """The order of a text's contexts."""

    order: Ids  # [rows] positions where contexts end, that of the least context first
    starts: Ints  # [vocabulary + 1] the first row of the contexts that end with a token


def position_dtype(tokens: int) -> np.dtype[Any]:
    """Return the type that the positions of a text fit in."""
    return np.dtype("int32" if tokens < 2**31 else "int64")


def sorting_bytes(tokens: int) -> int:
    """Return how much memory `sort_contexts` takes for a text, its depths and result included."""
    return tokens * (2 * position_dtype(tokens).itemsize + 10)


def context_depths(bounds: Ints) -> Depths:
    """Return how many tokens of its document come before each position, at most `MAX_LENGTH` - 1."""
    depths = np.zeros(bounds[-1], np.uint8)
    _depths_kernel(np.ascontiguousarray(bounds, np.int64), depths)
    return depths


def sort_contexts(tokens: Int32s, depths: Depths, dtype: np.dtype[Any], advance: Advance) -> SortedContexts:
    """Sort the contexts of all positions that are followed by a token of their document.

    `tokens` are not negative. `advance` is told of positions whose place is found, of all in the end.
    """
    vocabulary = int(tokens.max(initial=-1)) + 1
    starts = np.zeros(vocabulary + 1, np.int64)
    _count_kernel(tokens, depths, starts)
    np.cumsum(starts, out=starts)
    rows = int(starts[-1])
    order = np.empty(rows, dtype)
    ranks = np.zeros(len(tokens), dtype)
    marks = np.zeros(rows, np.uint8)
    _place_kernel(tokens, depths, starts.copy(), order, ranks, marks)
    keys = np.empty(rows, np.int64)
    bits = (vocabulary + 1).bit_length()
    alike = 1  # last tokens that contexts of a group have in common
    left = rows
    while left and alike < MAX_LENGTH:
        pieces = _cut(marks)
        if alike == 1:
            _token_keys_kernel(tokens, depths, order, marks, keys, bits)
            alike += _KEY_BITS // bits
        else:
            _rank_keys_kernel(ranks, depths, order, marks, keys, alike)
            alike *= 2
        _split_kernel(order, keys, marks, pieces)
        still = int(_rank_kernel(order, ranks, marks, pieces))
        advance(left - still)
        left = still
    advance(left)
    return SortedContexts(order, starts)


def _cut(marks: Depths) -> Ints:
    """Return where to cut rows into pieces of whole groups."""
    wanted = np.linspace(0, len(marks), _PIECES + 1).astype(np.int64)
    _next_begin_kernel(marks, wanted)
    return wanted


@numba.njit(cache=True, nogil=True)
def _depths_kernel(bounds, depths):  # type: ignore[no-untyped-def]
    for document in range(len(bounds) - 1):
        begin = max(bounds[document], 0)
        for place in range(begin, min(bounds[document + 1], len(depths))):
            depths[place] = min(place - begin, MAX_LENGTH - 1)


@numba.njit(cache=True, nogil=True)
def _count_kernel(tokens, depths, starts):  # type: ignore[no-untyped-def]
    """Count the contexts that end with a token, at the place after it."""
    for place in range(len(tokens) - 1):
        if depths[place + 1] > 0:
            starts[tokens[place] + 1] += 1


@numba.njit(cache=True, nogil=True)
def _place_kernel(tokens, depths, free, order, ranks, marks):  # type: ignore[no-untyped-def]
    """Sort contexts by their last token; `free` is where the next one of a token goes."""
    for token in range(len(free) - 1):
        if free[token] < free[token + 1]:
            marks[free[token]] = _BEGINS
    for place in range(len(tokens) - 1):
        if depths[place + 1] > 0:
            token = tokens[place]
            order[free[token]] = place
            free[token] += 1
    begin = 0
    for row in range(len(order)):
        if marks[row]:
            begin = row
        ranks[order[row]] = begin


@numba.njit(cache=True, nogil=True)
def _next_begin_kernel(marks, rows):  # type: ignore[no-untyped-def]
    """Move each of some rows on to where a group begins."""
    for i in range(len(rows)):
        while rows[i] < len(marks) and marks[rows[i]] == 0:
            rows[i] += 1


@numba.njit(cache=True, nogil=True, inline="always")
def _alone(marks, row):  # type: ignore[no-untyped-def]
    """Tell whether a row is a group of its own."""
    return marks[row] > 0 and (row + 1 == len(marks) or marks[row + 1] > 0)


@numba.njit(cache=True, parallel=True, nogil=True)
def _token_keys_kernel(tokens, depths, order, marks, keys, bits):  # type: ignore[no-untyped-def]
    """Let the key of a row be the tokens before its last, as many as there is room for."""
    for row in numba.prange(len(order)):
        if not _alone(marks, row):
            place = np.int64(order[row])
            key = np.int64(0)
            for back in range(1, _KEY_BITS // bits + 1):
                key <<= bits
                if depths[place] >= back:
                    key |= tokens[place - back] + 1
            keys[row] = key


@numba.njit(cache=True, parallel=True, nogil=True)
def _rank_keys_kernel(ranks, depths, order, marks, keys, alike):  # type: ignore[no-untyped-def]
    """Let the key of a row be the rank of the context without its last `alike` tokens."""
    for row in numba.prange(len(order)):
        if not _alone(marks, row):
            place = np.int64(order[row])
            keys[row] = np.int64(ranks[place - alike]) if depths[place] >= alike else np.int64(-1)


@numba.njit(cache=True, parallel=True, nogil=True)
def _split_kernel(order, keys, marks, pieces):  # type: ignore[no-untyped-def]
    """Sort the rows of each group by their keys, and mark where another key begins."""
    for piece in numba.prange(len(pieces) - 1):
        begin = pieces[piece]
        while begin < pieces[piece + 1]:
            end = begin + 1
            while end < pieces[piece + 1] and marks[end] == 0:
                end += 1
            if end - begin > 1:
                _sort(keys, order, begin, end)
                for row in range(begin + 1, end):
                    if keys[row] != keys[row - 1]:
                        marks[row] = _SPLIT_OFF
            begin = end


@numba.njit(cache=True, parallel=True, nogil=True)
def _rank_kernel(order, ranks, marks, pieces):  # type: ignore[no-untyped-def]
    """Give the groups that were split off ranks of their own; return how many rows are not alone in their group."""
    left = 0
    for piece in numba.prange(len(pieces) - 1):
        begin = pieces[piece]
        split = False
        for row in range(pieces[piece], pieces[piece + 1]):
            if marks[row] > 0:
                begin = row
                split = marks[row] == _SPLIT_OFF
                marks[row] = _BEGINS
            if split:
                ranks[order[row]] = begin
            if begin < row or not (row + 1 == len(marks) or marks[row + 1] > 0):
                left += 1
    return left


@numba.njit(cache=True, nogil=True)
def _sort(keys, order, begin, end):  # type: ignore[no-untyped-def]
    """Sort order[begin:end] by keys: a quicksort that sets equal keys aside."""
    while end - begin > _FEW:
        pivot = _pivot(keys, begin, end)
        below = begin  # keys before it are smaller than the pivot
        row = begin
        above = end  # keys from here on are greater
        while row < above:
            if keys[row] < pivot:
                keys[row], keys[below] = keys[below], keys[row]
                order[row], order[below] = order[below], order[row]
                below += 1
                row += 1
            elif keys[row] > pivot:
                above -= 1
                keys[row], keys[above] = keys[above], keys[row]
                order[row], order[above] = order[above], order[row]
            else:
                row += 1
        if below - begin < end - above:
            _sort(keys, order, begin, below)
            begin = above
        else:
            _sort(keys, order, above, end)
            end = below
    for row in range(begin + 1, end):
        key = keys[row]
        place = order[row]
        to = row
        while to > begin and keys[to - 1] > key:
            keys[to] = keys[to - 1]
            order[to] = order[to - 1]
            to -= 1
        keys[to] = key
        order[to] = place


@numba.njit(cache=True, nogil=True, inline="always")
def _pivot(keys, begin, end):  # type: ignore[no-untyped-def]
    """Return the median of three keys, at places that differ from one group to the next."""
    step = (end - begin) // 3
    at = ((end * 2654435761 + begin) & 0x7FFFFFFF) % step
    a = keys[begin + at]
    b = keys[begin + step + at]
    c = keys[begin + 2 * step + at]
    return max(min(a, b), min(max(a, b), c))
