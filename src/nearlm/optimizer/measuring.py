"""What experiments measure alike: searches by themselves, and which points no other beats."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Reporter, StoreError, files
from nearlm.mixing import Adaptor, LMTrace, last_tokens
from nearlm.search import DEFAULT, Retriever, build_index, choose_index, index_folder
from nearlm.store import Datastore

AUTO, PAPER = "auto", "paper"  # kinds of indexes
TIMED = 4096  # queries
SMALL = 200_000  # records
_BATCH, _WARM = 2048, 256
_PASSES, _SECONDS = 2, 1.0


def searches_per_second(retriever: Retriever, queries: npt.NDArray[np.floating[Any]], k: int) -> float:
    """Time searches alone, in batches as evaluation makes them; the best of some passes, in a second at least.

    Of slow searches fewer queries are timed, so that a pass takes about half a second.
    """
    _pass(retriever, queries[:_WARM], k)
    seconds = _pass(retriever, queries[:_WARM], k) / min(_WARM, len(queries))
    queries = queries[: max(_WARM, int(_SECONDS / _PASSES / seconds))]
    times: list[float] = []
    while len(times) < _PASSES or sum(times) < _SECONDS:
        times.append(_pass(retriever, queries, k))
    return len(queries) / min(times)


def _pass(retriever: Retriever, queries: npt.NDArray[np.floating[Any]], k: int) -> float:
    started = time.perf_counter()
    for start in range(0, len(queries), _BATCH):
        retriever.search(queries[start : start + _BATCH], k, ordered=False)
    return time.perf_counter() - started


def quiet_steps(store: Datastore, reporter: Reporter) -> bool:
    """Tell whether the steps of an experiment on this store are too short to speak of."""
    return reporter.quiet or len(store) < SMALL


def index_of(store: Datastore, kind: str, quiet: bool, name: str | None = None) -> str:
    """Return the name of a store's index of some kind; if it has none, make one, under a name that no user gives."""
    there = known_index(store, kind)
    if there is None:
        there = name or own_name(kind)
        build_index(store, kind, name=there, quiet=quiet)
    return there


def own_name(kind: str) -> str:
    """Return what experiments call an index of some kind that they make, so that no user's index is made anew."""
    return f"measured-{kind}"


def known_index(store: Datastore, kind: str) -> str | None:
    """Return the name of an index of some kind that a store has already, of the store as it is now.

    The one that is used by default comes first, since merging may have left its neighbours there.
    """
    spec = asdict(choose_index(kind, len(store), store.dim))
    for name in sorted(store.indexes, key=lambda one: one != DEFAULT):
        with contextlib.suppress(StoreError):  # a damaged one is no use
            found = files.read_stamped(index_folder(store, name) / "index.json")
            if (found["spec"], found["manifest"]) == (spec, store.manifest["checksum"]):
                return name
    return None


def adaptor_seconds(adaptor: Adaptor, traced: LMTrace) -> float:
    """Time an adaptor alone, features and network, and return the seconds of a token; the best of some passes."""
    text, rows, times = traced.text, min(TIMED, len(traced)), []
    positions = text.windows.target_positions[:rows]
    for _ in range(_PASSES + 1):
        started = time.perf_counter()
        for start in range(0, rows, _BATCH):
            part = slice(start, min(start + _BATCH, rows))
            contexts = last_tokens(text.tokens, text.bounds, positions[part]) if adaptor.shape.counts else None
            adaptor.log_weights(traced.keys[part], traced.conf[part], traced.ent[part], contexts)
        times.append(time.perf_counter() - started)
    return min(times[1:]) / rows


def unbeaten(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Tell of points (perplexity, time) which no other beats in one and equals in the other."""
    return [not any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in points) for one in points]
