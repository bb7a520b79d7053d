"""What a memory proposes: for each context some tokens, and their probabilities under one or more experts.

Three sources propose tokens: the neighbours of a search (p_kNN at several temperatures), what follows the longest
suffix of the context in the store's text (∞-gram), and what followed like contexts in the text read so far. Each
expert of a source is a distribution: its probabilities add up to 1, unless the source found nothing.
"""

from typing import NamedTuple

import numba
import numpy as np

from nearlm.base import Doubles, Floats, Int32s, Ints
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.equations import Masses
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.token_tables import find, place_of, table_for
from nearlm.search import Neighbors

FACTORS = (4.0, 2.0, 1.0, 0.5, 0.25)  # of the tuned T; each half of the one before, so that one exp serves all
MAIN = FACTORS.index(1.0)
MOST_FOLLOWING = 1024  # occurrences of a suffix that are looked at; of more an even sample
READ_BACK = 2048  # tokens of the text so far that are looked at
LONGEST_COPY = 24  # tokens of a repeated suffix that count
EXPERTS = len(FACTORS)
_LEAST = np.float32(1e-19)  # of the nearest one's mass: the square of less is nothing, and slow to compute with
CHUNK = 16  # handled by one thread at a time, by plain functions: numba takes writes to `made` in a prange for dead
_POWERS = 4.0 ** np.arange(LONGEST_COPY + 1)


class Candidates(NamedTuple):
    """Tokens that a source proposes for n contexts, and their probabilities under its experts.

    Row i has `counts[i]` of them, from `begins[i]` on in `tokens`, [places], and `p`, [places, experts]. `favourites`,
    [n], are the likeliest tokens under the source's main expert, -1 where there is none, and `largest`, [n, experts],
    the largest p under each. `measures`, [n, m], are the source's own: of distances, lengths and occurrences.

    Kernels take and give plain tuples of these: numba's cache makes another class of a named one, which no call fits.
    """

    tokens: Int32s
    p: Floats
    begins: Ints
    counts: Int32s
    favourites: Int32s
    largest: Floats
    measures: Floats

    def p_of(self, tokens: Int32s) -> Floats:
        """Return the probability of one token per row under each expert, [n, experts]."""
        out = np.zeros(self.largest.shape, np.float32)
        _p_kernel(tuple(self), np.ascontiguousarray(tokens, np.int32), out)
        return out

    def masses(self, rows: Ints, weights: Doubles) -> Masses:
        """Return the mass Σ_e weights[rows[i], e] p_e of every candidate, for `rows` [n] of a larger whole."""
        return Masses(*_mass_kernel(tuple(self), rows, weights))


def from_neighbors(near: Neighbors, knn_temperature: float) -> Candidates:
    """Propose the tokens of neighbours: p_kNN at several temperatures.

    Measures: log of the nearest distance over T, and for each temperature log Σ exp(-(d - nearest) / T), of which the
    softest tells how many neighbours are about as near as the nearest.
    """
    weights = np.ones((0, 1), np.int32) if near.weights is None else near.weights
    places = np.empty(near.tokens.shape, np.int32)
    counts = np.empty(len(places), np.int32)
    _place_kernel(near.tokens, places, counts)
    made = _room(counts, EXPERTS, 1 + EXPERTS)
    _neighbor_kernel(near.distances, near.tokens, weights, places, 1.0 / knn_temperature, made)
    return Candidates(*made)


def from_infinigram(infinigram: InfiniGram, contexts: Contexts) -> Candidates:
    """Propose what follows the longest suffix of each context in the store's text; measures: its length, log count."""
    found = infinigram.look_up(contexts.tokens, contexts.begins, contexts.ends)
    made = _room(np.minimum(found.end - found.begin, MOST_FOLLOWING), 1, 2)
    _following_kernel(infinigram.following, tuple(found), made)
    return Candidates(*made)


def from_text(contexts: Contexts) -> Candidates:
    """Propose what followed like contexts in the text so far, 4^n for n tokens alike; measures: longest, log count."""
    text = np.ascontiguousarray(contexts.tokens)
    matches = np.zeros(len(contexts), np.int64)
    _match_kernel(text, contexts.begins, contexts.ends, matches)
    made = _room(matches, 1, 2)
    _text_kernel(text, contexts.begins, contexts.ends, matches, made)
    return Candidates(*made)


@numba.njit(cache=True)
def _room(most, experts, measures):  # type: ignore[no-untyped-def]
    """Make room for at most so many candidates of each row, one row after another; p is not yet anything."""
    rows = len(most)
    begins = np.zeros(rows, np.int64)
    end = np.int64(0)
    for i in range(rows):
        begins[i] = end
        end += most[i]
    return (
        np.empty(end, np.int32),
        np.empty((end, experts), np.float32),
        begins,
        np.zeros(rows, np.int32),
        np.full(rows, -1, np.int32),
        np.zeros((rows, experts), np.float32),
        np.zeros((rows, measures), np.float32),
    )


