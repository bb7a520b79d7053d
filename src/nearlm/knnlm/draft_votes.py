"""Votes among places of a text: what followed where the last tokens were read before, joined into one chain.

A place is a position whose token is the last one that was read. Around it lies a window: `BACK` tokens up to and with
the place, which tell how much of what was read stands there too, and the `AHEAD` tokens that follow, -1 where
the document has ended.
"""

from typing import NamedTuple

import numba
import numpy as np

from nearlm.base import Doubles, Int32s, Ints

BACK = 24
AHEAD = 16
WIDTH = BACK + AHEAD
READ_BACK = 4096  # tokens of the text so far that are looked at for repeats
_LONGEST = 16  # tokens alike beyond which a place counts no more
_BASE = 2.0  # how much more a place counts for each token that is alike


class Chain(NamedTuple):
    """Tokens that follow by vote, and of each: tokens alike before it, and its share of the votes."""

    tokens: Int32s
    alike: Int32s
    shares: Doubles

    def __len__(self) -> int:
        return len(self.tokens)


def windows_of(text: Int32s, bounds: Ints, places: Ints) -> Int32s:
    """Return the windows around places of a text whose documents begin at `bounds`, [n, BACK + AHEAD]."""
    windows = np.full((len(places), WIDTH), -1, np.int32)
    _window_kernel(text, bounds, places, windows)
    return windows


def repeats_of(read: Int32s, most: int) -> Int32s:
    """Return the windows of places in what was read that are most like its end, at most `most`, the latest first.

    Where a window reaches the end of what was read it goes on with its own tokens: a text that repeats itself is
    expected to go on doing so.
    """
    windows = np.full((most, WIDTH), -1, np.int32)
    return windows[: _repeat_kernel(read, windows)]


def vote(windows: Int32s, read: Int32s) -> Chain:
    """Join windows into a chain: at each step the token of most votes; a place counts by how much is alike there."""
    tokens = np.empty(AHEAD, np.int32)
    alike = np.empty(AHEAD, np.int32)
    shares = np.empty(AHEAD)
    length = _vote_kernel(windows, read, tokens, alike, shares)
    return Chain(tokens[:length], alike[:length], shares[:length])


def no_chain() -> Chain:
    """Return the chain of no places."""
    return Chain(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))


@numba.njit(cache=True, nogil=True)
def _window_kernel(text, bounds, places, windows):  # type: ignore[no-untyped-def]
    for row in range(len(places)):
        place = places[row]
        document = np.searchsorted(bounds, place, side="right")
        begin = bounds[document - 1]
        end = min(bounds[document], len(text))
        for column in range(WIDTH):
            at = place - BACK + 1 + column
            if begin <= at < end:
                windows[row, column] = text[at]


@numba.njit(cache=True, nogil=True)
def _alike(text, place, read, most):  # type: ignore[no-untyped-def]
    """Count the tokens up to a place that are those up to the end of what was read."""
    last = len(read) - 1
    count = 0
    while count < most and count <= place and text[place - count] == read[last - count]:
        count += 1
    return count


@numba.njit(cache=True, nogil=True)
def _repeat_kernel(read, windows):  # type: ignore[no-untyped-def]
    last = len(read) - 1
    most = len(windows)
    lengths = np.zeros(most, np.int64)
    places = np.zeros(most, np.int64)
    found = 0
    for place in range(last - 1, max(last - READ_BACK, 0) - 1, -1):
        if read[place] != read[last]:
            continue
        length = _alike(read, place, read, BACK)
        to = found
        while to > 0 and lengths[to - 1] < length:
            to -= 1
        if to == most:
            continue
        found = min(found + 1, most)
        for row in range(found - 1, to, -1):
            lengths[row] = lengths[row - 1]
            places[row] = places[row - 1]
        lengths[to] = length
        places[to] = place
    for row in range(found):
        period = last - places[row]
        for column in range(WIDTH):
            at = places[row] - BACK + 1 + column
            if at > last:
                windows[row, column] = windows[row, column - period]
            elif at >= 0:
                windows[row, column] = read[at]
    return found


@numba.njit(cache=True, nogil=True)
def _winner(candidates, counts):  # type: ignore[no-untyped-def]
    """Return the token of most votes among those of all rows that count, -1 if none does, its votes, and all votes."""
    best = -1
    most = 0.0
    total = 0.0
    for row in range(len(candidates)):
        if candidates[row] < 0:
            counts[row] = 0.0
        total += counts[row]
        first = counts[row] > 0  # of its token: the others are counted with it
        for other in range(row):
            if counts[other] > 0 and candidates[other] == candidates[row]:
                first = False
                break
        if not first:
            continue
        votes = 0.0
        for other in range(row, len(candidates)):
            if candidates[other] == candidates[row]:
                votes += counts[other]
        if votes > most:
            most = votes
            best = candidates[row]
    return best, most, total


@numba.njit(cache=True, nogil=True)
def _vote_kernel(windows, read, tokens, alike, shares):  # type: ignore[no-untyped-def]
    rows = len(windows)
    lengths = np.zeros(rows, np.int64)
    counts = np.zeros(rows)
    for row in range(rows):
        lengths[row] = _alike(windows[row], BACK - 1, read, min(BACK, len(read)))
        counts[row] = _BASE ** min(lengths[row], _LONGEST)
    for step in range(len(tokens)):
        candidates = windows[:, BACK + step]
        best, votes, total = _winner(candidates, counts)
        if best < 0:
            return step
        longest = 0
        for row in range(rows):
            if candidates[row] != best:
                counts[row] = 0.0
            elif counts[row] > 0:
                longest = max(longest, lengths[row])
        tokens[step] = best
        alike[step] = longest + step
        shares[step] = votes / total
    return len(tokens)
