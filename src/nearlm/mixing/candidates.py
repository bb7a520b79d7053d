"""What a memory proposes: for each context some tokens, and their probabilities under one or more experts.

Three sources propose tokens: the neighbours of a search (p_kNN at several temperatures), what follows the longest
suffix of the context in the store's text (∞-gram), and what followed like contexts in the text read so far. Each
expert of a source is a distribution: its probabilities add up to 1, unless the source found nothing.
"""

from typing import NamedTuple

import numba
import numpy as np

from nearlm.base import Doubles, Floats, Int32s
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram import InfiniGram
from nearlm.search import Neighbors

FACTORS = (4.0, 2.0, 1.0, 0.5, 0.25)  # of the tuned T; each half of the one before, so that one exp serves all
MOST_FOLLOWING = 1024  # occurrences of a suffix that are looked at; of more an even sample
READ_BACK = 2048  # tokens of the text so far that are looked at
LONGEST_COPY = 24  # tokens of a repeated suffix that count
_EXPERTS = len(FACTORS)
_LEAST = 1e-30  # of the nearest one's mass: less is nothing, and slow to compute with
_ROWS = 16  # handled by one thread at a time


class Candidates(NamedTuple):
    """Tokens that a source proposes for n contexts, and their probabilities under its experts.

    `tokens` is [n, width] and `p` [n, width, experts]; of row i the first `counts[i]` are meant. `measures`, [n, m],
    are the source's own: of distances, lengths and numbers of occurrences.
    """

    tokens: Int32s
    p: Floats
    counts: Int32s
    measures: Floats

    @classmethod
    def empty(cls, rows: int, width: int, experts: int, measures: int) -> "Candidates":
        """Make room for candidates; none is proposed yet."""
        return cls(
            np.empty((rows, width), np.int32),
            np.empty((rows, width, experts), np.float32),
            np.zeros(rows, np.int32),
            np.zeros((rows, measures), np.float32),
        )

    def p_of(self, tokens: Int32s) -> Floats:
        """Return the probability of one token per row under each expert, [n, experts]."""
        out = np.zeros((len(self.counts), self.p.shape[2]), np.float32)
        _p_kernel(self.tokens, self.p, self.counts, np.ascontiguousarray(tokens, np.int32), out)
        return out

    def favourites(self, expert: int) -> tuple[Int32s, Floats]:
        """Return the likeliest token of each row under one expert, -1 if there is none, and the largest p of each."""
        token = np.full(len(self.counts), -1, np.int32)
        largest = np.zeros((len(self.counts), self.p.shape[2]), np.float32)
        _favourite_kernel(self.tokens, self.p, self.counts, expert, token, largest)
        return token, largest

    def add_to(self, p: Doubles, weights: Doubles) -> None:
        """Add Σ_e weights[i, e] p_e to rows of the whole vocabulary, [n, vocabulary]."""
        _scatter_kernel(self.tokens, self.p, self.counts, weights, p)


def from_neighbors(near: Neighbors, knn_temperature: float) -> Candidates:
    """Propose the tokens of neighbours: p_kNN at several temperatures.

    Measures: log of the nearest distance over T, and for each temperature log Σ exp(-(d - nearest) / T), of which the
    softest tells how many neighbours are about as near as the nearest.
    """
    rows, k = near.tokens.shape
    made = Candidates.empty(rows, k, len(FACTORS), 1 + len(FACTORS))
    weights = np.ones((0, 1), np.int32) if near.weights is None else near.weights
    _neighbor_kernel(near.distances, near.tokens, weights, 1.0 / knn_temperature, *made)
    return made


def from_infinigram(infinigram: InfiniGram, contexts: Contexts) -> Candidates:
    """Propose what follows the longest suffix of each context in the store's text; measures: its length, log count."""
    found = infinigram.look_up(contexts.tokens, contexts.begins, contexts.ends)
    made = Candidates.empty(len(contexts), MOST_FOLLOWING, 1, 2)
    _following_kernel(infinigram.following, found.length, found.begin, found.end, *made)
    return made


def from_text(contexts: Contexts) -> Candidates:
    """Propose what followed like contexts in the text read so far; measures: the longest match, log of how many.

    A place that has the last n tokens of the context weighs 4^n there.
    """
    made = Candidates.empty(len(contexts), READ_BACK, 1, 2)
    _text_kernel(np.ascontiguousarray(contexts.tokens), contexts.begins, contexts.ends, *made)
    return made


@numba.njit(cache=True, inline="always")
def _place(token, table, keys, tokens, count):  # type: ignore[no-untyped-def]
    """Return where a token stands in a row, which it joins if it is new: a hash table of places."""
    size = len(table)
    at = (token * 2654435761) & (size - 1)
    while True:
        place = table[at]
        if place < 0:
            table[at] = count
            keys[count] = at
            tokens[count] = token
            return count
        if tokens[place] == token:
            return place
        at = (at + 1) & (size - 1)