@numba.njit(cache=True)
def _finish(i, count, totals, main, made):  # type: ignore[no-untyped-def]
    """Turn the masses of a row into probabilities, and find its favourite and the largest of each expert."""
    tokens, p, begins, counts, favourites, largest, _ = made
    best = np.float32(-1)
    for e in range(len(totals)):
        totals[e] = 1 / max(totals[e], 1e-30)
    for j in range(begins[i], begins[i] + count):
        for e in range(len(totals)):
            p[j, e] *= totals[e]
            largest[i, e] = max(largest[i, e], p[j, e])
        if p[j, main] > best:
            best = p[j, main]
            favourites[i] = tokens[j]
    counts[i] = count


@numba.njit(cache=True, parallel=True, nogil=True)
def _place_kernel(near, places, counts):  # type: ignore[no-untyped-def]
    """Find which of its row's tokens each neighbour has, -1 for no neighbour, and how many tokens there are."""
    for chunk in numba.prange((len(near) + CHUNK - 1) // CHUNK):
        place_rows(chunk * CHUNK, near, places, counts)


@numba.njit(cache=True)
def place_rows(first, near, places, counts):  # type: ignore[no-untyped-def]
    """Find places of a chunk of rows."""
    rows, k = near.shape
    table = table_for(k)
    keys = np.empty(k, np.int64)
    seen = np.empty(k, np.int32)
    for i in range(first, min(first + CHUNK, rows)):
        found = 0
        for j in range(k):
            places[i, j] = -1
            if near[i, j] >= 0:
                places[i, j] = place_of(near[i, j], table, keys, seen, found)
                found += places[i, j] == found
        for place in range(found):
            table[keys[place]] = -1
        counts[i] = found


@numba.njit(cache=True, parallel=True, nogil=True)
def _neighbor_kernel(distances, near, weights, places, scale, made):  # type: ignore[no-untyped-def]
    for chunk in numba.prange((len(near) + CHUNK - 1) // CHUNK):
        neighbor_rows(chunk * CHUNK, distances, near, weights, places, scale, made)


@numba.njit(cache=True)
def neighbor_rows(first, distances, near, weights, places, scale, made):  # type: ignore[no-untyped-def]
    """Compute p_kNN of a chunk of rows."""
    rows, k = near.shape
    weighted = weights.shape[0] == rows and weights.shape[1] == k
    masses = np.empty(k, np.float32)
    totals = np.empty(EXPERTS, np.float64)
    all_tokens, all_p, begins, _, _, _, measures = made
    for i in range(first, min(first + CHUNK, rows)):
        tokens = all_tokens[begins[i] :]
        p = all_p[begins[i] :]
        nearest = _masses(distances[i], near[i], scale / FACTORS[0], masses)
        count = 0
        for j in range(k):
            place = places[i, j]
            if place < 0:
                continue
            if place == count:
                tokens[place] = near[i, j]
                p[place] = 0
                count += 1
            mass = masses[j]
            weight = np.float32(weights[i, j]) if weighted else np.float32(1)
            for e in range(EXPERTS):
                p[place, e] += weight * mass
                mass = mass * mass if mass > _LEAST else np.float32(0)  # the next temperature is half of this one
        _add_up(p[:count], totals)
        if count:
            measures[i, 0] = np.log(nearest * scale + 1e-6)
            measures[i, 1:] = np.log(totals)
        _finish(i, count, totals, MAIN, made)


@numba.njit(cache=True)
def _add_up(p, totals):  # type: ignore[no-untyped-def]
    totals[:] = 0
    for place in range(len(p)):
        for e in range(len(totals)):
            totals[e] += p[place, e]


@numba.njit(cache=True, fastmath={"nnan", "nsz"})
def _masses(distances, near, scale, masses):  # type: ignore[no-untyped-def]
    """Compute exp((nearest - d) * scale) of a row's neighbours, and return the nearest distance.

    exp(x) is exp(x / 256)^256 here: a polynomial and eight squarings of several at once, where exp is called for each.
    """
    nearest = np.float32(np.inf)
    for j in range(len(near)):
        nearest = min(nearest, distances[j] if near[j] >= 0 else np.float32(np.inf))
    for j in range(len(near)):
        x = max((np.float64(nearest) - distances[j]) * scale, -80.0) / 256
        y = 1 + x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040)))))))
        for _ in range(8):
            y *= y
        masses[j] = y
    return nearest


