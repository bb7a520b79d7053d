"""What `optimize` measures: smaller stores and a gate on a validation text, each noted when it is measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nearlm.base import ArrayFile, Doubles, Job, Reporter, check_that, files
from nearlm.mixing import (
    SHARES,
    SURE,
    TRUSTED_TOKENS,
    Gate,
    InfiniGram,
    LMTrace,
    Looked,
    MixtureExamples,
    Samples,
    Searched,
    Trace,
    Training,
    best_setting,
    best_settings,
    cross_fit,
    examples_of,
    judge,
    mix,
    mixture_examples,
    perplexity,
    search_only,
    split_rows,
    standard_error,
    trace_search,
    train_network,
)
from nearlm.optimizer.bench import Bench
from nearlm.optimizer.points import HeldOutTokens, Point, Setup, Shape, Skipping
from nearlm.search import AUTO, PAPER, Retriever, build_index, write_settings
from nearlm.shrink import PruneOptions
from nearlm.store import DEFAULT, Datastore, SearchSettings, Tuned

NEIGHBORS_TRIED = (1024, 512, 256, 128)
FINAL = "final"  # notes of a job
VANILLA = "vanilla"
_ALL = slice(None)
Result = TypeVar("Result")


class Trials(Bench):
    """Makes smaller stores and measures them, noting what has been measured.

    `own` is what the LM wrote by itself, from which mixtures learn too.
    """

    def __init__(
        self, store: Datastore, traced: LMTrace, work: Path, job: Job, reporter: Reporter, own: LMTrace | None = None
    ):
        super().__init__(store, traced, reporter)
        self.own = own
        self.work = work
        self.job = job
        self.whole = Shape(1.0, store.dim)

    def measure_once(self, name: str, measure: Callable[[], list[Point]]) -> list[Point]:
        """Return points that were measured before, or measure and note them."""
        points = self.job.once(name, list[Point], measure)
        tuned = all(one.setup.tuned for one in points)
        check_that(points and tuned, self.job.folder / f"{name}.json", "tuned points")
        for one in points:
            self.reporter.say(f"  {one.label}: perplexity {one.perplexity:.3f}, {one.microseconds:.0f} µs per token")
        return points

    def keep_once(
        self,
        name: str,
        kind: type[Result],
        rows: Callable[[Result], int],
        compute: Callable[[], tuple[Result, Doubles]],
    ) -> tuple[Result, Doubles]:
        """Return a result and so many rows of a number for each token, as measured before, or measure and keep them."""

        def file(result: Result) -> ArrayFile:
            return ArrayFile(self.work / f"{name}.npy", np.dtype("float64"), (rows(result), len(self.traced)))

        def measure() -> Result:
            result, array = compute()
            file(result).write(array)
            return result

        result = self.job.once(name, kind, measure)
        kept = file(result)
        check_that(kept.sound, kept.path, f"{kept.shape[0]} numbers for each token")
        return result, kept.open()

    @cached_property
    def _paper_trace(self) -> Trace:
        return self.trace(self.open(self.store, PAPER))

    def vanilla(self) -> Point:
        """Measure the paper's kNN-LM."""
        self.reporter.say("the vanilla kNN-LM: the paper's index, 32 lists, 1024 neighbours")

        def compute() -> list[Point]:
            trace = self._paper_trace
            return [replace(self.point(self.whole, trace.retriever, best_setting(trace)), label=VANILLA)]

        return self.measure_once(VANILLA, compute)[0]

    @cached_property
    def log_vanilla(self) -> Doubles:
        """What the paper's kNN-LM gives every token, as it was tuned."""
        return self._paper_trace.log_p(self.job.once(VANILLA, list[Point], list)[0].setup.search)

    def margin(self, logp: Doubles, rows: Any = _ALL) -> float:
        """Return two standard errors of the difference from the vanilla kNN-LM on some tokens, in perplexity."""
        documents = np.asarray(self.traced.text.documents)[rows]
        error = standard_error((logp - self.log_vanilla)[rows], documents)
        return SURE * error * perplexity(logp[rows])

    def mix(
        self, sources: tuple[str, ...], infinigram: InfiniGram, trace: Trace | None = None, tuned: Tuned | None = None
    ) -> tuple[Doubles, Doubles]:
        """Return log p of every token with a search and without, mixed by what was trained on the text's other half."""

        def examples(traced: LMTrace, found: Trace | None) -> MixtureExamples:
            searched = None if found is None or tuned is None else Searched(found, tuned)
            return mixture_examples(traced, sources, infinigram, searched)

        samples = None
        if self.own is not None:
            near = None if trace is None else trace_search(self.own, trace.retriever, trace.k, self.reporter)
            samples = Samples(examples(self.own, near), self.own.text.documents)
        return cross_fit(examples(self.traced, trace), self.documents, samples=samples)

    def measure(self, shape: Shape, nprobes: Sequence[int]) -> list[Point]:
        """Measure a store of this shape with different numbers of lists, and of neighbours."""

        def compute() -> list[Point]:
            store = self.derive(shape)
            lists = self.open(store, AUTO).index.nprobe
            points = []
            for nprobe in nprobes if lists else (None,):
                retriever = self.open(store, AUTO, nprobe=nprobe)
                trace = self.trace(retriever)
                for tuned in best_settings(trace, NEIGHBORS_TRIED):
                    margin = self.margin(trace.log_p(tuned))
                    points.append(replace(self.point(shape, retriever, tuned), margin=margin))
            return points

        points = self.measure_once(f"{shape.folder}-{'-'.join(map(str, nprobes))}", compute)
        files.remove(self.work / shape.folder)
        return points

    def point(self, shape: Shape, retriever: Retriever, tuned: Tuned) -> Point:
        """Time one way to search."""
        search = SearchSettings(**tuned.values)
        return Point(
            label=shape.label(self.whole, search),
            setup=Setup.of(retriever, search),
            keep=shape.keep,
            perplexity=tuned.perplexity,
            microseconds=1e6 / self.searches_per_second(retriever, tuned.k or 1),
        )

    def skipping(self, point: Point) -> Skipping | None:
        """Train a gate for one way to search the whole store; tell what skipping does to what was held out."""
        split = split_rows(self.traced.text.documents, Training().seed)
        if len(split.held) < TRUSTED_TOKENS:
            return None

        def compute() -> Skipping:
            self.reporter.say("skipping searches")
            training = Training()
            search = point.setup.search
            trace = self.trace(self.open(self.store, AUTO, nprobe=search.nprobe))
            inputs = training.inputs(self.traced.keys.shape[1])
            looked = Looked.build(self.store, inputs, self.reporter)
            examples = examples_of(trace, inputs, looked, search)
            trained = train_network(inputs, examples, split, training.coefficients()[0], training)
            verdict = judge(trained.network, examples, split, training.objective, search.lam or 0.0)
            gate = Gate(trained.network, verdict, search_only(search), looked)
            held = verdict.held_out
            return Skipping(
                ratios=[value / held.constant for value in held.curve],
                margin=self.margin(_Trial.of(self, gate, trace).logp(0.0)),
                microseconds=1e6 * self.gate_seconds(gate),
            )

        skipping = self.job.once("skipping", Skipping, compute)
        self.reporter.say(
            f"  a gate: {skipping.microseconds:.1f} µs per token; perplexity x {skipping.ratios[0]:.3f} when nothing "
            f"is skipped, x {skipping.ratios[50]:.3f} when half is; to be sure of it takes {skipping.margin:.3f}"
        )
        return skipping

    def derive(self, shape: Shape, folder: Path | None = None) -> Datastore:
        """Return a store of this shape, at a place of its own if need be: pruned, then rotated and reduced.

        It is pruned by k-means, which docs/results.md found best; that store stays until all is done.
        """
        source = self.store
        if shape.keep < 1:
            source = self.prune(PruneOptions("kmeans", keep=shape.keep), self.work / f"keep-{shape.keep:g}")
        if folder is None and shape.dim == self.store.dim:
            return source
        return self.reduce(source, shape.dim, folder or self.work / shape.folder)

    def begin_final(self) -> None:
        """Note that the chosen store is being made at its place."""
        self.job.note(FINAL, {"begun": True})

    def final(self, best: Point, folder: Path) -> Datastore:
        """Make a chosen store at its place, indexed and tuned."""
        self.begin_final()
        search = best.setup.search
        final = self.derive(Shape(best.keep, best.setup.dim), folder)
        build_index(final, AUTO, name=DEFAULT, nprobe=search.nprobe, reporter=self.steps)
        trace = self.trace(Retriever(final, DEFAULT, nprobe=search.nprobe), search.k or 1)
        write_settings(final, best_setting(trace))
        return final

    def gate(
        self, final: Datastore, best: Point, budget: float, train: Callable[[Datastore], Gate]
    ) -> tuple[Point, HeldOutTokens]:
        """Train a gate for a chosen store and choose how much it skips; tell also of the tokens held out from it.

        That is the largest share whose perplexity surely stays within the budget (by two standard errors of the
        difference) on the tokens that were held out, and, since these are few, on the whole text.
        """
        gate = train(final)
        held = split_rows(self.traced.text.documents, gate.info.training.seed).held
        search = best.setup.search
        trial = _Trial.of(self, gate, self.trace(Retriever.open(final, gate.settings), search.k or 1))
        shares = SHARES[:-1] if len(held) >= TRUSTED_TOKENS else SHARES[:0]
        skip = max((float(share) for share in shares if trial.within(share, budget, held)), default=0.0)
        value = perplexity(trial.logp(skip)[held])
        vanilla = perplexity(self.log_vanilla[held])
        setup = replace(
            best.setup,
            index_bytes=best.setup.index_bytes + gate.bytes,
            search=replace(search, gate=gate.name, skip=skip),
        )
        point = replace(
            best,
            label=f"{best.label}, skip {skip:.0%}",
            setup=setup,
            perplexity=value,
            beyond=value - vanilla,
            margin=0.0,
            microseconds=1e6 * self.gate_seconds(gate) + (1 - skip) * best.microseconds,
            learned=gate.learned,
            sure=bool(len(shares)) and trial.within(skip, budget, held),
        )
        judged = gate.info.held_out
        return point, HeldOutTokens(len(held), vanilla, judged.constant, judged.nlm)


@dataclass(frozen=True)
class _Trial:
    """What a gate makes of every token of the validation text, next to what the vanilla kNN-LM does."""

    trials: Trials
    gate: Gate
    log_lam: Doubles
    log_knn: Doubles

    @classmethod
    def of(cls, trials: Trials, gate: Gate, trace: Trace) -> "_Trial":
        """Ask a gate's network of every token."""
        traced = trials.traced
        log_lam = gate.log_weights(traced.keys, traced.known())[:, 0]
        return cls(trials, gate, log_lam, trace.log_p_knn_of(gate.settings))

    def logp(self, share: float) -> Doubles:
        """Return log p of every token when so many searches are skipped."""
        return mix(self.trials.traced.log_lm, self.log_knn, self.gate.at(share).weigh(self.log_lam))

    def within(self, share: float, budget: float, held: Any) -> bool:
        """Tell whether skipping a share surely stays within the budget, on the held-out tokens and on all."""
        logp = self.logp(share)
        vanilla = self.trials.log_vanilla
        return all(
            perplexity(logp[rows]) + self.trials.margin(logp, rows) <= perplexity(vanilla[rows]) + budget
            for rows in (held, _ALL)
        )
