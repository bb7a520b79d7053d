"""A mixture of one context or a few: what each source proposes, and the weights, in one call of a kernel each.

To call a kernel that runs on several threads costs as much as a whole context, and so does to return its arrays one by
one. Here one thread works, in arrays that are there before. What comes of it is what comes of many, to the bit: the
same functions compute it, row by row.
"""

from typing import Any

import numba
import numpy as np

from nearlm.base import Doubles
from nearlm.mixing.candidates import (
    CHUNK,
    EXPERTS,
    MOST_FOLLOWING,
    READ_BACK,
    Candidates,
    count_matches,
    following_rows,
    neighbor_rows,
    place_rows,
    text_rows,
)
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram import InfiniGram, match
from nearlm.mixing.mixture_features import (
    NGRAM,
    SOURCES,
    TEXT,
    Known,
    Proposal,
    describe,
    describe_lm,
    kind_of,
    name_at,
    source_places,
    width_of,
)
from nearlm.mixing.mixture_network import Weigher, network_rows
from nearlm.search import Neighbors

_ALL_ONE = np.ones((0, 1), np.int32)


def few_neighbors(near: Neighbors, knn_temperature: float) -> Candidates:
    """Propose the tokens of neighbours, as `from_neighbors` does."""
    rows, k = near.tokens.shape
    made = _room(rows, k, EXPERTS, 1 + EXPERTS)
    weights = _ALL_ONE if near.weights is None else near.weights
    _neighbor_kernel(near.distances, near.tokens, weights, 1.0 / knn_temperature, made)
    return Candidates(*made)


def few_proposals(sources: tuple[str, ...], known: Known, *infinigrams: InfiniGram | None) -> dict[str, Proposal]:
    """Ask the sources that need no search, as `propose` does."""
    everywhere = np.arange(len(known))
    found = {}
    for number, infinigram in enumerate(infinigrams):
        name = name_at(NGRAM, number)
        if name in sources and infinigram is not None:
            found[name] = Proposal(everywhere, few_from_infinigram(infinigram, known.contexts))
    if TEXT in sources:
        found[TEXT] = Proposal(everywhere, few_from_text(known.contexts))
    return found


def few_from_infinigram(infinigram: InfiniGram, contexts: Contexts) -> Candidates:
    """Propose what follows the longest suffix of each context, as `from_infinigram` does."""
    made = _room(len(contexts), MOST_FOLLOWING, 1, 2)
    arrays = (infinigram.tokens, infinigram.depths, infinigram.order, infinigram.starts, infinigram.following)
    text = np.ascontiguousarray(contexts.tokens)
    if not _suffix_kernel(text, contexts.begins, contexts.ends, arrays, made):
        infinigram.look_up(text, contexts.begins, contexts.ends)  # says what is wrong with them
    return Candidates(*made)


def few_from_text(contexts: Contexts) -> Candidates:
    """Propose what followed like contexts in the text read so far, as `from_text` does."""
    made = _room(len(contexts), READ_BACK, 1, 2)
    _text_kernel(np.ascontiguousarray(contexts.tokens), contexts.begins, contexts.ends, made)
    return Candidates(*made)


def few_log_weights(
    sources: tuple[str, ...], known: Known, proposals: dict[str, Proposal], weigher: Weigher
) -> Doubles:
    """Return the log weights of LM and experts, [n, 1 + experts]: features and network together."""
    rows = len(known)
    features = np.zeros((rows, width_of(sources)), np.float32)
    out = np.empty((rows, len(weigher.last_bias)))
    parts = tuple(_part(proposals.get(name), name) for name in sources)
    _weights_kernel(known.conf, known.ent, known.top, parts, source_places(sources), tuple(weigher), features, out)
    return out


def _room(rows: int, most: int, experts: int, measures: int) -> tuple[Any, ...]:
    """Make room for at most so many candidates of each row, which a kernel clears."""
    return (
        np.empty(rows * most, np.int32),
        np.empty((rows * most, experts), np.float32),
        np.empty(rows, np.int64),
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.empty((rows, experts), np.float32),
        np.empty((rows, measures), np.float32),
    )


def _part(proposal: Proposal | None, name: str) -> tuple[Any, ...]:
    """Return the rows of a proposal and its candidates as kernels take them; none of a source that was not asked."""
    if proposal is None:
        return _NOTHING[kind_of(name)]
    return proposal.rows, tuple(proposal.candidates)


_NOTHING = {
    name: (np.zeros(0, np.int64), _room(0, 1, source.experts, source.measures)) for name, source in SOURCES.items()
}


@numba.njit(cache=True)
def _clear(made):  # type: ignore[no-untyped-def]
    tokens, _, begins, counts, favourites, largest, measures = made
    for i in range(len(begins)):
        begins[i] = i * (len(tokens) // len(begins))
    counts[:] = 0
    favourites[:] = -1
    largest[:] = 0
    measures[:] = 0


@numba.njit(cache=True, nogil=True)
def _neighbor_kernel(distances, near, weights, scale, made):  # type: ignore[no-untyped-def]
    _clear(made)
    places = np.empty(near.shape, np.int32)
    counts = np.empty(len(near), np.int32)
    for first in range(0, len(near), CHUNK):
        place_rows(first, near, places, counts)
        neighbor_rows(first, distances, near, weights, places, scale, made)


@numba.njit(cache=True, nogil=True)
def _suffix_kernel(text, begins, ends, arrays, made):  # type: ignore[no-untyped-def]
    """Look suffixes up and collect what follows; return whether all contexts are inside their text."""
    tokens, depths, order, starts, following = arrays
    _clear(made)
    rows = len(ends)
    lengths = np.zeros(rows, np.int32)
    firsts = np.zeros(rows, np.int64)
    lasts = np.zeros(rows, np.int64)
    for i in range(rows):
        if not 0 <= begins[i] <= ends[i] <= len(text):
            return False
        lengths[i], firsts[i], lasts[i] = match(text, begins[i], ends[i] - 1, tokens, depths, order, starts)
    for first in range(0, rows, CHUNK):
        following_rows(first, following, (lengths, firsts, lasts), made)
    return True


@numba.njit(cache=True, nogil=True)
def _text_kernel(text, begins, ends, made):  # type: ignore[no-untyped-def]
    _clear(made)
    matches = np.empty(len(ends), np.int64)
    for i in range(len(ends)):
        matches[i] = count_matches(text, begins[i], ends[i] - 1)
    for first in range(0, len(ends), CHUNK):
        text_rows(first, text, begins, ends, matches, made)


@numba.njit(cache=True, nogil=True)
def _weights_kernel(conf, ent, top, parts, places, network, features, out):  # type: ignore[no-untyped-def]
    rows = len(conf)
    favourites = np.full((rows, len(parts)), -1, np.int32)
    there = np.zeros(out.shape, np.bool_)
    expert = 1
    for s in range(len(parts)):
        asked, made = parts[s]
        end = expert + made[1].shape[1]
        for i in range(len(asked)):
            favourites[asked[i], s] = made[4][i]
            there[asked[i], expert:end] = made[3][i] > 0
        expert = end
    there[:, 0] = True
    describe_lm(conf, ent, features)
    for s in range(len(parts)):
        asked, made = parts[s]
        for i in range(len(asked)):
            describe(i, asked[i], made, top, favourites, places[s], features)
    network_rows(0, rows, features, there, network, out)
