"""What LM and memory thought of a token, and the contexts behind it, as JSON for the inspector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nearlm.base import Doubles, Int32s
from nearlm.mixing import Contexts, Memory, Prediction
from nearlm.store import Datastore

AROUND = 12  # tokens of text before and after a neighbour's token
_NAMES = {"knn": "knn", "ngram": "infini-gram", "text": "text"}


class Found(NamedTuple):
    """A neighbour: its record, its squared distance, and its share of p_kNN."""

    record: int
    distance: float
    weight: float


class Suffix(NamedTuple):
    """The longest suffix of a context in the store's text: its tokens, how often it occurs, and one place after it."""

    length: int
    times: int
    place: int


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

    def to_json(self, token: int, store: Datastore, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
        """Return it with the texts behind it."""
        suffix = None
        if self.suffix is not None:
            document = store.document_of(self.suffix.place)[0]
            suffix = {"length": self.suffix.length, "count": self.suffix.times, "document": document}
        return {
            "token": decode([token]),
            "id": token,
            "p": self.p,
            "p_lm": self.p_lm,
            "p_memory": self.p_memory,
            "weight": self.weight,
            "searched": self.searched,
            "drafted": False,
            "weights": self.weights,
            "suffix": suffix,
            "neighbors": [_neighbor(found, token, store, decode) for found in self.neighbors],
        }


def _neighbor(found: Found, token: int, store: Datastore, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    position = int(store.origin[found.record])
    document, start = store.document_of(position)
    end = _document_end(store, position)
    value = int(store.values[found.record])
    return {
        "record": found.record,
        "document": document,
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
            weights = {"lm": 1 - weight, **{_NAMES[name]: float(each[row]) for name, (each, _) in sources.items()}}
            p_memory = sum(float(each[row] * given[row]) for each, given in sources.values()) / max(weight, 1e-12)
        suffix = _suffix(memory, contexts, row)
        near = _nearest(memory, prediction, row, most)
        traces.append(Trace(p, p_lm, p_memory, weight if searched or sources else 0.0, searched, weights, suffix, near))
    return traces


def _suffix(memory: Memory, contexts: Contexts | None, row: int) -> Suffix | None:
    infinigram = memory.mixture.infinigram if memory.mixture is not None else None
    if infinigram is None or contexts is None:
        return None
    found = infinigram.look_up(contexts.tokens, contexts.begins[row : row + 1], contexts.ends[row : row + 1])
    if not found.length[0]:
        return None
    place = int(infinigram.order[found.begin[0]])
    return Suffix(int(found.length[0]), int(found.end[0] - found.begin[0]), place)


def _nearest(memory: Memory, prediction: Prediction, row: int, most: int) -> tuple[Found, ...]:
    near = prediction.near
    if near is None or not prediction.retrieved[row] or not most:
        return ()
    at = int(prediction.retrieved[:row].sum())  # neighbours are those of the tokens that retrieved
    distances = near.distances[at].astype(np.float64)
    temperature = memory.mixture.knn_temperature if memory.mixture is not None else memory.knn_temperature
    shares = np.exp((distances.min() - distances) / temperature)
    if near.weights is not None:
        shares = shares * near.weights[at]
    shares = shares / max(shares.sum(), 1e-30)
    closest = np.argsort(distances, kind="stable")[:most]
    pairs = [(int(near.ids[at, i]), float(distances[i]), float(shares[i])) for i in closest]
    return tuple(Found(*pair) for pair in pairs if pair[0] >= 0)
