"""The bench: derives, indexes, traces and times memories of one store on one traced text."""

import contextlib
import time
import timeit
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, Ints, Reals, Reporter, StoreError
from nearlm.mixing import Gate, GateNetwork, LMTrace, Looked, Memory, Trace, trace_search
from nearlm.model.lm import LM
from nearlm.search import PAPER_K, Retriever, build_index, choose_index, read_index_info
from nearlm.shrink import PruneOptions, ReduceOptions, prune_store, reduce_store
from nearlm.store import DEFAULT, Datastore
from nearlm.text import SCORE_BATCH_TOKENS, fill_batch, plan_batches

SMALL = 200_000  # records
_TIMED = 4096  # queries
_BATCH = 2048
_WARM = 256
_PASSES = 2
_SECONDS = 1.0


class Bench:
    """Makes memories from a store and measures them on a text that the LM has read."""

    def __init__(self, store: Datastore, traced: LMTrace, reporter: Reporter = QUIET):
        self.store = store
        self.traced = traced
        self.reporter = reporter
        self.steps = Reporter(reporter.quiet or len(store) < SMALL)  # shorter ones are not worth telling of

    def reduce(self, store: Datastore, dim: int, folder: Path) -> Datastore:
        """Make a store with narrower keys."""
        return reduce_store(store, ReduceOptions(dim), folder, reporter=self.steps)

    def prune(self, options: PruneOptions, folder: Path) -> Datastore:
        """Make a store with fewer records."""
        return prune_store(self.store, options, folder, reporter=self.steps)

    def index(self, store: Datastore, kind: str) -> str:
        """Return the name of a store's index of some kind; if it has none, make one under a name of our own."""
        name = find_index(store, kind)
        if name is None:
            name = self.name_index(store, kind)
            build_index(store, kind, name=name, reporter=self.steps)
        return name

    def name_index(self, store: Datastore, kind: str) -> str:
        """Return how to call an index that has to be made."""
        return own_name(kind)

    def open(self, store: Datastore, kind: str, *, nprobe: int | None = None, distances: str = "index") -> Retriever:
        """Open a store's index of some kind, which is made if need be."""
        return Retriever(store, self.index(store, kind), nprobe=nprobe, distances=distances)

    def trace(self, retriever: Retriever, k: int = PAPER_K) -> Trace:
        """Search for every token of the text, or find that it has been done."""
        return trace_search(self.traced, retriever, k, self.reporter)

    def searches_per_second(self, retriever: Retriever, k: int) -> float:
        """Time searches for the text's first tokens."""
        return searches_per_second(retriever, np.asarray(self.traced.keys[:_TIMED]), k)

    @property
    def documents(self) -> Ints:
        """The number of each token's document."""
        return self.traced.text.documents

    def lm_seconds(self, lm: LM) -> float:
        """Time the LM on a batch of the text, and return the seconds per token; the best of some passes."""
        text = self.traced.text
        batch = fill_batch(text.tokens, text.windows[plan_batches(text.windows, SCORE_BATCH_TOKENS)[0]])
        return min(timeit.repeat(lambda: lm.score(batch), number=1, repeat=_PASSES + 1)[1:]) / len(batch.targets)

    def gate_seconds(self, gate: Gate) -> float:
        """Time a gate alone, features and network, and return the seconds per token; the best of some passes."""
        return self.network_seconds(gate.network, gate.looked)

    def network_seconds(self, network: GateNetwork, looked: Looked) -> float:
        """Time a gate's network, with its features."""
        traced = self.traced
        rows = min(_TIMED, len(traced))
        known = traced.known()
        times = []
        for _ in range(_PASSES + 1):
            started = time.perf_counter()
            for start in range(0, rows, _BATCH):
                part = slice(start, min(start + _BATCH, rows))
                network.log_weights(traced.keys[part], looked.scalars(network.inputs, known[part]))
            times.append(time.perf_counter() - started)
        return min(times[1:]) / rows

    def mixing_seconds(self, memory: Memory) -> float:
        """Time all that a memory does for a token but the search, and return the seconds; the best of some passes."""
        traced = self.traced
        rows = min(_TIMED, len(traced))
        known = traced.known()
        targets = traced.text.targets
        log_lm = traced.log_lm
        times = []
        for _ in range(_PASSES + 1):
            spent = 0.0
            for start in range(0, rows, _BATCH):
                part = slice(start, min(start + _BATCH, rows))
                prediction = memory.predict(np.asarray(traced.keys[part]), known[part])
                started = time.perf_counter()
                prediction.score(log_lm[part], targets[part])
                spent += prediction.spent.gate + prediction.spent.mixing + time.perf_counter() - started
            times.append(spent)
        return min(times[1:]) / rows


def searches_per_second(retriever: Retriever, queries: Reals, k: int) -> float:
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


def _pass(retriever: Retriever, queries: Reals, k: int) -> float:
    started = time.perf_counter()
    for start in range(0, len(queries), _BATCH):
        retriever.search(queries[start : start + _BATCH], k, ordered=False)
    return time.perf_counter() - started


def own_name(kind: str) -> str:
    """Return what experiments call an index of some kind that they make, so that no index of the user's is replaced."""
    return f"measured-{kind}".replace(",", "-")


def find_index(store: Datastore, kind: str) -> str | None:
    """Return the name of an index of some kind that a store has already, of the store as it is now.

    The one that is used by default comes first, since merging may have left its neighbours there.
    """
    spec = choose_index(kind, len(store), store.dim)
    for name in sorted(store.indexes, key=lambda one: one != DEFAULT):
        with contextlib.suppress(StoreError):  # a damaged one is no use
            info = read_index_info(store, name)
            if info.spec == spec and info.manifest == store.held:
                return name
    return None