@numba.njit(cache=True, parallel=True, nogil=True)
def _neighbor_kernel(distances, near, weights, scale, tokens, p, counts, measures):  # type: ignore[no-untyped-def]
    rows, k = near.shape
    weighted = weights.shape[0] == rows and weights.shape[1] == k
    size = 4
    while size < 2 * k:
        size *= 2
    for chunk in numba.prange((rows + _ROWS - 1) // _ROWS):
        table = np.full(size, -1, np.int32)
        keys = np.empty(k, np.int64)
        totals = np.empty(_EXPERTS, np.float64)
        for i in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, rows)):
            nearest = np.float32(np.inf)
            for j in range(k):
                if near[i, j] >= 0:
                    nearest = min(nearest, distances[i, j])
            found = 0
            totals[:] = 0
            for j in range(k):
                if near[i, j] < 0:
                    continue
                place = _place(near[i, j], table, keys, tokens[i], found)
                if place == found:
                    found += 1
                    p[i, place] = 0
                mass = np.exp((nearest - distances[i, j]) * (scale / FACTORS[0]))
                for e in range(_EXPERTS):
                    if mass < _LEAST:
                        break
                    share = mass * weights[i, j] if weighted else mass
                    p[i, place, e] += share
                    totals[e] += share
                    mass *= mass  # the next temperature is half of this one
            counts[i] = found
            for place in range(found):
                table[keys[place]] = -1
                for e in range(_EXPERTS):
                    p[i, place, e] /= totals[e]
            if found:
                measures[i, 0] = np.log(nearest * scale + 1e-6)
                measures[i, 1:] = np.log(totals)


@numba.njit(cache=True, parallel=True, nogil=True)
def _following_kernel(following, length, begin, end, tokens, p, count, measures):  # type: ignore[no-untyped-def]
    rows, width = tokens.shape
    for chunk in numba.prange((rows + _ROWS - 1) // _ROWS):
        table = np.full(4 * width, -1, np.int32)
        keys = np.empty(width, np.int64)
        for i in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, rows)):
            occurrences = end[i] - begin[i]
            looked = min(occurrences, width)
            found = 0
            for j in range(looked):
                token = following[begin[i] + j * occurrences // looked]
                place = _place(token, table, keys, tokens[i], found)
                if place == found:
                    found += 1
                    p[i, place, 0] = 0
                p[i, place, 0] += np.float32(1)
            for place in range(found):
                table[keys[place]] = -1
                p[i, place, 0] /= np.float32(looked)
            count[i] = found
            measures[i, 0] = length[i]
            measures[i, 1] = np.log(max(occurrences, 1))


@numba.njit(cache=True, parallel=True, nogil=True)
def _text_kernel(text, begins, ends, tokens, p, count, measures):  # type: ignore[no-untyped-def]
    rows, width = tokens.shape
    for chunk in numba.prange((rows + _ROWS - 1) // _ROWS):
        table = np.full(4 * width, -1, np.int32)
        keys = np.empty(width, np.int64)
        for i in range(chunk * _ROWS, min(chunk * _ROWS + _ROWS, rows)):
            last = ends[i] - 1
            first = max(begins[i], last - width)
            found = matches = longest = 0
            total = 0.0
            for j in range(last - 1, first - 1, -1):
                if text[j] != text[last]:
                    continue
                length = 1
                while length < LONGEST_COPY and j - length >= first and text[j - length] == text[last - length]:
                    length += 1
                mass = 4.0**length
                place = _place(text[j + 1], table, keys, tokens[i], found)
                if place == found:
                    found += 1
                    p[i, place, 0] = 0
                p[i, place, 0] += mass
                total += mass
                matches += 1
                longest = max(longest, length)
            for place in range(found):
                table[keys[place]] = -1
                p[i, place, 0] /= total
            count[i] = found
            measures[i, 0] = longest
            measures[i, 1] = np.log(max(matches, 1))


@numba.njit(cache=True, parallel=True, nogil=True)
def _p_kernel(tokens, p, count, wanted, out):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(count)):
        for j in range(count[i]):
            if tokens[i, j] == wanted[i]:
                out[i] = p[i, j]
                break


@numba.njit(cache=True, parallel=True, nogil=True)
def _favourite_kernel(tokens, p, count, expert, token, largest):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(count)):
        best = np.float32(-1)
        for j in range(count[i]):
            for e in range(p.shape[2]):
                largest[i, e] = max(largest[i, e], p[i, j, e])
            if p[i, j, expert] > best:
                best = p[i, j, expert]
                token[i] = tokens[i, j]


@numba.njit(cache=True, parallel=True, nogil=True)
def _scatter_kernel(tokens, p, count, weights, out):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(count)):
        for j in range(count[i]):
            if tokens[i, j] < out.shape[1]:  # else the store holds a token that the model does not know
                for e in range(p.shape[2]):
                    out[i, tokens[i, j]] += weights[i, e] * p[i, j, e]
