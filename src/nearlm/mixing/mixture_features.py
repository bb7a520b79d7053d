"""What a mixture's network looks at: the LM's statistics, and what each source proposes for a context."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearlm.base import Floats, Int32s, Ints, OptionError, Reals
from nearlm.mixing.candidates import FACTORS, Candidates, from_infinigram, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram import InfiniGram

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


SOURCES = {KNN: Source(len(FACTORS), 1 + len(FACTORS), FACTORS.index(1.0)), NGRAM: Source(1, 2), TEXT: Source(1, 2)}


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


def propose(sources: tuple[str, ...], known: Known, infinigram: InfiniGram | None) -> dict[str, Proposal]:
    """Ask the sources that need no search."""
    everywhere = np.arange(len(known.contexts))
    found = {}
    if NGRAM in sources and infinigram is not None:
        found[NGRAM] = Proposal(everywhere, from_infinigram(infinigram, known.contexts))
    if TEXT in sources:
        found[TEXT] = Proposal(everywhere, from_text(known.contexts))
    return found


def suffix_features(known: Known, proposals: dict[str, Proposal]) -> Floats:
    """Return what is known of the longest suffix before a search, [n, 4]: length, log count, p of two favourites."""
    candidates = proposals[NGRAM].candidates
    _, largest = candidates.favourites(0)
    columns = [*candidates.measures.T, *_soft(largest).T, *_soft(candidates.p_of(known.top)).T]
    return np.stack(columns, 1)


def features_of(sources: tuple[str, ...], known: Known, proposals: dict[str, Proposal]) -> Floats:
    """Return the features of contexts, [n, width]: of the LM, of each source, and how far sources agree.

    A source that was not asked, or found nothing, has zeros.
    """
    count = len(known.conf)
    lm = np.stack([known.conf, np.log(np.maximum(known.conf, 1e-6)), known.ent], 1)
    parts = [lm.astype(np.float32)]
    favourites = {}
    for name in sources:
        columns = np.zeros((count, SOURCES[name].width), np.float32)
        favourites[name] = np.full(count, -1, np.int32)
        if name in proposals:
            rows, candidates = proposals[name]
            token, largest = candidates.favourites(SOURCES[name].main)
            favourites[name][rows] = token
            agrees = _soft(candidates.p_of(known.top[rows]))
            some = (candidates.counts > 0).astype(np.float32)
            own = [some, np.log1p(candidates.counts), *candidates.measures.T, *_soft(largest).T, *agrees.T]
            columns[rows] = np.stack(own, 1) * some[:, None]
        parts.append(columns)
    parts.append(_agreement(sources, proposals, favourites, count))
    return np.concatenate(parts, 1)


def _agreement(
    sources: tuple[str, ...], proposals: dict[str, Proposal], favourites: dict[str, Int32s], count: int
) -> Floats:
    """Return what each source gives to the favourite of each other, [n, pairs]."""
    columns = []
    for name in sources:
        for other in sources:
            if other == name:
                continue
            column = np.zeros(count, np.float32)
            if name in proposals:
                rows, candidates = proposals[name]
                p = _soft(candidates.p_of(favourites[other][rows])[:, SOURCES[name].main])
                column[rows] = np.where((candidates.counts > 0) & (favourites[other][rows] >= 0), p, 0)
            columns.append(column)
    return np.stack(columns, 1) if columns else np.zeros((count, 0), np.float32)


def _soft(p: Floats) -> Floats:
    """Return the log odds of probabilities, within bounds."""
    return np.log((p + np.float32(1e-3)) / (1 - p + np.float32(1e-3)))


def columns_with(source: str, sources: tuple[str, ...]) -> Ints:
    """Return which features are zero when a source is not asked: its own, and those of agreement with it."""
    begin = 3
    places: list[int] = []
    for name in sources:
        if name == source:
            places += range(begin, begin + SOURCES[name].width)
        begin += SOURCES[name].width
    pairs = [(name, other) for name in sources for other in sources if other != name]
    return np.array(places + [begin + at for at, pair in enumerate(pairs) if source in pair], np.int64)


def feature_groups(sources: tuple[str, ...]) -> dict[str, Ints]:
    """Return the places of each group of features; each feature is in one group.

    The LM's own; what a source measures and counts; its largest probabilities; what it gives to the LM's likeliest
    token; and what sources give to each other's.
    """
    places: dict[str, list[int]] = {"lm": [0, 1, 2], "measures": [], "largest": [], "top": []}
    begin = 3
    for source in (SOURCES[name] for name in sources):
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
    return 3 + sum(SOURCES[name].width for name in sources) + len(sources) * (len(sources) - 1)


def experts_of(sources: tuple[str, ...]) -> dict[str, slice]:
    """Return the places of each source's experts among all; the LM is the first."""
    places = {}
    begin = 1
    for name in sources:
        places[name] = slice(begin, begin + SOURCES[name].experts)
        begin += SOURCES[name].experts
    return places
