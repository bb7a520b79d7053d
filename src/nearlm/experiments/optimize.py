"""From a store to the fastest one within a perplexity budget of the vanilla kNN-LM, chosen on a validation text.

Narrower keys, fewer records, fewer lists and fewer neighbours are first measured one at a time. What they cost together
is then estimated (differences of perplexity add up, ratios of time multiply), and the fastest combinations within the
budget are made and measured until one really is. An adaptor is trained for it; the share of searches to skip is the
largest that stays within the budget on the tokens that were held out from its training.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nearlm import files
from nearlm.adapting import TRUSTED_TOKENS
from nearlm.adaptor import Adaptor
from nearlm.adaptor_training import SHARES, split_rows
from nearlm.datastore import Datastore
from nearlm.errors import OptionError, StoreError
from nearlm.experiments.measuring import (
    AUTO,
    PAPER,
    TIMED,
    adaptor_seconds,
    auto_index,
    quiet_steps,
    searches_per_second,
    unbeaten,
)
from nearlm.fetch import store_folder
from nearlm.files import Json
from nearlm.index import DEFAULT, PAPER_K
from nearlm.indexing import build_index
from nearlm.lm import LM
from nearlm.mix import mix, perplexity
from nearlm.progress import Reporter, duration, size
from nearlm.prune.pruning import prune_store
from nearlm.reduce import reduce_store
from nearlm.retrieve import Retriever
from nearlm.trace import LMTrace, Reading, Trace, read_text, trace_lm, trace_search
from nearlm.tune import Point as Setting
from nearlm.tune import best_setting, save_settings, tune_traces

DIMS = (192, 128, 64)
KEEPS = (0.4, 0.2)
NPROBES = (8, 4, 2)
KS = (1024, 512, 256, 128)
VANILLA = "vanilla"
_FILE, _JOB = "optimize.json", "optimize"
_ATTEMPTS = 4
_SHAPE_SECONDS, _PRUNE_SECONDS, _PAPER_SECONDS = 60e-6, 200e-6, 300e-6  # a record, on two cores


class Shape(NamedTuple):
    """What a store keeps: a share of the records, and dimensions."""

    keep: float
    dim: int


@dataclass(frozen=True)
class Point:
    """One memory: what it keeps, how it is searched, and what that costs on the validation text.

    `microseconds` are those of a token's search (and adaptor). With an adaptor, perplexity is that of the tokens held
    out from its training, so it compares with `held_out` of the choice.
    """

    label: str
    keep: float
    dim: int
    nprobe: int | None
    k: int
    perplexity: float
    microseconds: float
    temperature: float
    lam: float
    records: int
    store_bytes: int
    index_bytes: int
    adaptor: bool = False
    skip: float = 0.0
    pareto: bool = False
    chosen: bool = False


@dataclass(frozen=True)
class Choice:
    """All points, which of them was chosen, and why."""

    budget: float
    tokens: int
    nlm_perplexity: float
    vanilla: Point
    target: float
    held_out: Json
    points: list[Point]
    paragraph: str

    @property
    def chosen(self) -> Point:
        """The memory that was chosen."""
        return next(point for point in self.points if point.chosen)

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Json) -> "Choice":
        """Read a choice back."""
        points = [Point(**point) for point in found["points"]]
        return cls(**{**found, "vanilla": Point(**found["vanilla"]), "points": points})

    def table(self) -> str:
        """Return the points and the choice, for people; those that no other beats have a star."""
        rows = [f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}"]
        rows.append(f"{'':34} {'perplexity':>10} {'µs/token':>9} {'records':>11} {'store':>9} {'index':>9}")
        for point in (self.vanilla, *self.points):
            mark = "→" if point.chosen else "*" if point.pareto else " "
            rows.append(
                f"{mark} {point.label:32} {point.perplexity:10.3f} {point.microseconds:9.1f} {point.records:11,} "
                f"{size(point.store_bytes):>9} {size(point.index_bytes):>9}"
            )
        return "\n".join([*rows, "", self.paragraph])


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
    if (folder / _FILE).exists():
        return _finished(folder, plan, reporter)
    work = folder.with_name(f"{folder.name}.optimize")
    work.mkdir(parents=True, exist_ok=True)
    with files.lock(work):
        job = files.Job(work, _JOB)
        if not job.started or job.plan() != plan:
            job.begin(plan)
        _announce(store, len(text.targets), reporter)
        bench = _Bench(store, trace_lm(lm, text, reading, reporter), work, job, reporter)
        choice = _choose(bench, budget, lm, texts, folder, {"max_tokens": max_tokens, **corpus_options})
        files.write_stamped(folder / _FILE, {"plan": plan, "choice": choice.to_json()})
        files.remove(work)
    return choice


def _finished(folder: Path, plan: Json, reporter: Reporter) -> Choice:
    noted = files.read_stamped(folder / _FILE)
    if noted["plan"] != plan:
        raise StoreError(f"{folder} was optimized from another store, text or budget; choose another --out")
    reporter.say(f"{folder} is complete already")
    return Choice.from_json(noted["choice"])


def _announce(store: Datastore, tokens: int, reporter: Reporter) -> None:
    """Say what will be measured and about how long that takes, by what its parts took per record and core."""
    shapes = len(_dims(store)) + len(KEEPS) + _ATTEMPTS // 2
    paper = 0 if PAPER in store.indexes else _PAPER_SECONDS
    seconds = len(store) * (shapes * _SHAPE_SECONDS + _PRUNE_SECONDS + paper) * 2 / max(1, os.cpu_count() or 1)
    reporter.say(
        f"measuring the vanilla kNN-LM and about {shapes + 1} smaller stores on {tokens:,} tokens: about "
        f"{duration(seconds + 60)}, without the LM's pass over the text; "
        f"{size(store.bytes * 1.5)} of disk at most"
    )


def _dims(store: Datastore) -> list[int]:
    return [dim for dim in DIMS if dim < store.dim]


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
        return [Point(**point) for point in known["points"]]

    def vanilla(self) -> tuple[Point, Trace]:
        """Measure the paper's kNN-LM; its trace says what it thought of every token."""
        self.reporter.say("the vanilla kNN-LM: the paper's index, 32 lists, 1024 neighbours")
        build_index(self.store, PAPER, name=PAPER, quiet=self.quiet)
        retriever = Retriever(self.store, PAPER)
        trace = trace_search(self.traced, retriever, PAPER_K, self.reporter)

        def measured() -> list[Point]:
            return [self.point(VANILLA, self.store, self.whole, retriever, best_setting(trace))]

        found = self.noted(VANILLA, measured)[0]
        self.say(found)
        return found, trace

    def measure(self, shape: Shape, nprobes: Sequence[int]) -> list[Point]:
        """Measure a store of this shape with different numbers of lists, and of neighbours."""

        def measured() -> list[Point]:
            store = self.made(shape, self.work / _name(shape))
            name = auto_index(store, self.quiet)
            lists = Retriever(store, name).index.nprobe
            points = []
            for nprobe in nprobes if lists else (None,):
                retriever = Retriever(store, name, nprobe=nprobe)
                trace = trace_search(self.traced, retriever, PAPER_K, self.reporter)
                by_k = {setting.k: setting for setting in tune_traces([trace]).by_k}
                for k in sorted({min(k, trace.k) for k in KS}, reverse=True):
                    points.append(self.point("", store, shape, retriever, by_k[k]))
            return points

        found = self.noted(f"{_name(shape)}-{'-'.join(map(str, nprobes))}", measured)
        for point in found:
            self.reporter.say(
                f"  {point.label}: perplexity {point.perplexity:.3f}, {point.microseconds:.0f} µs a token"
            )
        files.remove(self.work / _name(shape))
        return found

    def say(self, found: Point) -> None:
        """Tell the user of a point."""
        self.reporter.say(f"  {found.label}: perplexity {found.perplexity:.3f}, {found.microseconds:.0f} µs a token")

    def made(self, shape: Shape, folder: Path) -> Datastore:
        """Make a store of this shape: pruned by k-means, which docs/results.md found best, then reduced."""
        if shape == self.whole:
            return self.store
        quiet, pruned = self.quiet, self.store
        if shape.keep < 1:
            target = folder if shape.dim == self.store.dim else self.work / f"{_name(shape)}-pruned"
            pruned = prune_store(self.store, "kmeans", target, keep=shape.keep, quiet=quiet)
        return pruned if pruned.path == folder else reduce_store(pruned, shape.dim, folder, quiet=quiet)

    def point(self, label: str, store: Datastore, shape: Shape, retriever: Retriever, setting: Setting) -> Point:
        """Time one way to search."""
        nprobe = retriever.index.nprobe
        speed = searches_per_second(retriever, self.queries, setting.k)
        return Point(
            label=label or _label(shape, self.whole, nprobe, setting.k),
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
            index_bytes=sum(file["bytes"] for file in retriever.described["files"].values()),
        )


