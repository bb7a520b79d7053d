"""The best memory whose overhead is at most a share of the LM's own time per token, chosen on a validation text.

Every way to search the store is mixed by a mixture, whose perplexity comes from two halves of the text: each is
predicted by what was trained on the other. Beside them stand the same with one λ for all tokens, with some searches
skipped, with fewer records, without any search, and the vanilla kNN-LM.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearlm.base import Doubles, OptionError
from nearlm.mixing import (
    ALL_SOURCES,
    Gate,
    InfiniGram,
    Memory,
    Mixture,
    best_settings,
    build_infinigram,
    parse_sources,
    perplexity,
    standard_error,
    untrained_mixture,
)
from nearlm.model.lm import LM
from nearlm.optimizer.points import Choice, Point, Setup, Shape, compare_costs, mark_front, tokens_to_settle
from nearlm.optimizer.ranking import rank_tokens
from nearlm.optimizer.trials import VANILLA, Trials
from nearlm.search import AUTO, PAPER, Retriever, build_index, write_settings
from nearlm.store import DEFAULT, NONE, Datastore, SearchSettings, write_defaults

INSTANT = "ngram,text"
KS = (1024, 256, 64)
NPROBES = (8, 4, 2)
KEEPS = (0.4,)
SKIPPED = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True)
class Measured:
    """A memory that was measured, with log p of every token."""

    point: Point
    logp: Doubles


def choose(trials: Trials, lm: LM, overhead: float, folder: Path) -> Choice:
    """Measure memories, make the best of those that are fast enough at its place, and say why."""
    limit = 1e6 * overhead * trials.job.once("lm", float, lambda: trials.lm_seconds(lm))
    trials.reporter.say(f"looking for the best memory that takes at most {limit:.1f} µs per token")
    vanilla = trials.vanilla()
    whole = explore(trials, NPROBES, KS)
    found = [Measured(vanilla, trials.log_vanilla), *whole, *_prune(trials, whole, limit)]
    fast = [one for one in found if one.point.microseconds <= limit]
    ordered = sorted(fast, key=lambda one: one.point.perplexity) or sorted(
        found, key=lambda one: one.point.microseconds
    )
    chosen = ordered[0]
    marks = mark_front([(one.point.perplexity, one.point.microseconds) for one in found])
    points = [
        replace(
            one.point,
            pareto=mark,
            chosen=one is chosen,
            beyond=one.point.perplexity - vanilla.perplexity,
            margin=trials.margin(one.logp),
        )
        for one, mark in zip(found, marks, strict=True)
    ]
    said = _explain(trials, chosen, ordered[1:2], vanilla, overhead, limit)
    _make(trials, lm, chosen.point, folder)
    nlm = perplexity(trials.traced.log_lm)
    return Choice(len(trials.traced), nlm, points[0], points[1:], said, overhead=overhead, limit=limit)


def explore(trials: Trials, nprobes: Sequence[int], ks: Sequence[int]) -> list[Measured]:
    """Measure the store as it is without any search, and with so many lists and neighbours, each mixed in every way."""
    found = _once(trials, "instant", lambda: [_instant(trials)])
    lists = trials.open(trials.store, AUTO).index.nprobe
    for nprobe in nprobes if lists else nprobes[:1]:
        found += _measure(trials, trials.whole, nprobe, ks)
    return found


def _prune(trials: Trials, found: Sequence[Measured], limit: float) -> list[Measured]:
    """Measure fewer records in the way to search that is best so far."""
    fast = [one for one in found if one.point.microseconds <= limit and one.point.setup.search.k]
    pruned: list[Measured] = []
    if fast:
        best = min(fast, key=lambda one: one.point.perplexity).point.setup.search
        for keep in KEEPS:
            try:
                pruned += _measure(trials, Shape(keep, trials.store.dim), best.nprobe or NPROBES[0], (best.k or KS[0],))
            except OptionError as error:  # more clusters than that are needed
                trials.reporter.say(f"left out: {error}")
    return pruned


def _measure(trials: Trials, shape: Shape, nprobe: int, ks: Sequence[int]) -> list[Measured]:
    """Measure one way to search, or find that it has been done."""
    found = _once(trials, f"{shape.folder}-{nprobe}-mixed", lambda: _searched(trials, shape, nprobe, ks))
    for one in found:
        if not one.point.gate:
            said = f"perplexity {one.point.perplexity:.3f}, {one.point.microseconds:.1f} µs per token"
            trials.reporter.say(f"  {one.point.label}: {said}")
    return found


def _once(trials: Trials, name: str, measure: Callable[[], list[Measured]]) -> list[Measured]:
    """Return what an earlier run has measured, or measure it now."""

    def compute() -> tuple[list[Point], Doubles]:
        found = measure()
        return [one.point for one in found], np.stack([one.logp for one in found])

    points, logp = trials.keep_once(name, list[Point], len, compute)
    return [Measured(point, row) for point, row in zip(points, logp, strict=True)]


def _ranks(trials: Trials, logp: Doubles, skipped: Doubles, infinigram: InfiniGram) -> tuple[Doubles, float]:
    """Rank the tokens by what they gain from a search, once for all ways to search, and time the gate."""

    def compute() -> tuple[float, Doubles]:
        ranks, microseconds = rank_tokens(trials, logp, skipped, infinigram)
        return microseconds, ranks[None]

    microseconds, ranks = trials.keep_once("ranks", float, lambda _: 1, compute)
    return ranks[0], microseconds


def _instant(trials: Trials) -> Measured:
    """Measure LM, ∞-gram and text so far, without any search."""
    infinigram = build_infinigram(trials.store, trials.reporter)
    sources = parse_sources(INSTANT)
    logp, _ = trials.mix(sources, infinigram)
    setup = Setup.without_search(DEFAULT, infinigram.bytes)
    memory = Memory(trials.store, None, SearchSettings(), None, untrained_mixture(sources, infinigram))
    microseconds = 1e6 * trials.mixing_seconds(memory)
    return Measured(Point("no search", setup, 1.0, perplexity(logp), microseconds), logp)


def _searched(trials: Trials, shape: Shape, nprobe: int, ks: Sequence[int]) -> list[Measured]:
    """Measure a store of this shape with so many lists: mixed by one λ, by a mixture, and with searches skipped."""
    store = trials.derive(shape)
    lists = trials.open(store, AUTO).index.nprobe
    retriever = trials.open(store, AUTO, nprobe=nprobe if lists else None)
    trace = trials.trace(retriever)
    infinigram = build_infinigram(trials.store, trials.reporter)
    sources = parse_sources(ALL_SOURCES)
    found = []
    for tuned in best_settings(trace, ks):
        logp, skipped = trials.mix(sources, infinigram, trace, tuned)
        settings = SearchSettings(**tuned.values)
        search = 1e6 / trials.searches_per_second(retriever, tuned.k or 1)
        plain = 1e6 * trials.mixing_seconds(Memory.of(retriever, settings))
        mixture = untrained_mixture(sources, infinigram, tuned)
        mixing = 1e6 * trials.mixing_seconds(Memory.of(retriever, settings, None, mixture))
        label = shape.label(trials.whole, settings)
        made = _Way(label, Setup.of(retriever, settings, infinigram.bytes), shape.keep, search, mixing)
        found.append(made.constant(trace.log_p(tuned), plain))
        found.append(made.mixed(logp))
        ranks, gate = _ranks(trials, logp, skipped, infinigram)
        found += [made.skipping(np.where(ranks >= share, logp, skipped), share, gate) for share in SKIPPED]
    return found


@dataclass(frozen=True)
class _Way:
    """One way to search a store, and the time that this takes."""

    label: str
    setup: Setup
    keep: float
    search: float
    mixing: float

    def constant(self, logp: Doubles, mixing: float) -> Measured:
        """Mix by one λ."""
        setup = replace(self.setup, search=replace(self.setup.search, mixture=NONE))
        return self._measured(f"{self.label}, one λ", setup, logp, self.search + mixing)

    def mixed(self, logp: Doubles) -> Measured:
        """Mix by a mixture."""
        setup = replace(self.setup, search=replace(self.setup.search, lam=None, mixture=DEFAULT))
        return self._measured(self.label, setup, logp, self.search + self.mixing)

    def skipping(self, logp: Doubles, share: float, gate: float) -> Measured:
        """Mix by a mixture, with a share of the searches skipped."""
        search = replace(self.setup.search, lam=None, mixture=DEFAULT, gate=DEFAULT, skip=share)
        microseconds = (1 - share) * self.search + self.mixing + gate
        return self._measured(f"{self.label}, skip {share:.0%}", replace(self.setup, search=search), logp, microseconds)

    def _measured(self, label: str, setup: Setup, logp: Doubles, microseconds: float) -> Measured:
        return Measured(Point(label, setup, self.keep, perplexity(logp), microseconds), logp)


def _make(trials: Trials, lm: LM, best: Point, folder: Path) -> None:
    """Make the chosen store at its place, ready to use."""
    trials.begin_final()
    install(trials, lm, best, trials.derive(Shape(best.keep, trials.store.dim), folder))


def install(trials: Trials, lm: LM, best: Point, final: Datastore) -> None:
    """Index and tune a store as was chosen, train mixture and gate for it, and make that its default."""
    search = best.setup.search
    text = trials.traced.text
    if search.nprobe is None and search.k is None:
        Mixture.train(final, text, lm, sources=INSTANT, reporter=trials.reporter)
        write_defaults(final.layout, SearchSettings(mixture=DEFAULT))
        return
    kind = PAPER if best.label == VANILLA else AUTO
    build_index(final, kind, name=DEFAULT, nprobe=search.nprobe, reporter=trials.steps)
    trace = trials.trace(Retriever(final, DEFAULT, nprobe=search.nprobe), search.k or 1)
    write_settings(final, best_settings(trace, (search.k or 1,))[0])
    if search.mixture == DEFAULT:
        Mixture.train(final, text, lm, reporter=trials.reporter)
    if search.gate is not None:
        Gate.train(final, text, lm, mixture=DEFAULT, reporter=trials.reporter)
    chosen = SearchSettings(index=DEFAULT, mixture=search.mixture or NONE, gate=search.gate, skip=search.skip)
    write_defaults(final.layout, chosen)


def _explain(
    trials: Trials, chosen: Measured, next_best: list[Measured], vanilla: Point, overhead: float, limit: float
) -> str:
    """Explain a choice in words, with the margin that decided it."""
    point = chosen.point
    parts = [f"Chosen: {point.label}."]
    if point.microseconds > limit:
        parts.append(f"Nothing that was measured takes at most {limit:.1f} µs; this takes least.")
    parts.append(
        f"Perplexity {point.perplexity:.3f} (LM alone {perplexity(trials.traced.log_lm):.3f}, vanilla kNN-LM "
        f"{vanilla.perplexity:.3f}). Allowed are {limit:.1f} µs per token, {overhead:.1%} of the LM's time; "
        f"{compare_costs(point, vanilla)}."
    )
    for other in next_best:
        gain = chosen.logp - other.logp
        mean = float(np.mean(gain))
        error = standard_error(gain, trials.documents)
        differ = other.point.perplexity - point.perplexity
        sure = mean / max(error, 1e-12)
        next_best_is = f"The next best, {other.point.label}, is {differ:.3f} worse ({sure:.1f} standard errors)."
        parts.append(next_best_is + tokens_to_settle(len(gain), sure))
    if perplexity(trials.traced.log_lm) <= point.perplexity:
        parts.append("The LM alone is as good on this text: this memory does not help it.")
    return " ".join(parts)
