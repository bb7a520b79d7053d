"""The paper's tables on a test text: the LM, the vanilla kNN-LM, its remedies one by one, and all together.

Perplexities come from one trace of the text and one search for each memory. The LM, the vanilla kNN-LM and the last row
are timed end to end, in short rounds, and compared within each round; the other rows have the LM's speed with the times
of their parts added, each measured next to a search of the vanilla kNN-LM: a machine's speed drifts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, permutations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from nearlm.base import NearLMError, Reporter
from nearlm.knnlm import KNNLM, Evaluation, evaluate_tokens
from nearlm.mixing import (
    Adaptor,
    Gate,
    LMTrace,
    Point,
    Reading,
    TokenText,
    best_setting,
    last_tokens,
    mix,
    paper_setting,
    perplexity,
    read_text,
    save_settings,
    trace_lm,
    trace_search,
)
from nearlm.model import LM
from nearlm.optimizer import AUTO, PAPER, TIMED, adaptor_seconds, index_of, own_name, quiet_steps, searches_per_second
from nearlm.paper.results import ALL, NLM, VANILLA, MainTable, Row
from nearlm.search import PAPER_K, Retriever, build_index
from nearlm.shrink import prune_store, reduce_store
from nearlm.store import Datastore

KEEP = 0.6  # what the paper's main table keeps when it merges


@dataclass(frozen=True)
class Texts:
    """The validation and test texts of an experiment, how many tokens of each to use, and how many to time."""

    valid: Sequence[str]
    test: Sequence[str]
    valid_tokens: int | None = None
    test_tokens: int | None = None
    timed_tokens: int = 4000


class Memories:
    """Makes the memories of the tables, in a folder and in the store, and measures them."""

    def __init__(self, lm: LM, store: Datastore, texts: Texts, folder: Path, reporter: Reporter):
        self.lm, self.store, self.texts, self.folder, self.reporter = lm, store, texts, folder, reporter
        self.quiet = quiet_steps(store, reporter)
        self.valid = self._trace(texts.valid, texts.valid_tokens)
        self.test = self._trace(texts.test, texts.test_tokens)

    def alone(self) -> KNNLM:
        """Return the LM without a memory."""
        return KNNLM(self.lm, self.store, None)

    def tuned(self, store: Datastore, kind: str, distances: str = "index", *, at_one: bool = False) -> KNNLM:
        """Return a store's memory with some kind of index, λ and T tuned on the validation text, or T=1."""
        retriever = Retriever(store, index_of(store, kind, self.quiet), distances=distances)
        trace = trace_search(self.valid, retriever, PAPER_K, self.reporter)
        setting = paper_setting(trace) if at_one else best_setting(trace)
        return self._knnlm(store, retriever, setting)

    def adapted(self, knnlm: KNNLM, budget: float) -> KNNLM:
        """Return the vanilla kNN-LM with an adaptor that skips as much as a budget allows on what it held out.

        Its index is one of our own, since what was tuned and the adaptor are kept with it.
        """
        assert knnlm.k is not None
        store, index = knnlm.store, own_name(PAPER)
        build_index(store, PAPER, name=index, quiet=self.quiet)
        retriever = Retriever(store, index)
        trace = trace_search(self.valid, retriever, knnlm.k, self.reporter)
        logp = mix(np.asarray(self.valid.logp, np.float64), trace.log_p_knn(knnlm.temperature), knnlm.lam)
        setting = Point(knnlm.k, knnlm.temperature, knnlm.lam, perplexity(logp))
        save_settings(retriever, setting, self.valid.text)
        return self._knnlm(store, retriever, setting, self._adaptor(retriever, setting).gate("auto", budget))

    def merged(self) -> Datastore:
        """Make the store with greedily merged records."""
        options: dict[str, Any] = {"keep": KEEP, "index": index_of(self.store, AUTO, self.quiet), "quiet": self.quiet}
        return prune_store(self.store, "merge", self.folder / "merged", **options)

    def reduced(self) -> Datastore:
        """Make the store with half of the dimensions, as the paper's main table has, so that codes divide them."""
        dim = 64 * (self.store.dim // 128) or max(1, self.store.dim // 2)
        return reduce_store(self.store, dim, self.folder / "reduced", quiet=self.quiet)

    def row(
        self, name: str, knnlm: KNNLM, lm_seconds: float, pace: Callable[[], float] = lambda: 1.0, times: int = 1
    ) -> Row:
        """Measure one memory from the trace of the test text, and its speed from its parts.

        `pace` tells how fast the machine is at the moment, compared with when `lm_seconds` was measured. Searches are
        timed so many times, each next to it.
        """
        log_lm = np.asarray(self.test.logp, np.float64)
        if knnlm.retriever is None:
            return Row(name, perplexity(log_lm), 1 / lm_seconds)
        k = min(knnlm.k or PAPER_K, knnlm.retriever.max_k)
        trace = trace_search(self.test, knnlm.retriever, k, self.reporter)
        log_knn, lam, extra = trace.log_p_knn(knnlm.temperature), np.full(len(log_lm), knnlm.lam), 0.0
        if knnlm.gate is not None:
            lam = knnlm.gate.weights(self.test.keys, self.test.conf, self.test.ent, self._contexts())
            extra = adaptor_seconds(knnlm.gate.adaptor, self.test)
        asked = lam > 0
        logp = np.where(asked, mix(log_lm, log_knn, lam), log_lm)
        queries = np.asarray(self.test.keys[:TIMED])
        searches = median(searches_per_second(knnlm.retriever, queries, k) / pace() for _ in range(times))
        started = time.perf_counter()
        trace.log_p_knn(knnlm.temperature)
        mixing = (time.perf_counter() - started) / len(log_lm)
        seconds = extra + float(asked.mean()) * (1 / searches + mixing)
        tables = knnlm.gate.adaptor.bytes if knnlm.gate else 0
        return Row(
            name,
            perplexity(logp),
            1 / (lm_seconds + seconds),
            microseconds=1e6 * seconds,
            searches_per_second=searches,
            records=len(knnlm.store),
            dim=knnlm.store.dim,
            store_bytes=knnlm.store.bytes,
            index_bytes=knnlm.retriever.bytes + tables,
            index=knnlm.retriever.index.spec.factory,
            nprobe=knnlm.retriever.index.nprobe,
            k=k,
            temperature=knnlm.temperature,
            lam=knnlm.lam if knnlm.gate is None else None,
            skipped=1 - float(asked.mean()),
        )

    def timed(self, models: dict[str, KNNLM], rounds: int) -> dict[str, list[Evaluation]]:
        """Evaluate some models end to end on the first tokens of the test text, round by round, in all orders.

        Many short rounds are worth more than few long ones: a machine's speed drifts. A run may feel what ran before.
        """
        text = self._read(self.texts.test, min(self.texts.timed_tokens, self.texts.test_tokens or 1 << 62))
        found: dict[str, list[Evaluation]] = {name: [] for name in models}
        self.reporter.say(f"timing end to end, {rounds} rounds of {len(text.targets):,} tokens: {', '.join(models)}")
        for number, turns in enumerate(islice(cycle(permutations(models)), rounds)):
            for name in turns:
                found[name].append(evaluate_tokens(models[name], text))
            self.reporter.say(f"  round {number + 1}: {found[NLM][-1].tokens_per_second:,.0f} tokens/s by the LM alone")
        return found

    def _knnlm(self, store: Datastore, retriever: Retriever, setting: Point, gate: Gate | None = None) -> KNNLM:
        settings: dict[str, Any] = {"lam": setting.lam, "temperature": setting.temperature, "k": setting.k}
        return KNNLM(self.lm, store, retriever, gate=gate, **settings)

    def _adaptor(self, retriever: Retriever, setting: Point) -> Adaptor:
        """Train an adaptor on the validation text, unless there is one for this very search."""
        store, index = retriever.store, retriever.name
        if index in store.adaptors:
            try:
                adaptor = Adaptor.load(store, index)
                adaptor.check(retriever, setting.temperature, setting.k, self.lm.fingerprint())
                if adaptor.described["text"] == self.valid.text.sha256:
                    return adaptor
            except NearLMError as error:
                self.reporter.say(f"{error}; training it again")
        return Adaptor.train(self.lm, store, self.valid.text, name=index, index=index, reporter=self.reporter)

    def _contexts(self) -> Any:
        text = self.test.text
        return last_tokens(text.tokens, text.bounds, text.windows.target_positions)

    def _trace(self, texts: Sequence[str], tokens: int | None) -> LMTrace:
        reading = Reading.of_store(self.store.manifest)
        return trace_lm(self.lm, self._read(texts, tokens), reading, self.reporter)

    def _read(self, texts: Sequence[str], tokens: int | None) -> TokenText:
        reading = Reading.of_store(self.store.manifest)
        return read_text(texts, self.lm.tokenizer, reading, max_tokens=tokens, reporter=self.reporter)


def main_table(memories: Memories, best: Datastore, *, budget: float, rounds: int) -> MainTable:
    """Measure the paper's rows; `best` is the optimized store, with all remedies."""
    vanilla, everything = memories.tuned(memories.store, PAPER), KNNLM.load(best, memories.lm)
    whole = {NLM: memories.alone(), VANILLA: vanilla, ALL: everything}
    runs = memories.timed(whole, rounds)
    paces = {name: [run.tokens_per_second for run in found] for name, found in runs.items()}
    speeds = compared(paces)
    models = {
        NLM: whole[NLM],
        VANILLA: vanilla,
        "+ AR": memories.adapted(vanilla, budget),
        "+ GM": memories.tuned(memories.merged(), PAPER),
        "+ DR": memories.tuned(memories.reduced(), PAPER),
        "+ index": memories.tuned(memories.store, AUTO),
        ALL: everything,
    }
    assert vanilla.retriever is not None
    usual = median(run.retrievals_per_second or 0.0 for run in runs[VANILLA])
    reference, queries = vanilla.retriever, np.asarray(memories.test.keys[:TIMED])

    def pace() -> float:
        return searches_per_second(reference, queries, PAPER_K) / usual

    rows = []
    for name, knnlm in models.items():
        row = memories.row(name, knnlm, 1 / speeds[NLM], pace, max(1, rounds // 3))
        memories.reporter.say(f"  {name}: perplexity {row.perplexity:.3f}")
        if name in runs:
            beyond = median(_beyond(run) for run in runs[name])
            row = replace(row, tokens_per_second=speeds[name], microseconds=beyond, end_to_end=True)
        rows.append(row)
    return MainTable(len(memories.test), rows, paces)


def compared(rounds: dict[str, list[float]]) -> dict[str, float]:
    """Return how fast models are, from their speeds in every round, each compared with the LM's in the same one."""
    alone = rounds[NLM]
    ratios = {name: median(one / own for one, own in zip(found, alone, strict=True)) for name, found in rounds.items()}
    return {name: median(alone) * ratio for name, ratio in ratios.items()}


def baseline(memories: Memories, lm_seconds: float) -> MainTable:
    """Measure the paper's first table: the LM, kNN-LMs with T=1 and T tuned, with exact distances, with our index."""
    models = {
        NLM: memories.alone(),
        "kNN-LM, T=1": memories.tuned(memories.store, PAPER, at_one=True),
        VANILLA: memories.tuned(memories.store, PAPER),
        "kNN-LM, exact": memories.tuned(memories.store, PAPER, "store"),
        "nearlm's index": memories.tuned(memories.store, AUTO),
    }
    return MainTable(len(memories.test), [memories.row(name, model, lm_seconds) for name, model in models.items()])


def _beyond(run: Evaluation) -> float:
    """Return the microseconds that a token took beyond the LM."""
    share = run.adaptor_share + run.search_share + run.mixing_share
    return 1e6 * share * run.seconds / run.tokens