def _choose(
    bench: _Bench, budget: float, lm: LM, texts: str | Sequence[str], folder: Path, reading_options: Json
) -> Choice:
    vanilla, trace = bench.vanilla()
    target = vanilla.perplexity + budget
    whole = bench.measure(bench.whole, NPROBES)
    alone = {bench.whole: whole[0]}
    points = list(whole)
    for shape in [Shape(1.0, dim) for dim in _dims(bench.store)] + [Shape(keep, bench.store.dim) for keep in KEEPS]:
        try:
            found = bench.measure(shape, NPROBES[:1])
        except OptionError as error:  # more clusters than that are needed
            bench.reporter.say(f"left out: {error}")
            continue
        alone[shape] = found[0]
        points += found
    points += _combined(bench, whole, alone, target)
    best = cheapest(points, target)
    final = _final(bench, best, folder)
    gated, held_out = _adapted(bench, final, best, trace, vanilla, budget, lm, texts, reading_options)
    chosen = gated if gated.skip and gated.microseconds < best.microseconds else best
    adaptor = (DEFAULT, chosen.skip) if chosen.adaptor else (None, None)
    final.set_defaults(DEFAULT, *adaptor)
    marks = unbeaten([(point.perplexity, point.microseconds) for point in points])
    points = [replace(one, pareto=mark, chosen=one is chosen) for one, mark in zip(points, marks, strict=True)]
    points.append(replace(gated, pareto=True, chosen=gated is chosen))
    nlm = perplexity(np.asarray(bench.traced.logp, np.float64))
    paragraph = _paragraph(vanilla, chosen, budget, held_out, best.perplexity <= target)
    return Choice(budget, len(bench.traced), nlm, vanilla, target, held_out, points, paragraph)


