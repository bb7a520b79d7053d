"""From a store to the fastest one within a perplexity budget of the vanilla kNN-LM, chosen on a validation text.

Narrower keys, fewer records, fewer lists, fewer neighbours and skipped searches are first measured one at a time. What
they cost together is then estimated (differences of perplexity add up, ratios multiply), and the combinations that
seem fastest within the budget are made and measured while they promise to beat what has been. Within the budget means
surely so: by two standard errors of the difference from the vanilla kNN-LM. The share of searches to skip is in the end
the largest that is, on the tokens held out from the gate's training and on the whole text.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nearlm.base import QUIET, Job, Json, OptionError, Reporter, StoreError, duration, files, size, store_folder
from nearlm.base.records import from_json, read_record, to_json, write_record
from nearlm.mixing import Gate, cache_text, perplexity, room_for_traces, samples_wanted, trace_lm, trace_samples
from nearlm.model.lm import LM, AnyModel
from nearlm.optimizer.bench import SMALL, find_index
from nearlm.optimizer.overhead import KEEPS as KEEPS_MIXED
from nearlm.optimizer.overhead import KS, choose
from nearlm.optimizer.points import Choice, Goal, Point, Shape, cheapest, estimates, explain, is_preferred, mark_front
from nearlm.optimizer.trials import FINAL, Trials
from nearlm.search import PAPER, PAPER_K
from nearlm.store import DEFAULT, AnyStore, Datastore, Layout, SearchSettings, refuse_foreign, write_defaults
from nearlm.store.model_files import load_lm
from nearlm.text import Texts

DIMS = (192, 128, 64)
KEEPS = (0.4, 0.2)
SMALL_DIMS = (128,)  # a small store is searched so fast that more would not tell
SMALL_KEEPS = (0.4,)
NPROBES = (8, 4, 2)
OVERHEAD = 0.02
_REFUSED_STORE = "refused"
_ATTEMPTS = 4
_PROMISING = 0.95  # of the least time so far: estimates are no better than that
_TRACE_BYTES = 8  # of a neighbour
_WITH_INDEX = 1.4  # of a store
_SHAPE_SECONDS = 60e-6  # per record, on two cores
_PRUNE_SECONDS = 200e-6
_PAPER_SECONDS = 300e-6
_MIXTURE_SECONDS = 250e-6  # per token


@dataclass(frozen=True)
class Optimized:
    """What `optimize.json` says of a store: what it was chosen for, and how."""

    plan: Json
    choice: Choice


class Rule(NamedTuple):
    """What is chosen: the best within an overhead, or the fastest within a budget."""

    overhead: float | None
    budget: float | None

    @classmethod
    def of(cls, overhead: float | None, budget: float | None) -> "Rule":
        """Return the rule that was asked for; refuse what makes no sense."""
        if budget is not None and overhead is not None:
            raise OptionError("`overhead` and `budget` are two rules to choose by; give one of them")
        if budget is not None and not 0 <= budget < float("inf"):
            raise OptionError(f"`budget` is {budget}, expected 0 or more perplexity")
        if overhead is not None and not 0 < overhead < float("inf"):
            raise OptionError(f"`overhead` is {overhead}, expected more than 0, e.g. 0.02 for 2 %")
        return cls(OVERHEAD if budget is None and overhead is None else overhead, budget)

    @property
    def values(self) -> dict[str, float]:
        """The one that counts."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def optimize(
    store: AnyStore,
    text: Texts,
    out: str | Path,
    model: AnyModel = None,
    *,
    overhead: float | None = None,
    budget: float | None = None,
    reporter: Reporter = QUIET,
) -> Choice:
    """Make the best memory of a store that is fast enough, ready to use.

    Fast enough means: with an overhead of at most 2 % of the LM's own time per token. With a budget it is the other way
    round, as in the paper: the fastest within so much perplexity of the vanilla kNN-LM, by a gate alone.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        text: Names of texts to choose on, or a `TextSource`; it should not be in the store.
        out: Folder of the store to make, or `cache:NAME`.
        model: The store's model, by default as it was built.
        overhead: What the memory may take of a token's time, as a share of what the LM takes. By default 0.02.
        budget: Perplexity that the fastest memory may cost.
        reporter: Whom to tell of the progress.

    Returns:
        What was measured, what was chosen, and why.

    Example:
        >>> text = nearlm.TextSource(("valid/",), max_tokens=600)
        >>> choice = nearlm.optimize("mystore", text, "fast", overhead=0.5)
        >>> choice.winner.setup.records <= len(nearlm.Datastore.open("mystore"))
        True
    """
    opened = Datastore.open(store)
    opened.need_keys()
    rule = Rule.of(overhead, budget)
    folder = store_folder(out)
    if folder.resolve() == opened.path.resolve():
        raise StoreError(f"`out` is the store itself ({folder}); choose another folder")
    return _optimize(opened, text, folder, load_lm(opened, model), rule, reporter)


