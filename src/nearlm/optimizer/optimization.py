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
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import Job, Json, OptionError, Reporter, StoreError, duration, files, size, store_folder
from nearlm.mixing import Adaptor, Reading, perplexity, read_text, room_for_traces, trace_lm
from nearlm.model import LM
from nearlm.optimizer.bench import FINAL, Bench
from nearlm.optimizer.measuring import PAPER, SMALL, unbeaten
from nearlm.optimizer.points import Choice, Goal, Point, Shape, cheapest, estimates, explained, preferred
from nearlm.search import DEFAULT, PAPER_K
from nearlm.store import DERIVE_JOB, MANIFEST, Datastore, refuse_foreign

DIMS = (192, 128, 64)
KEEPS = (0.4, 0.2)
SMALL_DIMS, SMALL_KEEPS = (128,), (0.4,)  # a small store is searched so fast that more would not tell
NPROBES = (8, 4, 2)
_FILE, _JOB, _REFUSED = "optimize.json", "optimize", "refused"
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
        job = Job(work, _JOB)
        _begin(job, plan, work, folder)
        _announce(store, len(text.targets), reporter)
        bench = Bench(store, trace_lm(lm, text, reading, reporter), work, job, reporter)

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


def _begin(job: Job, plan: Json, work: Path, folder: Path) -> None:
    """Begin a job, or go on with it; one for something else is thrown away, with what it made."""
    if job.started and job.plan() == plan:
        return
    files.remove(job.folder / "plan.json")
    if job.state(FINAL):
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


def _choose(bench: Bench, budget: float, folder: Path, train: Callable[[Datastore], Adaptor]) -> Choice:
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
        found, held_out = bench.adapted(bench.final(best, folder), best, budget, train)
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


def _explored(bench: Bench, whole: list[Point], goal: Goal) -> list[Point]:
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