def cheapest(points: Sequence[Point], target: float) -> Point:
    """Return the fastest point within the target, or, if there is none, the one with the best perplexity."""
    within = [point for point in points if point.perplexity <= target]
    if not within:
        return min(points, key=lambda point: point.perplexity)
    return min(within, key=lambda point: point.microseconds)


def estimates(
    whole: Sequence[Point], alone: dict[Shape, Point], base: Shape
) -> list[tuple[float, float, Shape, Point]]:
    """Estimate (time, perplexity) of every store shape with every way to search, from each measured alone."""
    first = alone[base]
    found = []
    for keep, dim in itertools.product(
        {shape.keep for shape in alone if shape.dim == base.dim}, {shape.dim for shape in alone if shape.keep == 1}
    ):
        parts = alone[Shape(keep, base.dim)], alone[Shape(1.0, dim)]
        for search in whole:
            worse = sum(part.perplexity - first.perplexity for part in parts)
            faster = float(np.prod([part.microseconds / first.microseconds for part in parts]))
            found.append((search.microseconds * faster, search.perplexity + worse, Shape(keep, dim), search))
    return sorted(found, key=lambda one: one[:2])


def _combined(bench: _Bench, whole: list[Point], alone: dict[Shape, Point], target: float) -> list[Point]:
    """Measure the combinations that are estimated to be fastest within the target, until one is."""
    points: list[Point] = []
    tried: set[tuple[Shape, int | None]] = set()
    for _, guess, shape, search in estimates(whole, alone, bench.whole):
        if guess > target or (shape, search.nprobe) in tried:
            continue
        if len(tried) == _ATTEMPTS:
            break
        tried.add((shape, search.nprobe))
        found = bench.measure(shape, (search.nprobe,) if search.nprobe else NPROBES[:1])
        points += [point for point in found if point not in whole]
        if any(point.perplexity <= target for point in found):
            break
    return points


