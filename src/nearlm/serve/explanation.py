"""What LM and memory thought of a token, and the contexts behind it, as JSON for the inspector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nearlm.base import Doubles, Int32s
from nearlm.mixing import Contexts, Memory, Prediction, kind_of, store_of
from nearlm.store import Datastore

AROUND = 12  # tokens of text before and after a neighbour's token
_NAMES = {"knn": "knn", "ngram": "infini-gram", "text": "text"}


class Found(NamedTuple):
    """A neighbour: its record, its squared distance, its share of p_kNN, and the number of its store."""

    record: int
    distance: float
    weight: float
    store: int = 0


class ShownStore(NamedTuple):
    """A store whose texts are shown, and its name where there are several."""

    store: Datastore
    name: str = ""

    @property
    def named(self) -> dict[str, str]:
        """Its name as a field."""
        return {"store": self.name} if self.name else {}


class Suffix(NamedTuple):
    """The longest suffix of a context in a store's text: its tokens, how often it occurs, and one place after it."""

    length: int
    times: int
    place: int
    store: int = 0


@dataclass(frozen=True)
class Trace:
    """One token under LM and memory, and what the memory found."""

    p: float
    p_lm: float
    p_memory: float | None = None
    weight: float = 0.0
    searched: bool = False
    weights: dict[str, float] | None = None
    suffix: Suffix | None = None
    neighbors: tuple[Found, ...] = ()
    drafted: bool = False

    def to_json(
        self, token: int, stores: Sequence[ShownStore], decode: Callable[[Sequence[int]], str]
    ) -> dict[str, Any]:
        """Return it with the texts behind it; those of several stores are named."""
        suffix = None
        if self.suffix is not None:
            shown = stores[self.suffix.store]
            document = shown.store.document_of(self.suffix.place)[0]
            suffix = {"length": self.suffix.length, "count": self.suffix.times, "document": document, **shown.named}
        return {
            "token": decode([token]),
            "id": token,
            "p": self.p,
            "p_lm": self.p_lm,
            "p_memory": self.p_memory,
            "weight": self.weight,
            "searched": self.searched,
            "drafted": self.drafted,
            "weights": self.weights and {_source_name(name, stores): each for name, each in self.weights.items()},
            "suffix": suffix,
            "neighbors": [_neighbor(found, token, stores[found.store], decode) for found in self.neighbors],
        }


def _source_name(source: str, stores: Sequence[ShownStore]) -> str:
    """Return what a source of a mixture is called, with its store where there are several."""
    kind = _NAMES.get(kind_of(source), source)
    name = stores[store_of(source)].name
    return f"{name}/{kind}" if name and kind_of(source) in ("knn", "ngram") else kind


def _neighbor(found: Found, token: int, shown: ShownStore, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    store = shown.store
    position = int(store.origin[found.record])
    document, start = store.document_of(position)
    end = _document_end(store, position)
    value = int(store.values[found.record])
    return {
        "record": found.record,
        "document": document,
        **shown.named,
        "before": decode(store.tokens[max(start, position - AROUND) : position].tolist()),
        "token": decode([value]),
        "after": decode(store.tokens[position + 1 : min(end, position + 1 + AROUND)].tolist()),
        "distance": found.distance,
        "weight": found.weight,
        "match": value == token,
    }


def _document_end(store: Datastore, position: int) -> int:
    """Return where the document of a position ends, as far as that matters here."""
    last = min(position + AROUND, len(store.tokens) - 1)
    if store.forgotten is not None and store.forgotten.holds(last):
        return position + 1
    return last + 1 if store.document_of(last) == store.document_of(position) else position + 1


def trace_tokens(
    memory: Memory, prediction: Prediction, log_lm: Doubles, targets: Int32s, contexts: Contexts | None, most: int
) -> list[Trace]:
    """Say of one target per context what LM and memory gave it, with at most so many neighbours each."""
    log_knn, logp = prediction.score(log_lm, targets)
    sources = prediction.by_source(log_lm, targets)
    traces = []
    for row in range(len(targets)):
        p, p_lm, weight = float(np.exp(logp[row])), float(np.exp(log_lm[row])), float(prediction.lam[row])
        searched = bool(prediction.retrieved[row])
        weights = None
        p_memory = float(np.exp(log_knn[row])) if searched else None
        if sources:
            weights = {"lm": 1 - weight, **{name: float(each[row]) for name, (each, _) in sources.items()}}
            p_memory = sum(float(each[row] * given[row]) for each, given in sources.values()) / max(weight, 1e-12)
        suffix = _suffix(memory, contexts, row)
        near = _nearest(memory, prediction, row, most)
        traces.append(Trace(p, p_lm, p_memory, weight if searched or sources else 0.0, searched, weights, suffix, near))
    return traces


def _suffix(memory: Memory, contexts: Contexts | None, row: int) -> Suffix | None:
    found = memory.longest_suffix(contexts, row) if contexts is not None else None
    return found and Suffix(found.length, found.times, found.place, found.store)


def _nearest(memory: Memory, prediction: Prediction, row: int, most: int) -> tuple[Found, ...]:
    if not most:
        return ()
    found = prediction.nearest(row, most, memory.temperatures)
    return tuple(Found(one.record, one.distance, one.share, one.store) for one in found)