def _optimize(store: Datastore, text: Texts, folder: Path, lm: LM, rule: Rule, reporter: Reporter) -> Choice:
    reading = store.reading()
    read = cache_text(text, lm.tokenizer, reading, reporter)
    made_from = {"store": store.checksum, "text": read.sha256, "model": lm.fingerprint()}
    plan = {**made_from, "weights": lm.weights_hash(), **rule.values}
    work = folder.absolute().with_name(f"{folder.absolute().name}.optimize")
    job = Job(work, "optimize")
    layout = Layout(folder)
    if layout.optimized.exists():
        job.remove_folder()
        return read_finished(layout, plan, reporter)
    _check_out(layout, job)
    work.mkdir(parents=True, exist_ok=True)
    with files.lock(work):
        _begin(job, plan, work, layout)
        _announce(store, len(read.targets), rule, reporter)
        traced = trace_lm(lm, read, reading, reporter)
        own = None  # no mixture is measured within a budget
        if rule.budget is None:
            own = trace_samples(lm, store, samples_wanted(len(traced)), 0, reporter)
        trials = Trials(store, traced, work, job, reporter, own)
        if rule.budget is None:
            choice = choose(trials, lm, rule.overhead or OVERHEAD, folder)
        else:
            train = partial(Gate.train, text=read, model=lm, reporter=reporter)
            choice = _choose(trials, rule.budget, folder, train)
        write_record(layout.optimized, Optimized(plan, choice))
        job.remove_folder()
    return choice


def read_finished(layout: Layout, plan: Json, reporter: Reporter) -> Choice:
    """Return what was chosen when the store was made, if that was by this plan."""
    noted = from_json(Json, files.read_stamped(layout.optimized).get("plan"), layout.optimized)
    if {**plan, **noted} != plan:  # older ones name no weights
        raise StoreError(f"{layout.folder} was optimized for another store, model, text or rule; use another `out`")
    try:
        choice = read_record(Optimized, layout.optimized).choice
    except StoreError:
        raise StoreError(
            f"{layout.folder} was optimized by another version of nearlm, whose table cannot be read; "
            "the store itself can be used as it is, or made again: repeat the command with another `out`"
        ) from None
    reporter.say(f"{layout.folder} is complete already")
    return choice


def _check_out(layout: Layout, job: Job) -> None:
    """Refuse, before the work, a place that holds something else than what an earlier run has left."""
    job.check_folder()
    if not job.folder.exists():
        refuse_foreign(layout.folder, layout.derive_job)
        if layout.is_store:
            raise StoreError(f"{layout.folder} is a finished store, made in another way; choose another `out`")


def _begin(job: Job, plan: Json, work: Path, layout: Layout) -> None:
    """Begin a job, or resume it; one for something else is thrown away, with what it made."""
    if job.resumes(plan):
        return
    if job.state(FINAL):
        refuse_foreign(layout.folder, layout.derive_job)
        if layout.is_store and Datastore.open(layout.folder).manifest.parent is None:
            raise StoreError(f"{layout.folder} is a store that was built from text; choose another `out`")
    job.forget_plan()
    if job.state(FINAL):
        files.remove(layout.folder)
    for path in work.iterdir():
        if path not in (job.folder, work / ".lock"):
            files.remove(path)
    job.begin(plan)