def _final(bench: _Bench, best: Point, folder: Path) -> Datastore:
    """Make the chosen store at its place, indexed and tuned."""
    shape = Shape(best.keep, best.dim)
    if shape == bench.whole:  # a store of its own all the same: rotated, so that nothing is lost
        final = reduce_store(bench.store, bench.store.dim, folder, quiet=bench.quiet)
    else:
        final = bench.made(shape, folder)
    build_index(final, AUTO, name=DEFAULT, nprobe=best.nprobe, quiet=bench.quiet)
    retriever = Retriever(final, DEFAULT, nprobe=best.nprobe)
    trace = trace_search(bench.traced, retriever, best.k, bench.reporter)
    save_settings(retriever, best_setting(trace), bench.traced.text)
    return final


def _adapted(
    bench: _Bench,
    final: Datastore,
    best: Point,
    vanilla_trace: Trace,
    vanilla: Point,
    budget: float,
    lm: LM,
    texts: str | Sequence[str],
    reading_options: Json,
) -> tuple[Point, Json]:
    """Train an adaptor for the chosen store and choose how much it skips, on what was held out."""
    adaptor = Adaptor.train(lm, final, texts, reporter=bench.reporter, **reading_options)
    training = adaptor.described["training"]
    rows = split_rows(bench.traced.text.documents, training["seed"]).held
    log_lm = np.asarray(bench.traced.logp, np.float64)[rows]
    log_knn = vanilla_trace.log_p_knn(vanilla.temperature)[rows]
    there = perplexity(mix(log_lm, log_knn, vanilla.lam))
    held = adaptor.described["held_out"]
    within = [share for share, value in zip(SHARES, held["curve"], strict=True) if value <= there + budget]
    skip = float(max(within, default=0.0)) if held["tokens"] >= TRUSTED_TOKENS else 0.0
    seconds = adaptor_seconds(adaptor, bench.traced)
    held_out = {"tokens": held["tokens"], "vanilla": there, "constant": held["constant"], "nlm": held["nlm"]}
    point = replace(
        best,
        label=f"{best.label}, skip {skip:.0%}",
        perplexity=held["curve"][round(100 * skip)],
        microseconds=1e6 * seconds + (1 - skip) * best.microseconds,
        adaptor=True,
        skip=skip,
    )
    return point, held_out


def _name(shape: Shape) -> str:
    return f"keep-{shape.keep:g}-dim-{shape.dim}"


def _label(shape: Shape, whole: Shape, nprobe: int | None, k: int) -> str:
    said = [f"keep {shape.keep:.0%}"] if shape.keep < 1 else []
    said += [f"dim {shape.dim}"] if shape.dim < whole.dim else []
    said += [f"nprobe {nprobe}"] if nprobe else []
    return ", ".join([*said, f"k {k}"])


def _paragraph(vanilla: Point, chosen: Point, budget: float, held_out: Json, within: bool) -> str:
    """Explain a choice in words."""
    records = (
        f"{chosen.records:,} of {vanilla.records:,} records" if chosen.keep < 1 else f"all {vanilla.records:,} records"
    )
    lists = f" in {chosen.nprobe} lists" if chosen.nprobe else ""
    said = [
        f"Chosen: {records}, keys of {chosen.dim} dimensions, {chosen.k} neighbours{lists}, T={chosen.temperature:g}"
        + (
            f", and λ(c) from an adaptor that skips {chosen.skip:.0%} of the searches."
            if chosen.adaptor
            else f", λ={chosen.lam:g}."
        )
    ]
    if chosen.adaptor:
        said.append(
            f"On the {held_out['tokens']:,} held-out tokens its perplexity is {chosen.perplexity:.3f}, the vanilla "
            f"kNN-LM's {held_out['vanilla']:.3f}, so it stays within the budget of {budget:g}."
        )
    elif within:
        said.append(
            f"Perplexity is {chosen.perplexity:.3f}, the vanilla kNN-LM's {vanilla.perplexity:.3f}, the budget "
            f"{budget:g}."
        )
    else:
        said.append(
            f"Nothing that was measured stays within {budget:g} of the vanilla kNN-LM's {vanilla.perplexity:.3f}; "
            f"this has the best perplexity, {chosen.perplexity:.3f}."
        )
    less = vanilla.microseconds / chosen.microseconds
    said.append(
        f"The memory takes {chosen.microseconds:.0f} µs a token instead of {vanilla.microseconds:.0f} ({less:.1f} "
        f"times less), and {size(chosen.store_bytes)} of disk instead of {size(vanilla.store_bytes)}."
    )
    return " ".join(said)
