"""The bench of `optimize`: makes smaller stores, measures them on one validation text, and notes what it measured."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Job, Json, Reporter, files
from nearlm.mixing import (
    DEFAULT_A,
    DEFAULT_FEATURES,
    SHARES,
    SURE,
    TRUSTED_TOKENS,
    Adaptor,
    LMTrace,
    Settings,
    Trace,
    Training,
    best_setting,
    best_settings,
    build_ngrams,
    examples_of,
    judged,
    last_tokens,
    mix,
    perplexity,
    pruned_logp,
    save_settings,
    split_rows,
    standard_error,
    trace_search,
    train_network,
)
from nearlm.mixing import Point as Setting
from nearlm.mixing import Shape as AdaptorShape
from nearlm.optimizer.measuring import (
    AUTO,
    PAPER,
    TIMED,
    adaptor_seconds,
    index_of,
    quiet_steps,
    searches_per_second,
)
from nearlm.optimizer.points import Point, Shape, Skipping
from nearlm.search import DEFAULT, PAPER_K, Retriever, build_index
from nearlm.shrink import prune_store, reduce_store
from nearlm.store import Datastore

KS = (1024, 512, 256, 128)
FINAL, _VANILLA = "final", "vanilla"  # notes of a job


class Bench:
    """Makes smaller stores and measures them, noting what has been measured."""

    def __init__(self, store: Datastore, traced: LMTrace, work: Path, job: Job, reporter: Reporter):
        self.store, self.traced, self.work, self.job, self.reporter = store, traced, work, job, reporter
        self.whole, self.quiet = Shape(1.0, store.dim), quiet_steps(store, reporter)
        self.queries = np.asarray(traced.keys[:TIMED])

    def noted(self, name: str, measure: Callable[[], list[Point]]) -> list[Point]:
        """Return points that were measured before, or measure and note them."""
        known = self.job.state(name)
        if not known:
            known = {"points": [asdict(point) for point in measure()]}
            self.job.note(name, known)
        found = [Point(**point) for point in known["points"]]
        for point in found:
            self.reporter.say(
                f"  {point.label}: perplexity {point.perplexity:.3f}, {point.microseconds:.0f} µs a token"
            )
        return found

    @cached_property
    def paper_trace(self) -> Trace:
        """What the paper's kNN-LM thinks of every token."""
        retriever = Retriever(self.store, index_of(self.store, PAPER, self.quiet))
        return trace_search(self.traced, retriever, PAPER_K, self.reporter)

    @cached_property
    def log_vanilla(self) -> npt.NDArray[np.float64]:
        """What the paper's kNN-LM gives every token, as it was tuned."""
        (found,) = self.job.state(_VANILLA)["points"]
        log_lm = np.asarray(self.traced.logp, np.float64)
        return mix(log_lm, self.paper_trace.log_p_knn(found["temperature"]), found["lam"])

    def margin(self, logp: npt.NDArray[np.float64], rows: Any = slice(None)) -> float:
        """Return two standard errors of the difference from the vanilla kNN-LM on some tokens, in perplexity."""
        documents = np.asarray(self.traced.text.documents)[rows]
        error = standard_error((logp - self.log_vanilla)[rows], documents)
        return SURE * error * perplexity(logp[rows])

    def vanilla(self) -> Point:
        """Measure the paper's kNN-LM."""
        self.reporter.say("the vanilla kNN-LM: the paper's index, 32 lists, 1024 neighbours")

        def measured() -> list[Point]:
            trace = self.paper_trace
            return [self.point(_VANILLA, self.store, self.whole, trace.retriever, best_setting(trace))]

        return self.noted(_VANILLA, measured)[0]

    def measure(self, shape: Shape, nprobes: Sequence[int]) -> list[Point]:
        """Measure a store of this shape with different numbers of lists, and of neighbours."""

        def measured() -> list[Point]:
            store = self.held(shape)
            name = index_of(store, AUTO, self.quiet)
            lists = Retriever(store, name).index.nprobe
            points = []
            for nprobe in nprobes if lists else (None,):
                retriever = Retriever(store, name, nprobe=nprobe)
                trace = trace_search(self.traced, retriever, PAPER_K, self.reporter)
                for one in best_settings(trace, KS):
                    log_knn = trace.log_p_knn(one.temperature, one.k)
                    logp = mix(np.asarray(self.traced.logp, np.float64), log_knn, one.lam)
                    found = self.point("", store, shape, retriever, one)
                    points.append(replace(found, margin=self.margin(logp)))
            return points

        found = self.noted(f"{shape.folder}-{'-'.join(map(str, nprobes))}", measured)
        files.remove(self.work / shape.folder)
        return found

    def skipping(self, point: Point) -> Skipping | None:
        """Train an adaptor for one way to search the whole store; tell what skipping does to what was held out."""
        known = self.job.state("skipping")
        if not known:
            split = split_rows(self.traced.text.documents, Training().seed)
            if len(split.held) < TRUSTED_TOKENS:
                return None
            self.reporter.say("skipping searches")
            retriever = Retriever(self.store, index_of(self.store, AUTO, self.quiet), nprobe=point.nprobe)
            shape = AdaptorShape(self.traced.keys.shape[1], DEFAULT_FEATURES)
            ngrams = build_ngrams(self.store, self.reporter)
            settings = Settings(retriever.name, point.k, point.temperature, retriever.index.nprobe, retriever.distances)
            trace = trace_search(self.traced, retriever, PAPER_K, self.reporter)
            examples = examples_of(trace, shape, ngrams, settings)
            trained = train_network(shape, examples, split, DEFAULT_A, Training())
            described = judged(trained.network, examples, split, Training().objective, point.lam)
            adaptor = Adaptor(trained.network, {**described, "settings": asdict(settings)}, ngrams)
            held = described["held_out"]
            trial = _Trial(self, adaptor, trace)
            known = {
                "ratios": [value / held["constant"] for value in held["curve"]],
                "margin": self.margin(trial.logp(0.0)),
                "microseconds": 1e6 * adaptor_seconds(adaptor, self.traced),
            }
            self.job.note("skipping", known)
        found = Skipping(**known)
        self.reporter.say(
            f"  an adaptor: {found.microseconds:.1f} µs a token; perplexity x {found.ratios[0]:.3f} when nothing is "
            f"skipped, x {found.ratios[50]:.3f} when half is; to be sure of it takes {found.margin:.3f}"
        )
        return found

    def made(self, shape: Shape, folder: Path) -> Datastore:
        """Make a store of this shape at a place of its own: pruned, then rotated and reduced."""
        source = self.store if shape.keep == 1 else self.pruned(shape.keep)
        return reduce_store(source, shape.dim, folder, quiet=self.quiet)

    def pruned(self, keep: float) -> Datastore:
        """Return the store pruned by k-means, which docs/results.md found best; it stays until all is done."""
        folder = self.work / f"keep-{keep:g}"
        return prune_store(self.store, "kmeans", folder, keep=keep, quiet=self.quiet)

    def held(self, shape: Shape) -> Datastore:
        """Return a store of this shape to measure."""
        if shape.dim < self.store.dim:
            return self.made(shape, self.work / shape.folder)
        return self.store if shape.keep == 1 else self.pruned(shape.keep)

    def point(self, label: str, store: Datastore, shape: Shape, retriever: Retriever, setting: Setting) -> Point:
        """Time one way to search."""
        nprobe = retriever.index.nprobe
        speed = searches_per_second(retriever, self.queries, setting.k)
        return Point(
            label=label or shape.label(self.whole, nprobe, setting.k),
            keep=shape.keep,
            dim=shape.dim,
            nprobe=nprobe,
            k=setting.k,
            perplexity=setting.perplexity,
            microseconds=1e6 / speed,
            temperature=setting.temperature,
            lam=setting.lam,
            records=len(store),
            store_bytes=store.bytes,
            index_bytes=retriever.bytes,
        )

    def final(self, best: Point, folder: Path) -> Datastore:
        """Make a chosen store at its place, indexed and tuned."""
        self.job.note(FINAL, {"begun": True})
        final = self.made(Shape(best.keep, best.dim), folder)
        build_index(final, AUTO, name=DEFAULT, nprobe=best.nprobe, quiet=self.quiet)
        retriever = Retriever(final, DEFAULT, nprobe=best.nprobe)
        trace = trace_search(self.traced, retriever, best.k, self.reporter)
        save_settings(retriever, best_setting(trace), self.traced.text)
        return final

    def adapted(
        self, final: Datastore, best: Point, budget: float, train: Callable[[Datastore], Adaptor]
    ) -> tuple[Point, Json]:
        """Train an adaptor for a chosen store and choose how much it skips; tell also of the tokens held out from it.

        That is the largest share whose perplexity surely stays within the budget (by two standard errors of the
        difference) on the tokens that were held out, and, since these are few, on the whole text.
        """
        adaptor = train(final)
        held = split_rows(self.traced.text.documents, adaptor.described["training"]["seed"]).held
        trace = trace_search(self.traced, adaptor.settings.retriever(final), best.k, self.reporter)
        trial = _Trial(self, adaptor, trace)
        shares = SHARES[:-1] if len(held) >= TRUSTED_TOKENS else SHARES[:0]
        skip = max((float(share) for share in shares if trial.within(share, budget, held, slice(None))), default=0.0)
        there, value = perplexity(self.log_vanilla[held]), perplexity(trial.logp(skip)[held])
        found = adaptor.described["held_out"]
        held_out = {"tokens": len(held), "vanilla": there, "constant": found["constant"], "nlm": found["nlm"]}
        point = replace(
            best,
            label=f"{best.label}, skip {skip:.0%}",
            perplexity=value,
            beyond=value - there,
            margin=0.0,
            microseconds=1e6 * adaptor_seconds(adaptor, self.traced) + (1 - skip) * best.microseconds,
            index_bytes=best.index_bytes + adaptor.bytes,
            adaptor=True,
            learned=adaptor.learned,
            skip=skip,
            sure=bool(len(shares)) and trial.within(skip, budget, held, slice(None)),
        )
        return point, held_out