@numba.njit(cache=True, parallel=True, nogil=True)
def _following_kernel(following, found, made):  # type: ignore[no-untyped-def]
    for chunk in numba.prange((len(found[0]) + CHUNK - 1) // CHUNK):
        following_rows(chunk * CHUNK, following, found, made)


@numba.njit(cache=True)
def following_rows(first, following, found, made):  # type: ignore[no-untyped-def]
    """Count what follows the suffixes of a chunk of rows."""
    table = table_for(MOST_FOLLOWING)
    keys = np.empty(MOST_FOLLOWING, np.int64)
    totals = np.empty(1, np.float64)
    lengths, firsts, ends = found
    all_tokens, all_p, begins, _, _, _, measures = made
    begin = begins[first]
    for i in range(first, min(first + CHUNK, len(lengths))):
        begins[i] = begin  # right after the row before
        tokens = all_tokens[begin:]
        p = all_p[begin:]
        occurrences = ends[i] - firsts[i]
        looked = min(occurrences, MOST_FOLLOWING)
        at = firsts[i]
        part = count = 0
        for _ in range(looked):  # at j * occurrences // looked, without a division
            place = place_of(following[at], table, keys, tokens, count)
            if place == count:
                p[place, 0] = 0
                count += 1
            p[place, 0] += np.float32(1)
            at += occurrences // looked
            part += occurrences % looked
            if part >= looked:
                part -= looked
                at += 1
        for place in range(count):
            table[keys[place]] = -1
        totals[0] = looked
        _finish(i, count, totals, 0, made)
        begin += count
        measures[i, 0] = lengths[i]
        measures[i, 1] = np.log(max(occurrences, 1))


@numba.njit(cache=True, parallel=True, nogil=True)
def _match_kernel(text, begins, ends, matches):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(ends)):
        matches[i] = count_matches(text, begins[i], ends[i] - 1)


@numba.njit(cache=True)
def count_matches(text, begin, last):  # type: ignore[no-untyped-def]
    """Count where else the last token of a context stands in it."""
    found = np.int32(0)
    for j in range(max(begin, last - READ_BACK), last):
        found += np.int32(text[j] == text[last])
    return found


@numba.njit(cache=True, parallel=True, nogil=True)
def _text_kernel(text, firsts, ends, matches, made):  # type: ignore[no-untyped-def]
    for chunk in numba.prange((len(ends) + CHUNK - 1) // CHUNK):
        text_rows(chunk * CHUNK, text, firsts, ends, matches, made)


@numba.njit(cache=True)
def text_rows(first, text, firsts, ends, matches, made):  # type: ignore[no-untyped-def]
    """Weigh what followed like contexts of a chunk of rows."""
    rows = slice(first, min(first + CHUNK, len(ends)))
    most = matches[rows].max()
    table = table_for(most)
    keys = np.empty(most, np.int64)
    totals = np.empty(1, np.float64)
    all_tokens, all_p, begins, _, _, _, measures = made
    begin = begins[first]
    for i in range(rows.start, rows.stop):
        begins[i] = begin  # right after the row before
        tokens = all_tokens[begin:]
        p = all_p[begin:]
        last = ends[i] - 1
        least = max(firsts[i], last - READ_BACK)
        count = longest = 0
        totals[0] = 0
        j = last
        for _ in range(matches[i]):
            j -= 1
            while text[j] != text[last]:
                j -= 1
            length = 1
            while length < LONGEST_COPY and j - length >= least and text[j - length] == text[last - length]:
                length += 1
            place = place_of(text[j + 1], table, keys, tokens, count)
            if place == count:
                p[place, 0] = 0
                count += 1
            p[place, 0] += _POWERS[length]
            totals[0] += _POWERS[length]
            longest = max(longest, length)
        for place in range(count):
            table[keys[place]] = -1
        _finish(i, count, totals, 0, made)
        begin += count
        measures[i, 0] = longest
        measures[i, 1] = np.log(max(matches[i], 1))


@numba.njit(cache=True, parallel=True, nogil=True)
def _p_kernel(made, wanted, out):  # type: ignore[no-untyped-def]
    tokens, p, begins, counts, _, _, _ = made
    for i in numba.prange(len(wanted)):
        place = find(tokens[begins[i] : begins[i] + counts[i]], wanted[i])
        if place >= 0:
            out[i] = p[begins[i] + place]


@numba.njit(cache=True, nogil=True)
def _mass_kernel(made, rows, weights):  # type: ignore[no-untyped-def]
    tokens, p, begins, counts, _, _, _ = made
    size = counts.sum()
    where = np.empty(size, np.int64)
    found = np.empty(size, np.int32)
    mass = np.zeros(size, np.float64)
    at = 0
    for i in range(len(rows)):
        for j in range(begins[i], begins[i] + counts[i]):
            where[at] = rows[i]
            found[at] = tokens[j]
            for e in range(p.shape[1]):
                mass[at] += weights[rows[i], e] * p[j, e]
            at += 1
    return where, found, mass
