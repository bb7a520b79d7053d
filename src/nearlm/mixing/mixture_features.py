"""What a mixture's network looks at: the LM's statistics, and what each source proposes for a context.

Of several stores each has sources of its own: `knn` and `ngram` are those of the first, `knn:1` and `ngram:1` those of
the second, and so on. The text read so far is one source, whatever the stores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Int32s, Ints, OptionError, Reals
from nearlm.mixing.candidates import FACTORS, MAIN, Candidates, from_infinigram, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.token_tables import find

KNN, NGRAM, TEXT = "knn", "ngram", "text"
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Source:
    """A source of candidates: how many experts and measures it has, and which expert stands for it."""

    experts: int
    measures: int
    main: int = 0

    @property
    def width(self) -> int:
        """How many features there are of it: whether it proposes anything, its measures, and of each expert two."""
        return 2 + self.measures + 2 * self.experts


SOURCES = {KNN: Source(len(FACTORS), 1 + len(FACTORS), MAIN), NGRAM: Source(1, 2), TEXT: Source(1, 2)}


def kind_of(name: str) -> str:
    """Return what kind of source a name stands for, of whichever store."""
    return name.partition(":")[0]


def store_of(name: str) -> int:
    """Return the number of the store that a source looks at, or 0 for the text so far."""
    return int(name.partition(":")[2] or 0)


def source_of(name: str) -> Source:
    """Return what is known of a source."""
    return SOURCES[kind_of(name)]


def name_at(kind: str, store: int) -> str:
    """Return the name of a source of a store."""
    return f"{kind}:{store}" if store and kind != TEXT else kind


def join_sources(stores: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the sources of several stores by name, given the kinds of each; the text so far comes last, and once."""
    own = [name_at(kind, store) for store, kinds in enumerate(stores) for kind in SOURCES if kind in kinds]
    text = [TEXT] if TEXT in own else []
    return (*(name for name in own if name != TEXT), *text)


def check_sources(sources: Sequence[str], stores: int) -> None:
    """Refuse names that are not those of sources of so many stores, in their order."""
    kinds = [[kind for kind in SOURCES if name_at(kind, store) in sources] for store in range(stores)]
    if not sources or join_sources(kinds) != tuple(sources):
        raise OptionError(f"`sources` is {','.join(sources)!r}, expected some of {','.join(SOURCES)}, each once")


def parse_sources(sources: str) -> tuple[str, ...]:
    """Turn `knn,ngram,text` into the names of sources, in their fixed order."""
    names = [name.strip() for name in sources.split(",")]
    if not names or any(name not in SOURCES for name in names) or len(set(names)) < len(names):
        raise OptionError(f"`sources` is {sources!r}, expected some of {','.join(SOURCES)}, each once, or none")
    return tuple(name for name in SOURCES if name in names)


@dataclass(frozen=True)
class Known:
    """What is known of n contexts before a search: max p, entropy and likeliest token of the LM, and what was read."""

    conf: Reals
    ent: Reals
    top: Int32s
    contexts: Contexts

    @classmethod
    def of(cls, statistics: Any, contexts: Contexts | None, count: int) -> "Known":
        """Put together what is known; whatever is None is not asked for, and stands there as if it were nothing."""
        none = np.zeros(count, np.float32)
        contexts = Contexts.none(count) if contexts is None else contexts
        if statistics is None:
            return cls(none, none, np.full(count, -1, np.int32), contexts)
        return cls(statistics.conf, statistics.ent, statistics.top, contexts)

    def __len__(self) -> int:
        return len(self.conf)

    def __getitem__(self, rows: Any) -> "Known":
        return Known(self.conf[rows], self.ent[rows], self.top[rows], self.contexts[rows])


class Proposal(NamedTuple):
    """What one source proposes, for those rows that it was asked for."""

    rows: Ints
    candidates: Candidates


def propose(sources: tuple[str, ...], known: Known, *infinigrams: InfiniGram | None) -> dict[str, Proposal]:
    """Ask the sources that need no search; there is an ∞-gram of each store, if that has one."""
    everywhere = np.arange(len(known.contexts))
    found = {}
    for number, infinigram in enumerate(infinigrams):
        name = name_at(NGRAM, number)
        if name in sources and infinigram is not None:
            found[name] = Proposal(everywhere, from_infinigram(infinigram, known.contexts))
    if TEXT in sources:
        found[TEXT] = Proposal(everywhere, from_text(known.contexts))
    return found


def suffix_features(known: Known, proposals: dict[str, Proposal]) -> Floats:
    """Return what is known of the longest suffix before a search, [n, 4]: length, log count, p of two favourites."""
    candidates = proposals[NGRAM].candidates
    return np.concatenate([candidates.measures, _soft(candidates.largest), _soft(candidates.p_of(known.top))], 1)


def features_of(sources: tuple[str, ...], known: Known, proposals: dict[str, Proposal]) -> Floats:
    """Return the features of contexts, [n, width]: of the LM, of each source, and how far sources agree.

    A source that was not asked, or found nothing, has zeros.
    """
    features = np.zeros((len(known), width_of(sources)), np.float32)
    describe_lm(known.conf, known.ent, features)
    favourites = np.full((len(known), len(sources)), -1, np.int32)
    for at, name in enumerate(sources):
        if name in proposals:
            favourites[proposals[name].rows, at] = proposals[name].candidates.favourites
    for name, places in zip(sources, source_places(sources), strict=True):
        if name in proposals:
            rows, candidates = proposals[name]
            _source_kernel(rows, tuple(candidates), known.top, favourites, places, features)
    return features