class _Trial:
    """What an adaptor makes of every token of the validation text, next to what the vanilla kNN-LM does."""

    def __init__(self, bench: Bench, adaptor: Adaptor, trace: Trace):
        traced, text, settings = bench.traced, bench.traced.text, adaptor.settings
        self.bench, self.adaptor = bench, adaptor
        contexts = last_tokens(text.tokens, text.bounds, text.windows.target_positions)
        self.log_lam = adaptor.log_weights(traced.keys, traced.conf, traced.ent, contexts)[:, 0]
        self.log_lm = np.asarray(traced.logp, np.float64)
        self.log_knn = trace.log_p_knn(settings.temperature, settings.k)

    def logp(self, share: float) -> npt.NDArray[np.float64]:
        """Return log p of every token when so many searches are skipped."""
        lam = self.adaptor.gate(share).weigh(self.log_lam)
        return pruned_logp(self.log_lm, self.log_knn, lam, lam > 0)

    def within(self, share: float, budget: float, *parts: Any) -> bool:
        """Tell whether skipping a share surely stays within the budget, on every part of the text."""
        logp = self.logp(share)
        return all(
            perplexity(logp[rows]) + self.bench.margin(logp, rows) <= perplexity(self.bench.log_vanilla[rows]) + budget
            for rows in parts
        )