def _announce(store: Datastore, tokens: int, rule: Rule, reporter: Reporter) -> None:
    """Say what will be measured and about how long that takes, by what its parts took per record and core."""
    shapes = len(KEEPS_MIXED) if rule.budget is None else len(_shapes(store)) + _ATTEMPTS // 2
    mixtures = 0.0
    read = tokens
    if rule.budget is None:
        read += samples_wanted(tokens)
        mixtures = (2 + len(NPROBES) * len(KS)) * read * _MIXTURE_SECONDS
    searches = 1 + len(NPROBES) + shapes + 2
    traces = min(room_for_traces(), searches * read * min(PAPER_K, len(store)) * _TRACE_BYTES)
    stores = store.bytes * (sum(shape.keep for shape in _shapes(store) if shape.keep < 1) + 2 * _WITH_INDEX)
    paper = 0 if find_index(store, PAPER) else _PAPER_SECONDS
    seconds = len(store) * (shapes * _SHAPE_SECONDS + _PRUNE_SECONDS + paper) * 2 / max(1, os.cpu_count() or 1)
    seconds += mixtures
    reporter.say(
        f"measuring the vanilla kNN-LM and about {shapes + 1} smaller stores on {tokens:,} tokens: about "
        f"{duration(seconds + 60)}, without what the LM itself reads and writes; up to {size(stores)} of disk, and "
        f"{size(traces)} in the cache. Two indexes to compare with and n-gram tables stay in {store.path}"
    )


def _shapes(store: Datastore) -> list[Shape]:
    """Return what to make of a store, one change at a time."""
    small = len(store) < SMALL
    narrower = [Shape(1.0, dim) for dim in (SMALL_DIMS if small else DIMS) if dim < store.dim]
    return narrower + [Shape(keep, store.dim) for keep in (SMALL_KEEPS if small else KEEPS)]


def _choose(trials: Trials, budget: float, folder: Path, train: Callable[[Datastore], Gate]) -> Choice:
    vanilla = trials.vanilla()
    points = trials.measure(trials.whole, NPROBES)
    goal = Goal(vanilla.perplexity + budget, trials.skipping(points[0]))
    points = _explore(trials, points, goal)
    points = [replace(one, beyond=one.perplexity - vanilla.perplexity) for one in points]

    plain = cheapest(points, goal.alone)
    chosen = plain
    for best in dict.fromkeys((cheapest(points, goal), plain)):
        refused = trials.job.state(_REFUSED_STORE)
        if refused and best != plain:
            points.append(from_json(Point, refused.get("point"), trials.job.folder / f"{_REFUSED_STORE}.json"))
            continue
        gated, held_out = trials.gate(trials.final(best, folder), best, budget, train)
        points.append(gated)
        if is_preferred(gated, plain, goal.target):
            chosen = gated
            break
        if best != plain:
            trials.reporter.say(f"{gated.label} is not surely within the budget, or no faster; taking {plain.label}")
            files.remove(trials.work / _REFUSED_STORE)
            files.replace(
                folder, trials.work / _REFUSED_STORE
            )  # at once: what a kill leaves of a removed one is not a store
            trials.job.note(_REFUSED_STORE, {"point": to_json(gated)})

    search = chosen.setup.search
    write_defaults(Layout(folder), SearchSettings(index=DEFAULT, gate=search.gate, skip=search.skip))
    marks = mark_front([(point.beyond, point.microseconds) for point in points])
    points = [replace(one, pareto=mark, chosen=one is chosen) for one, mark in zip(points, marks, strict=True)]
    nlm = perplexity(trials.traced.log_lm)
    paragraph = explain(vanilla, chosen, budget, held_out, len(trials.traced))
    return Choice(
        len(trials.traced), nlm, vanilla, points, paragraph, budget=budget, target=goal.target, held_out=held_out
    )


def _explore(trials: Trials, whole: list[Point], goal: Goal) -> list[Point]:
    """Measure changes alone, then the combinations that are estimated to be cheapest, while they promise to be."""
    points = list(whole)
    alone = {trials.whole: whole[0]}
    tried: set[tuple[Shape, int | None]] = {(trials.whole, point.setup.search.nprobe) for point in whole}

    def measure(shape: Shape, nprobe: int | None) -> Point | None:
        tried.add((shape, nprobe))
        try:
            measured = trials.measure(shape, (nprobe or NPROBES[0],))
        except OptionError as error:  # more clusters than that are needed
            trials.reporter.say(f"left out: {error}")
            return None
        points.extend(measured)
        return measured[0]

    for shape in _shapes(trials.store):
        measured = measure(shape, whole[0].setup.search.nprobe)
        if measured is not None:
            alone[shape] = measured
    guesses = [
        (goal.price(guess, microseconds, one.margin), shape, one.setup.search.nprobe)
        for microseconds, guess, shape, one in estimates(whole, alone, trials.whole)
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