@lru_cache
def source_places(sources: tuple[str, ...]) -> tuple[tuple[int, int, int, int], ...]:
    """Return of each source its number, its main expert, and where its features and those of agreement begin."""
    begin = 3
    agreement = width_of(sources) - len(sources) * (len(sources) - 1)
    places = []
    for at, name in enumerate(sources):
        places.append((at, source_of(name).main, begin, agreement))
        begin += source_of(name).width
        agreement += len(sources) - 1
    return tuple(places)


@numba.njit(cache=True)
def _soft(p):  # type: ignore[no-untyped-def]
    """Return the log odds of probabilities, within bounds."""
    return np.log((p + np.float32(1e-3)) / (1 - p + np.float32(1e-3)))


@numba.njit(cache=True, nogil=True)
def describe_lm(conf, ent, features):  # type: ignore[no-untyped-def]
    """Describe what the LM says of contexts."""
    for i in range(len(conf)):
        features[i, 0] = conf[i]
        features[i, 1] = np.log(max(conf[i], np.float32(1e-6)))
        features[i, 2] = ent[i]


@numba.njit(cache=True, parallel=True, nogil=True)
def _source_kernel(rows, made, top, favourites, places, features):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(rows)):
        describe(i, rows[i], made, top, favourites, places, features)


@numba.njit(cache=True)
def describe(i, row, made, top, favourites, places, features):  # type: ignore[no-untyped-def]
    """Describe what a source proposes, and what it gives to the LM's likeliest token and to others' favourites."""
    own, main, begin, agreement = places
    all_tokens, all_p, begins, counts, _, largest, measures = made
    experts = all_p.shape[1]
    if counts[i] == 0:
        return
    first = begins[i]
    tokens = all_tokens[first : first + counts[i]]
    features[row, begin] = 1
    features[row, begin + 1] = np.log1p(np.float32(counts[i]))
    column = begin + 2
    for m in range(measures.shape[1]):
        features[row, column + m] = measures[i, m]
    column += measures.shape[1]
    agreed = find(tokens, top[row])
    for e in range(experts):
        features[row, column + e] = _soft(largest[i, e])
        p = all_p[first + agreed, e] if agreed >= 0 else np.float32(0)
        features[row, column + experts + e] = _soft(p)
    pair = agreement
    for other in range(favourites.shape[1]):
        if other == own:
            continue
        if favourites[row, other] >= 0:
            place = find(tokens, favourites[row, other])
            p = all_p[first + place, main] if place >= 0 else np.float32(0)
            features[row, pair] = _soft(p)
        pair += 1


def columns_with(source: str, sources: tuple[str, ...]) -> Ints:
    """Return which features are zero when a source is not asked: its own, and those of agreement with it."""
    own, pairs = _columns(sources)
    return np.array([*own.get(source, ()), *(place for pair, place in pairs.items() if source in pair)], np.int64)


def columns_among(part: tuple[str, ...], sources: tuple[str, ...]) -> Ints:
    """Return where the features of some sources are among those of all: the LM's, each one's, how far they agree."""
    own, pairs = _columns(sources)
    agreed = [pairs[name, other] for name in part for other in part if other != name]
    return np.array([0, 1, 2, *(place for name in part for place in own[name]), *agreed], np.int64)


def _columns(sources: tuple[str, ...]) -> tuple[dict[str, range], dict[tuple[str, str], int]]:
    """Return the places of each source's features, and of what one gives to the favourite of another."""
    own = {}
    begin = 3
    for name in sources:
        own[name] = range(begin, begin + source_of(name).width)
        begin += source_of(name).width
    pairs = [(name, other) for name in sources for other in sources if other != name]
    return own, {pair: begin + at for at, pair in enumerate(pairs)}


def feature_groups(sources: tuple[str, ...]) -> dict[str, Ints]:
    """Return the places of each group of features; each feature is in one group.

    The LM's own; what a source measures and counts; its largest probabilities; what it gives to the LM's likeliest
    token; and what sources give to each other's.
    """
    places: dict[str, list[int]] = {"lm": [0, 1, 2], "measures": [], "largest": [], "top": []}
    begin = 3
    for source in map(source_of, sources):
        for group, count in (("measures", 2 + source.measures), ("largest", source.experts), ("top", source.experts)):
            places[group] += range(begin, begin + count)
            begin += count
    places["agreement"] = [*range(begin, width_of(sources))]
    return {group: np.array(columns, np.int64) for group, columns in places.items()}


def column_of(source: str, feature: str, sources: tuple[str, ...]) -> int:
    """Return the place of a feature that every source has, `some` or `count`, or of the ∞-gram and text, `length`."""
    own = ("some", "count", "length").index(feature)
    return int(columns_with(source, sources)[own])


def width_of(sources: tuple[str, ...]) -> int:
    """Return how many features there are."""
    return 3 + sum(source_of(name).width for name in sources) + len(sources) * (len(sources) - 1)


def experts_count(sources: tuple[str, ...]) -> int:
    """Return how many experts there are, with the LM."""
    return 1 + sum(source_of(name).experts for name in sources)


def stores_count(sources: tuple[str, ...]) -> int:
    """Return how many stores sources look at."""
    return 1 + max(map(store_of, sources))


def experts_of(sources: tuple[str, ...]) -> dict[str, slice]:
    """Return the places of each source's experts among all; the LM is the first."""
    places = {}
    begin = 1
    for name in sources:
        places[name] = slice(begin, begin + source_of(name).experts)
        begin += source_of(name).experts
    return places
