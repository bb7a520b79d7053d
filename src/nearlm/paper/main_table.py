"""The paper's tables on a test text: the LM, the vanilla kNN-LM, its remedies one by one, and all together.

Perplexities come from one trace of the text and one search for each memory. The LM, the vanilla kNN-LM and optimized
memories are timed end to end, in short rounds, and compared within each round; the other rows have the LM's speed with
the times of their parts added, each measured next to a search of the vanilla kNN-LM: a machine's speed drifts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import median

import numpy as np

from nearlm.base import Doubles, NearLMError, Reporter
from nearlm.knnlm import KNNLM, Evaluation, evaluate_tokens
from nearlm.mixing import (
    Bools,
    Gate,
    Memory,
    Mixture,
    Searched,
    best_setting,
    cache_text,
    mix,
    mixture_examples,
    paper_setting,
    perplexity,
    trace_text,
    tuned_at,
)
from nearlm.model.lm import LM
from nearlm.optimizer import Bench, Setup, own_name
from nearlm.paper.results import MIXED, NLM, VANILLA, MainTable, Row
from nearlm.search import AUTO, PAPER, PAPER_K, Retriever, build_index, write_settings
from nearlm.shrink import PruneOptions
from nearlm.store import Datastore, SearchSettings, Tuned
from nearlm.text import TextSource

KEEP = 0.6  # what the paper's main table keeps when it merges

Pace = Callable[[], float]


@dataclass(frozen=True)
class TestTexts:
    """The validation and test texts of an experiment, and how many tokens of the test to time."""

    valid: TextSource
    test: TextSource
    timed_tokens: int = 4000


class Memories:
    """Makes the memories of the tables, in a folder and in the store, and measures them."""

    def __init__(self, lm: LM, store: Datastore, texts: TestTexts, folder: Path, reporter: Reporter):
        self.lm = lm
        self.store = store
        self.texts = texts
        self.folder = folder
        self.reporter = reporter
        self.valid = Bench(store, trace_text(lm, store, texts.valid, reporter), reporter)
        self.test = Bench(store, trace_text(lm, store, texts.test, reporter), reporter)

    def tune(self, store: Datastore, kind: str, distances: str = "index", *, at_one: bool = False) -> Memory:
        """Return a store's memory with some kind of index, λ and T tuned on the validation text, or T=1."""
        retriever = self.valid.open(store, kind, distances=distances)
        trace = self.valid.trace(retriever)
        tuned = paper_setting(trace) if at_one else best_setting(trace)
        return Memory.of(retriever, SearchSettings(**tuned.values))

    def gate(self, vanilla: Memory, budget: float) -> Memory:
        """Return the vanilla kNN-LM with a gate that skips as much as a budget allows on what it held out.

        Its index is one of our own, since what was tuned and the gate are kept with it.
        """
        retriever, tuned = self._own(PAPER, vanilla)
        gate = self._gate(retriever, tuned).at("auto", budget)
        return Memory.of(retriever, SearchSettings(**tuned.values), gate)

    def mix(self, plain: Memory, sources: str) -> Memory:
        """Return a kNN-LM with nearlm's index, whose weights are decided after the search, by a mixture."""
        retriever, tuned = self._own(AUTO, plain)
        name = f"{retriever.name}-{sources.replace(',', '-')}"
        text = self.valid.traced.text
        mixture = Mixture.train(
            self.store, text, self.lm, sources=sources, name=name, index=retriever.name, reporter=self.reporter
        )
        return Memory.of(retriever, SearchSettings(**tuned.values), None, mixture)

    def _own(self, kind: str, memory: Memory) -> tuple[Retriever, Tuned]:
        """Return an index of our own with what was tuned for another of its kind."""
        index = own_name(kind)
        build_index(self.store, kind, name=index, reporter=self.valid.steps)
        retriever = Retriever(self.store, index)
        k = memory.settings.k or PAPER_K
        trace = self.valid.trace(retriever, k)
        tuned = tuned_at(trace, k, memory.knn_temperature, memory.lam, perplexity(trace.log_p(memory.settings)))
        write_settings(self.store, tuned)
        return retriever, tuned

    def merge(self) -> Datastore:
        """Make the store with greedily merged records."""
        index = self.valid.index(self.store, AUTO)
        return self.valid.prune(PruneOptions("merge", keep=KEEP, index=index), self.folder / "merged")

    def reduce(self) -> Datastore:
        """Make the store with half of the dimensions, as the paper's main table has, so that codes divide them."""
        dim = 64 * (self.store.dim // 128) or max(1, self.store.dim // 2)
        return self.valid.reduce(self.store, dim, self.folder / "reduced")

    def row(self, name: str, memory: Memory | None, lm_seconds: float, pace: Pace = lambda: 1.0, times: int = 1) -> Row:
        """Measure one memory from the trace of the test text, and its speed from its parts.

        `pace` tells how fast the machine is at the moment, compared with when `lm_seconds` was measured. Searches are
        timed so many times, each next to it.
        """
        if memory is None:
            return Row(name, perplexity(self.test.traced.log_lm), 1 / lm_seconds)
        logp, retrieved = self._predict(memory)
        retrieving = float(np.mean(retrieved))
        seconds = self.test.mixing_seconds(memory)
        searches = None
        if memory.retriever is not None:
            k = memory.settings.k or PAPER_K
            searches = median(self.test.searches_per_second(memory.retriever, k) / pace() for _ in range(times))
            seconds += retrieving / searches
        return Row(
            name,
            perplexity(logp),
            1 / (lm_seconds + seconds),
            microseconds=1e6 * seconds,
            searches_per_second=searches,
            skipped=1 - retrieving,
            setup=_setup(memory),
        )

    def _predict(self, memory: Memory) -> tuple[Doubles, Bools]:
        """Return log p of every token of the test text, and which of them were searched for."""
        traced = self.test.traced
        lam = np.full(len(traced), memory.lam if memory.retriever else 0.0)
        if memory.gate is not None:
            lam = memory.gate.weights(traced.keys, traced.known())
        searched = None
        if memory.retriever is not None:
            trace = self.test.trace(memory.retriever, memory.settings.k or PAPER_K)
            searched = Searched(trace, Tuned(**memory.settings.values))
        mixture = memory.mixture
        if mixture is None:
            assert searched is not None
            return mix(traced.log_lm, trace.log_p_knn(memory.knn_temperature), lam), lam > 0
        examples = mixture_examples(traced, mixture.info.sources, mixture.infinigram, searched)
        logp = examples.log_mixture(mixture.network)
        skipped = examples.without_search().log_mixture(mixture.network)
        return np.where(lam > 0, logp, skipped), lam > 0

    def time(self, models: dict[str, KNNLM], rounds: int) -> dict[str, list[Evaluation]]:
        """Evaluate some models end to end on the first tokens of the test text, round by round, in other orders.

        Many short rounds are worth more than few long ones: a machine's speed drifts. A run may feel what ran before.
        """
        test = self.texts.test
        first = replace(test, max_tokens=min(self.texts.timed_tokens, test.max_tokens or 1 << 62))
        text = cache_text(first, self.lm.tokenizer, self.store.reading(), self.reporter)
        found: dict[str, list[Evaluation]] = {name: [] for name in models}
        self.reporter.say(f"timing end to end, {rounds} rounds of {len(text.targets):,} tokens: {', '.join(models)}")
        orders = list(permutations(models))
        for number in range(rounds):
            for name in orders[number * len(orders) // rounds]:
                found[name].append(evaluate_tokens(models[name], text))
            self.reporter.say(f"  round {number + 1}: {found[NLM][-1].tokens_per_second:,.0f} tokens/s by the LM alone")
        return found

    def _gate(self, retriever: Retriever, settings: SearchSettings) -> Gate:
        """Train a gate on the validation text, unless there is one for this very search."""
        store = retriever.store
        index = retriever.name
        text = self.valid.traced.text
        if index in store.gates:
            try:
                gate = Gate.load(store, index)
                gate.check(retriever, settings, self.lm.fingerprint())
                if gate.info.text == text.sha256:
                    return gate
            except NearLMError as error:
                self.reporter.say(f"{error}; training it again")
        return Gate.train(store, text, self.lm, name=index, index=index, reporter=self.reporter)


def _setup(memory: Memory) -> Setup:
    """Describe a memory; λ is told only where one holds for all tokens."""
    if memory.retriever is None:
        return Setup.without_search(memory.settings.mixture or "", memory.table_bytes)
    search = memory.settings if memory.constant else replace(memory.settings, lam=None)
    return Setup.of(memory.retriever, search, memory.table_bytes)


def main_table(memories: Memories, optimized: dict[str, Datastore], *, budget: float, rounds: int) -> MainTable:
    """Measure the paper's rows, and those of optimized stores, with all remedies, by their names."""
    store = memories.store
    vanilla = memories.tune(store, PAPER)
    assert vanilla.retriever is not None
    searched = vanilla.retriever
    whole = {
        NLM: KNNLM(memories.lm, store, None),
        VANILLA: KNNLM(memories.lm, store, vanilla),
        **{name: KNNLM.load(best, memories.lm) for name, best in optimized.items()},
    }
    runs = memories.time(whole, rounds)
    paces = {name: [run.tokens_per_second for run in found] for name, found in runs.items()}
    speeds = compare(paces)
    index = memories.tune(store, AUTO)
    models = {
        NLM: None,
        VANILLA: vanilla,
        "+ AR": memories.gate(vanilla, budget),
        "+ GM": memories.tune(memories.merge(), PAPER),
        "+ DR": memories.tune(memories.reduce(), PAPER),
        "+ index": index,
        **{name: memories.mix(index, sources) for name, sources in MIXED.items()},
        **{name: whole[name].memory for name in optimized},
    }
    usual = median(run.retrievals_per_second or 0.0 for run in runs[VANILLA])

    def pace() -> float:
        return memories.test.searches_per_second(searched, PAPER_K) / usual

    rows = []
    for name, memory in models.items():
        row = memories.row(name, memory, 1 / speeds[NLM], pace, max(1, rounds // 3))
        memories.reporter.say(f"  {name}: perplexity {row.perplexity:.3f}")
        if name in runs:
            beyond = median(run.microseconds for run in runs[name])
            row = replace(row, tokens_per_second=speeds[name], microseconds=beyond, end_to_end=True)
        rows.append(row)
    return MainTable(len(memories.test.traced), rows, paces)


def compare(rounds: dict[str, list[float]]) -> dict[str, float]:
    """Return how fast models are, from their speeds in every round, each compared with the LM's in the same one."""
    alone = rounds[NLM]
    ratios = {name: median(one / own for one, own in zip(found, alone, strict=True)) for name, found in rounds.items()}
    return {name: median(alone) * ratio for name, ratio in ratios.items()}


def baseline(memories: Memories, lm_seconds: float) -> MainTable:
    """Measure the paper's first table: the LM, kNN-LMs with T=1 and T tuned, with exact distances, with our index."""
    store = memories.store
    models = {
        NLM: None,
        "kNN-LM, T=1": memories.tune(store, PAPER, at_one=True),
        VANILLA: memories.tune(store, PAPER),
        "kNN-LM, exact": memories.tune(store, PAPER, "store"),
        "nearlm's index": memories.tune(store, AUTO),
    }
    rows = [memories.row(name, memory, lm_seconds) for name, memory in models.items()]
    return MainTable(len(memories.test.traced), rows)
