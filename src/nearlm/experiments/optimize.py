"""From a store to the fastest one within a perplexity budget of the vanilla kNN-LM, chosen on a validation text.

Narrower keys, fewer records, fewer lists, fewer neighbours and skipped searches are first measured one at a time. What
they cost together is then estimated (differences of perplexity add up, ratios multiply), and the combinations that
seem fastest within the budget are made and measured while they promise to beat what has been. Within the budget means
surely so: by two standard errors of the difference from the vanilla kNN-LM. The share of searches to skip is in the end
the largest that is, on the tokens held out from the adaptor's training and on the whole text.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm import files
from nearlm.adapting import TRUSTED_TOKENS, Settings, examples_of, judged
from nearlm.adaptor import Adaptor
from nearlm.adaptor_network import DEFAULT_FEATURES
from nearlm.adaptor_network import Shape as AdaptorShape
from nearlm.adaptor_training import (
    DEFAULT_A,
    SHARES,
    SURE,
    Training,
    pruned_logp,
    split_rows,
    standard_error,
    train_network,
)
from nearlm.datastore import DERIVE_JOB, MANIFEST, Datastore
from nearlm.errors import OptionError, StoreError
from nearlm.experiments.measuring import (
    AUTO,
    PAPER,
    SMALL,
    TIMED,
    adaptor_seconds,
    index_of,
    quiet_steps,
    searches_per_second,
    unbeaten,
)
from nearlm.experiments.points import Choice, Goal, Point, Shape, Skipping, cheapest, estimates, explained, preferred
from nearlm.fetch import store_folder
from nearlm.files import Json
from nearlm.index import DEFAULT, PAPER_K
from nearlm.indexing import build_index
from nearlm.lm import LM
from nearlm.mix import mix, perplexity
from nearlm.ngrams import build_ngrams, last_tokens
from nearlm.progress import Reporter, duration, size
from nearlm.prune.pruning import prune_store
from nearlm.reduce import reduce_store
from nearlm.retrieve import Retriever
from nearlm.trace import LMTrace, Reading, Trace, read_text, room_for_traces, trace_lm, trace_search
from nearlm.tune import Point as Setting
from nearlm.tune import best_setting, best_settings, save_settings
from nearlm.writing import refuse_foreign

DIMS = (192, 128, 64)
KEEPS = (0.4, 0.2)
SMALL_DIMS, SMALL_KEEPS = (128,), (0.4,)  # a small store is searched so fast that more would not tell
NPROBES = (8, 4, 2)
KS = (1024, 512, 256, 128)
VANILLA = "vanilla"
_FILE, _JOB, _REFUSED, _FINAL = "optimize.json", "optimize", "refused", "final"
_ATTEMPTS = 4
_PROMISING = 0.95  # of the least time so far: estimates are no better than that
_TRACE_BYTES, _WITH_INDEX = 8, 1.4  # of a neighbour; of a store
_SHAPE_SECONDS, _PRUNE_SECONDS, _PAPER_SECONDS = 60e-6, 200e-6, 300e-6  # a record, on two cores


def optimize(
    lm: LM,
    store: Datastore,
    texts: str | Sequence[str],
    out: str | Path,
    *,
    budget: float = 0.1,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Choice:
    """Make, at `out`, the fastest store within `budget` perplexity of the vanilla kNN-LM, ready to use."""
    reporter = reporter or Reporter(quiet=True)
    if not 0 <= budget < float("inf"):
        raise OptionError(f"--budget is {budget}, expected 0 or more perplexity")
    folder = store_folder(out)
    if folder.resolve() == store.path.resolve():
        raise StoreError(f"--out is the store itself ({folder}); choose another folder")
    reading = Reading.of_store(store.manifest)
    text = read_text(texts, lm.tokenizer, reading, max_tokens=max_tokens, reporter=reporter, **corpus_options)
    plan = {"store": store.manifest["checksum"], "text": text.sha256, "budget": budget, "model": lm.fingerprint()}
    work = folder.absolute().with_name(f"{folder.absolute().name}.optimize")
    if (folder / _FILE).exists():
        files.remove(work)
        return _finished(folder, plan, reporter)
    _check_out(folder, work)
    work.mkdir(parents=True, exist_ok=True)
    with files.lock(work):
        job = files.Job(work, _JOB)
        _begin(job, plan, work, folder)
        _announce(store, len(text.targets), reporter)
        bench = _Bench(store, trace_lm(lm, text, reading, reporter), work, job, reporter)

        def train(final: Datastore) -> Adaptor:
            return Adaptor.train(lm, final, text, reporter=reporter)

        choice = _choose(bench, budget, folder, train)
        files.write_stamped(folder / _FILE, {"plan": plan, "choice": choice.to_json()})
        files.remove(work)
    return choice


def _finished(folder: Path, plan: Json, reporter: Reporter) -> Choice:
    noted = files.read_stamped(folder / _FILE)
    if noted["plan"] != plan:
        raise StoreError(f"{folder} was optimized from another store, text or budget; choose another --out")
    reporter.say(f"{folder} is complete already")
    return Choice.from_json(noted["choice"])


def _check_out(folder: Path, work: Path) -> None:
    """Refuse, before the work, a place that holds something else than what an earlier run has left."""
    if not work.exists():
        refuse_foreign(folder, DERIVE_JOB)
        if (folder / MANIFEST).exists():
            raise StoreError(f"{folder} is a finished store, made in another way; choose another --out")


def _begin(job: files.Job, plan: Json, work: Path, folder: Path) -> None:
    """Begin a job, or go on with it; one for something else is thrown away, with what it made."""
    if job.started and job.plan() == plan:
        return
    files.remove(job.folder / "plan.json")
    if job.state(_FINAL):
        files.remove(folder)
    for path in work.iterdir():
        if path not in (job.folder, work / ".lock"):
            files.remove(path)
    job.begin(plan)


def _announce(store: Datastore, tokens: int, reporter: Reporter) -> None:
    """Say what will be measured and about how long that takes, by what its parts took per record and core."""
    shapes = len(_shapes(store)) + _ATTEMPTS // 2
    searches = 1 + len(NPROBES) + shapes + 2
    traces = min(room_for_traces(), searches * tokens * min(PAPER_K, len(store)) * _TRACE_BYTES)
    stores = store.bytes * (sum(shape.keep for shape in _shapes(store) if shape.keep < 1) + 2 * _WITH_INDEX)
    paper = 0 if PAPER in store.indexes else _PAPER_SECONDS
    seconds = len(store) * (shapes * _SHAPE_SECONDS + _PRUNE_SECONDS + paper) * 2 / max(1, os.cpu_count() or 1)
    reporter.say(
        f"measuring the vanilla kNN-LM and about {shapes + 1} smaller stores on {tokens:,} tokens: about "
        f"{duration(seconds + 60)}, without the LM's pass over the text; up to {size(stores)} of disk, and "
        f"{size(traces)} in the cache. Two indexes to compare with and n-gram tables stay in {store.path}"
    )


def _shapes(store: Datastore) -> list[Shape]:
    """Return what to make of a store, one change at a time."""
    dims, keeps = (SMALL_DIMS, SMALL_KEEPS) if len(store) < SMALL else (DIMS, KEEPS)
    return [Shape(1.0, dim) for dim in dims if dim < store.dim] + [Shape(keep, store.dim) for keep in keeps]


class _Bench:
    """Makes smaller stores and measures them, noting what has been measured."""

    def __init__(self, store: Datastore, traced: LMTrace, work: Path, job: files.Job, reporter: Reporter):
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
        (found,) = self.job.state(VANILLA)["points"]
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
            return [self.point(VANILLA, self.store, self.whole, trace.retriever, best_setting(trace))]

        return self.noted(VANILLA, measured)[0]

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
        self.job.note(_FINAL, {"begun": True})
        final = self.made(Shape(best.keep, best.dim), folder)
        build_index(final, AUTO, name=DEFAULT, nprobe=best.nprobe, quiet=self.quiet)
        retriever = Retriever(final, DEFAULT, nprobe=best.nprobe)
        trace = trace_search(self.traced, retriever, best.k, self.reporter)
        save_settings(retriever, best_setting(trace), self.traced.text)
        return final


def _choose(bench: _Bench, budget: float, folder: Path, train: Callable[[Datastore], Adaptor]) -> Choice:
    vanilla, points = bench.vanilla(), bench.measure(bench.whole, NPROBES)
    goal = Goal(vanilla.perplexity + budget, bench.skipping(points[0]))
    points = _explored(bench, points, goal)
    points = [replace(one, beyond=one.perplexity - vanilla.perplexity) for one in points]

    plain, gated, chosen = cheapest(points, goal.alone), [], None
    for best in dict.fromkeys((cheapest(points, goal), plain)):
        refused = bench.job.state(_REFUSED)
        if refused and best != plain:
            gated.append(Point(**refused["point"]))
            continue
        found, held_out = _adapted(bench, bench.final(best, folder), best, budget, train)
        gated.append(found)
        if preferred(found, plain, goal.target):
            chosen = found
            break
        if best != plain:
            bench.reporter.say(f"{found.label} is not surely within the budget, or no faster; taking {plain.label}")
            files.remove(bench.work / _REFUSED)
            files.replace(folder, bench.work / _REFUSED)  # at once: what a kill leaves of a removed one is no store
            bench.job.note(_REFUSED, {"point": asdict(found)})
    chosen = chosen or plain

    Datastore.open(folder).set_defaults(DEFAULT, *((DEFAULT, chosen.skip) if chosen.adaptor else (None, None)))
    points += gated
    marks = unbeaten([(point.beyond, point.microseconds) for point in points])
    points = [replace(one, pareto=mark, chosen=one is chosen) for one, mark in zip(points, marks, strict=True)]
    nlm = perplexity(np.asarray(bench.traced.logp, np.float64))
    paragraph = explained(vanilla, chosen, budget, held_out)
    return Choice(budget, len(bench.traced), nlm, vanilla, goal.target, held_out, points, paragraph)


def _explored(bench: _Bench, whole: list[Point], goal: Goal) -> list[Point]:
    """Measure changes alone, then the combinations that are estimated to be cheapest, while they promise to be."""
    points, alone = list(whole), {bench.whole: whole[0]}
    tried: set[tuple[Shape, int | None]] = {(bench.whole, point.nprobe) for point in whole}

    def measure(shape: Shape, nprobe: int | None) -> Point | None:
        tried.add((shape, nprobe))
        try:
            found = bench.measure(shape, (nprobe or NPROBES[0],))
        except OptionError as error:  # more clusters than that are needed
            bench.reporter.say(f"left out: {error}")
            return None
        points.extend(found)
        return found[0]

    for shape in _shapes(bench.store):
        found = measure(shape, whole[0].nprobe)
        if found is not None:
            alone[shape] = found
    guesses = [
        (goal.price(guess, time, search.margin), shape, search.nprobe)
        for time, guess, shape, search in estimates(whole, alone, bench.whole)
    ]
    attempts = 0
    for guess, shape, nprobe in sorted(guesses, key=lambda one: one[0]):
        least = min(goal.price(point.perplexity, point.microseconds, point.margin) for point in points)
        if not guess < _PROMISING * least or attempts == _ATTEMPTS:
            break
        if (shape, nprobe) not in tried:
            measure(shape, nprobe)
            attempts += 1
    return points


def _adapted(
    bench: _Bench,
    final: Datastore,
    best: Point,
    budget: float,
    train: Callable[[Datastore], Adaptor],
) -> tuple[Point, Json]:
    """Train an adaptor for a chosen store and choose how much it skips.

    That is the largest share whose perplexity surely stays within the budget (by two standard errors of the difference)
    on the tokens that were held out, and, since these are few, on the whole text.
    """
    adaptor = train(final)
    held = split_rows(bench.traced.text.documents, adaptor.described["training"]["seed"]).held
    trace = trace_search(bench.traced, adaptor.settings.retriever(final), best.k, bench.reporter)
    trial = _Trial(bench, adaptor, trace)
    shares = SHARES[:-1] if len(held) >= TRUSTED_TOKENS else SHARES[:0]
    skip = max((float(share) for share in shares if trial.within(share, budget, held, slice(None))), default=0.0)
    there, value = perplexity(bench.log_vanilla[held]), perplexity(trial.logp(skip)[held])
    found = adaptor.described["held_out"]
    held_out = {"tokens": len(held), "vanilla": there, "constant": found["constant"], "nlm": found["nlm"]}
    point = replace(
        best,
        label=f"{best.label}, skip {skip:.0%}",
        perplexity=value,
        beyond=value - there,
        margin=0.0,
        microseconds=1e6 * adaptor_seconds(adaptor, bench.traced) + (1 - skip) * best.microseconds,
        index_bytes=best.index_bytes + adaptor.bytes,
        adaptor=True,
        learned=adaptor.learned,
        skip=skip,
        sure=bool(len(shares)) and trial.within(skip, budget, held, slice(None)),
    )
    return point, held_out


class _Trial:
    """What an adaptor makes of every token of the validation text, next to what the vanilla kNN-LM does."""

    def __init__(self, bench: _Bench, adaptor: Adaptor, trace: Trace):
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
