"""The memory of a store itself: the best way to search and mix it that is fast enough, chosen on held-out text."""

from dataclasses import dataclass, replace

from nearlm.base import Job, Reporter, files, write_record
from nearlm.mixing import (
    TRUSTED_TOKENS,
    Looked,
    build_infinigram,
    gate_files,
    mixture_files,
    perplexity,
    samples_wanted,
    search_hash,
    trace_lm,
    trace_samples,
    tune,
    verify_gate,
    verify_mixture,
)
from nearlm.model.lm import LM
from nearlm.optimizer.bench import own_name
from nearlm.optimizer.fit_plan import Ways
from nearlm.optimizer.optimization import OVERHEAD, Rule
from nearlm.optimizer.overhead import Measured, explore, install
from nearlm.optimizer.trials import Trials
from nearlm.search import AUTO, PAPER, Retriever, build_index
from nearlm.store import DEFAULT, NONE, Datastore, SearchSettings, write_defaults
from nearlm.text import TokenText

TUNED_TOKENS = 2 * TRUSTED_TOKENS  # with fewer, each half of them says too little of a mixture


@dataclass(frozen=True)
class Chosen:
    """What was chosen, in words, and what could not be."""

    label: str
    notes: tuple[str, ...] = ()


def say_tried(tokens: int, ways: Ways) -> str:
    """Say what will be chosen on so many tokens, about."""
    if not tokens:
        return "nothing will be tuned"
    if tokens < TUNED_TOKENS:
        return "one λ will be tuned"
    return f"{ways.count - 1} ways to search and mix will be tried"


def make_memory(
    store: Datastore,
    text: TokenText | None,
    lm: LM,
    job: Job,
    rule: Rule,
    ways: Ways,
    seconds: float,
    reporter: Reporter,
) -> Chosen:
    """Make a store's memory ready to use; `seconds` are what the LM takes for a token."""
    files.remove(store.layout.index(DEFAULT).settings)  # of an earlier choice; nobody needs to tune it by hand
    build_index(store, AUTO, name=DEFAULT, reporter=reporter)
    chosen = _choose(store, text, lm, job, rule, ways, seconds, reporter)
    used = Datastore.open(store.path).defaults
    for name, place in ((used.mixture, mixture_files(store, DEFAULT)), (used.gate, gate_files(store, DEFAULT))):
        if name != DEFAULT:
            files.remove(place.folder)  # of an earlier choice
    return chosen


def _choose(
    store: Datastore,
    text: TokenText | None,
    lm: LM,
    job: Job,
    rule: Rule,
    ways: Ways,
    seconds: float,
    reporter: Reporter,
) -> Chosen:
    if text is None:
        write_defaults(store.layout, SearchSettings(index=DEFAULT, mixture=NONE))
        return Chosen("one λ, as it usually is", ("nothing could be tuned: there is too little text to hold some out",))
    if len(text.targets) < TUNED_TOKENS:
        tuned = tune(store, text, lm, reporter=reporter).best
        write_defaults(store.layout, SearchSettings(index=DEFAULT, mixture=NONE))
        few = f"only {len(text.targets):,} tokens to tune on: one λ for all tokens; a mixture and a gate need"
        label = f"k {tuned.k}, λ {tuned.lam:g}, T {tuned.knn_temperature:g}"
        return Chosen(label, (f"{few} {TUNED_TOKENS:,}",))
    traced = trace_lm(lm, text, store.reading(), reporter)
    own = trace_samples(lm, store, samples_wanted(len(traced)), 0, reporter)
    trials = Trials(store, traced, job.folder.parent, job, reporter, own)
    limit = 1e6 * (rule.overhead or OVERHEAD) * seconds
    goal = f"the best memory that takes at most {limit:.1f} µs per token"
    if rule.budget is not None:
        goal = f"the fastest memory within {rule.budget:g} perplexity of the vanilla kNN-LM"
    reporter.say(f"looking for {goal}")
    found = explore(trials, ways.nprobes, ways.ks)
    best, notes = _pick(trials, found, rule, limit)
    if perplexity(trials.traced.log_lm) <= best.point.perplexity:
        notes = (*notes, "on the text to tune on the LM alone is as good: this memory does not help it")
    install(trials, lm, best.point, store)
    return Chosen(best.point.label, notes)


def _pick(trials: Trials, found: list[Measured], rule: Rule, limit: float) -> tuple[Measured, tuple[str, ...]]:
    """Return the best of what is fast enough, or the fastest of what is good enough; and what to say of it."""
    if rule.budget is None:
        fast = [one for one in found if one.point.microseconds <= limit]
        if fast:
            return min(fast, key=lambda one: one.point.perplexity), ()
        least = min(found, key=lambda one: one.point.microseconds)
        slow = (
            f"no way to search takes at most {limit:.1f} µs per token; this takes least, {least.point.microseconds:.1f}"
        )
        return least, (f"{slow}. A smaller memory may be faster: nearlm optimize",)
    target = trials.vanilla().perplexity + rule.budget
    good = [one for one in found if one.point.perplexity + trials.margin(one.logp) <= target]
    files.remove(trials.store.layout.index(own_name(PAPER)).folder)  # it was made to compare with
    if good:
        return min(good, key=lambda one: one.point.microseconds), ()
    best = min(found, key=lambda one: one.point.perplexity)
    return best, (f"nothing is surely within {rule.budget:g} of the vanilla kNN-LM; this is the best",)


def bring_up_to_date(store: Datastore, reporter: Reporter) -> None:
    """After an append: extend index and tables, and let mixture and gate work on with the weights they have."""
    build_index(store, name=DEFAULT, reporter=reporter)
    if store.layout.suffixes.folder.exists():
        build_infinigram(store, reporter)
    if DEFAULT in store.mixtures:
        info = verify_mixture(store, DEFAULT)
        search = search_hash(Retriever.open(store, info.settings)) if info.search else ""
        write_record(mixture_files(store, DEFAULT).description, replace(info, store=store.checksum, search=search))
    if DEFAULT in store.gates:
        gate = verify_gate(store, DEFAULT)
        Looked.build(store, gate.shape, reporter)
        search = search_hash(Retriever.open(store, gate.settings))
        write_record(gate_files(store, DEFAULT).description, replace(gate, store=store.checksum, search=search))
