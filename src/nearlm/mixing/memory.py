"""A memory, ready to be mixed: settings resolved against a store, its index, mixture and gate opened."""

import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from nearlm.base import NearLMWarning, OptionError, Reals
from nearlm.mixing.advice import Advice
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.equations import warm_up
from nearlm.mixing.gate import Gate, verify_gate
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.interpolation import Interpolation
from nearlm.mixing.mixture import Mixture, verify_mixture
from nearlm.mixing.mixture_features import Known
from nearlm.mixing.prediction import Prediction, Spent
from nearlm.mixing.trained import train_again, what_came_after
from nearlm.search import Neighbors, Retriever, read_settings, tune_again
from nearlm.store import DEFAULT, NONE, Datastore, SearchSettings

_MANY = 300  # contexts, more than any kernel for a few takes
_USUAL = SearchSettings(lam=0.25, knn_temperature=1.0, distances="index")
_OF_A_SEARCH = {"index", "lam", "knn_temperature", "k", "nprobe", "distances", "gate", "mixture"}


class LongestSuffix(NamedTuple):
    """The longest suffix of a context in a store's text: its number, tokens, how often it occurs, one place after."""

    store: int
    length: int
    times: int
    place: int


@dataclass(frozen=True, repr=False)
class Memory:
    """What is searched, if anything, and how it is mixed: by one λ, by a gate's λ(c), or by a mixture.

    A gate decides which tokens skip retrieval. A mixture without neighbours needs no retriever. A memory of several
    stores has no retriever itself: its `parts` are searched, and its mixture weighs them all (`open_memory`).
    """

    store: Datastore
    retriever: Retriever | None
    settings: SearchSettings
    gate: Gate | None = None
    mixture: Mixture | None = None
    parts: tuple["Memory", ...] = ()

    @classmethod
    def open(cls, store: Datastore, settings: SearchSettings = SearchSettings()) -> "Memory":
        """Open a store's memory; what is given goes before what was tuned.

        Index, mixture, gate and share to skip are the store's defaults if nothing is said of a search; `none` stands
        for no mixture or no gate. With a gate a share of the tokens (`auto`: as many as a perplexity budget allows)
        skips retrieval.
        """
        if not len(store):
            return cls._without_keys(store, settings)
        chosen = _with_defaults(store, settings)
        mixture = None if chosen.mixture is None else Mixture.load(store, chosen.mixture)
        if mixture is not None and not mixture.searches:
            _refuse_search(settings)
            _warn_grown(store, mixture)
            return cls(store, None, SearchSettings(mixture=mixture.name), None, mixture)
        gate = _gate(store, chosen)
        known: SearchSettings | None = read_settings(store, chosen.index or "")
        if mixture is not None and mixture.info.settings.index == chosen.index:
            known = mixture.info.settings.over(known)
        if gate is not None:
            chosen = replace(chosen, skip=gate.skip, budget=None)
            if gate.settings.index == chosen.index:
                known = replace(gate.settings, lam=gate.lam)
        chosen = chosen.over(known)
        retriever = Retriever.open(store, chosen)
        _warn_untuned(store, chosen)
        _warn_grown(store, mixture, gate)
        return cls.of(retriever, chosen, gate, mixture)

    @classmethod
    def _without_keys(cls, store: Datastore, settings: SearchSettings) -> "Memory":
        """Open the memory of a store of text alone: a mixture that was trained, or else the usual one."""
        _refuse_search(settings)
        name = settings.mixture or store.defaults.mixture or _usual_mixture(store, None)
        if name in (None, NONE):
            if settings.mixture is None:
                _warn_usual(store)
            mixture = Mixture.usual(store)
        else:
            mixture = Mixture.load(store, str(name))
        _warn_grown(store, mixture)
        return cls(store, None, SearchSettings(mixture=mixture.name), None, mixture)

    @classmethod
    def of(
        cls, retriever: Retriever, settings: SearchSettings, gate: Gate | None = None, mixture: Mixture | None = None
    ) -> "Memory":
        """Make a memory of what is open; what the settings leave open is the retriever's."""
        whole = settings.over(retriever.settings).over(_USUAL)
        return cls(retriever.store, retriever, replace(whole, k=retriever.used_k(whole.k)), gate, mixture)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.settings.values.items())
        held = " + ".join(f"{one.store.path.name}: {one.store.contents}" for one in self.each)
        return f"Memory({held}, {shown})"

    @property
    def each(self) -> tuple["Memory", ...]:
        """The memory of each store: itself, or its parts."""
        return self.parts or (self,)

    @cached_property
    def searches(self) -> bool:
        """Whether anything is searched."""
        return any(one.retriever is not None for one in self.each)

    @property
    def lam(self) -> float:
        """The one λ, which a gate or mixture overrules."""
        return 1.0 if self.settings.lam is None else self.settings.lam

    @property
    def knn_temperature(self) -> float:
        """What distances are divided by."""
        return self.settings.knn_temperature or 1.0

    @property
    def temperatures(self) -> tuple[float, ...]:
        """What the distances of each store are divided by, or around which a mixture's temperatures are."""
        return self.mixture.temperatures if self.mixture is not None else (self.knn_temperature,)

    @property
    def constant(self) -> bool:
        """Whether one λ holds for all tokens."""
        return self.gate is None and self.mixture is None

    @property
    def needs_statistics(self) -> bool:
        """Whether a prediction depends on the LM's confidence, entropy and likeliest token."""
        return self.mixture is not None or (self.gate is not None and self.gate.needs_statistics)

    @property
    def needs_contexts(self) -> bool:
        """Whether a prediction depends on the tokens that were read."""
        return self.mixture is not None or (self.gate is not None and self.gate.needs_contexts)

    @property
    def table_bytes(self) -> int:
        """The size of gate and mixture and of all that they look up, each file once."""
        parts = [part.bytes for part in (self.gate, self.mixture) if part is not None]
        shared = 0
        if self.gate and self.mixture and self.gate.looked.infinigram and self.mixture.infinigram:
            shared = self.mixture.infinigram.bytes
        return sum(parts) - shared

    def check_model(self, fingerprint: str) -> None:
        """Refuse a gate or mixture that was trained for another model, index or settings."""
        for part in self.parts:
            part.check_model(fingerprint)
        if self.mixture is not None:
            self.mixture.check(self.retriever, self.settings, fingerprint)
        if self.gate is not None and self.retriever is not None:
            self.gate.check(self.retriever, self.settings, fingerprint, self.mixture.hash if self.mixture else "")

    def search(self, queries: Reals) -> Neighbors | None:
        """Return the neighbours of queries, in any order; None where nothing is searched."""
        if self.retriever is None or not len(queries):
            return None
        return self.retriever.search(queries, self.settings.k, ordered=False)

    def predict(self, queries: Reals, known: Known) -> Prediction:
        """Ask the memory of n contexts: search for those that do not skip it, and weigh what was found."""
        started = time.perf_counter()
        proposals = {}
        if self.mixture is not None:
            proposals = self.mixture.ask(known)
        asked = time.perf_counter()
        lam = np.full(len(queries), self.lam)
        retrieved = np.full(len(queries), self.searches)
        if self.gate is not None:
            lam = self.gate.weights(queries, known, proposals)
            retrieved = lam > 0
        decided = time.perf_counter()
        wanted = queries if retrieved.all() else queries[retrieved]
        near, *others = [one.search(wanted) for one in self.each]
        searched = time.perf_counter()
        said: Advice | Interpolation = Interpolation(near, retrieved, lam, self.knn_temperature)
        if self.mixture is not None:
            said = self.mixture.weigh(known, proposals, near, retrieved, *others)
        mixing = asked - started + time.perf_counter() - searched
        return Prediction(said, near, retrieved, Spent(decided - asked, searched - decided, mixing), tuple(others))

    def longest_suffix(self, contexts: Contexts, row: int) -> LongestSuffix | None:
        """Look up the longest suffix of a context in any store's text, if a mixture does so."""
        best: LongestSuffix | None = None
        begins, ends = contexts.begins[row : row + 1], contexts.ends[row : row + 1]
        for number, infinigram in enumerate(self.mixture.infinigrams if self.mixture is not None else ()):
            if infinigram is None:
                continue
            found = infinigram.look_up(contexts.tokens, begins, ends)
            length = int(found.length[0])
            if length > (best.length if best is not None else 0):
                times = int(found.end[0] - found.begin[0])
                best = LongestSuffix(number, length, times, int(infinigram.order[found.begin[0]]))
        return best

    def warm_up(self) -> None:
        """Compile or load all kernels, so that the first real call is not timed with it.

        Those for many contexts are of a text on disk, which cannot be written to: another type for kernels.
        """
        warm_up()
        if self.gate is not None:
            self.gate.warm_up()
        for count in (1, _MANY):
            tokens = np.zeros(2, np.int32)
            tokens.flags.writeable = count == 1
            contexts = Contexts(tokens, np.zeros(count, np.int64), np.full(count, 2, np.int64))
            queries = np.zeros((count, self.store.query_dim), np.float32)
            self.predict(queries, Known.of(None, contexts, count)).score(np.zeros(count), np.zeros(count, np.int32))


def _refuse_search(settings: SearchSettings) -> None:
    """Refuse settings of a search where nothing is searched."""
    given = sorted(settings.values.keys() - {"mixture"})
    if given:
        raise OptionError(f"this memory has no keys and searches nothing, so `{given[0]}` has no effect; leave it out")


def _warn_untuned(store: Datastore, settings: SearchSettings) -> None:
    """Say which defaults are used since nothing was tuned, or since what was tuned is gone."""
    usual = {f"λ={_USUAL.lam:g}": settings.lam, f"T={_USUAL.knn_temperature:g}": settings.knn_temperature}
    used = " and ".join(text for text, given in usual.items() if given is None)
    if used and settings.lam != 0 and settings.mixture is None:
        again = tune_again(store, settings.index or "")
        warnings.warn(f"index {settings.index!r} is not tuned, using {used}; {again}", NearLMWarning, stacklevel=3)


def _warn_usual(store: Datastore) -> None:
    """Say that nothing was trained for a store without keys, or not on enough text to be surely better."""
    learn = f"learn its weights with: nearlm gate {store.path} `text=…`, or learn_all()"
    said = f"the memory is not tuned (on enough text), using usual weights; {learn}"
    warnings.warn(said, NearLMWarning, stacklevel=4)


def _warn_grown(store: Datastore, mixture: Mixture | None, gate: Gate | None = None) -> None:
    """Say what is of an earlier state of a store that has been appended to."""
    for kind, part in (("mixture", mixture), ("gate", gate)):
        added = part and what_came_after(part.info, store)
        if part and added:
            said = f"the {kind} {part.name!r} was trained before {store.path} got {added}, and is used as it is"
            warnings.warn(f"{said}; {train_again(store, part.name)}", NearLMWarning, stacklevel=4)
            break  # one line is enough: both are trained by one command
    warn_short(store, mixture.infinigram if mixture else None)


def warn_short(store: Datastore, infinigram: InfiniGram | None) -> None:
    """Say that an ∞-gram does not know all of a store's text."""
    if infinigram is not None and len(infinigram.tokens) < len(store.tokens):
        known = f"the ∞-gram knows {len(infinigram.tokens):,} of the {len(store.tokens):,} tokens of {store.path}"
        again = "bring it up to date by repeating the last `nearlm build`, or build_infinigram()"
        warnings.warn(f"{known}; {again}", NearLMWarning, stacklevel=5)


def _with_defaults(store: Datastore, settings: SearchSettings) -> SearchSettings:
    """Fill in the store's index and, if nothing is said of a search, its mixture, gate and share to skip.

    Where nothing was chosen for the store, a mixture of the usual name is used if it was found to be better.
    """
    defaults = store.defaults
    chosen = settings
    if not settings.values.keys() & _OF_A_SEARCH:
        skip = defaults.skip if settings.budget is None else None
        mixture = defaults.mixture or _usual_mixture(store, defaults.index)
        usual = SearchSettings(mixture=mixture, gate=defaults.gate, skip=skip if defaults.gate else None)
        chosen = chosen.over(usual)
    elif settings.gate not in (None, NONE) and settings.mixture is None:
        chosen = replace(chosen, mixture=_mixture_of_gate(store, settings.gate or ""))
    for name in ("gate", "mixture"):
        if getattr(chosen, name) == NONE:
            chosen = replace(chosen, **{name: None})
    return chosen.over(SearchSettings(index=defaults.index))


def _usual_mixture(store: Datastore, index: str | None) -> str | None:
    """Return the name of the mixture that is used if none is named: one for this index that was found better."""
    if DEFAULT not in store.mixtures:
        return None
    info = verify_mixture(store, DEFAULT)
    return DEFAULT if info.better and info.settings.index in (None, index) else None


def _mixture_of_gate(store: Datastore, gate: str) -> str | None:
    """Return the name of the mixture that a gate works with, which is called like it."""
    return gate if gate in store.gates and gate in store.mixtures and verify_gate(store, gate).mixture else None


def _gate(store: Datastore, settings: SearchSettings) -> Gate | None:
    if settings.mixture is not None and settings.lam is not None:
        raise OptionError("a mixture chooses its weights itself; leave out `lam`, or `mixture`")
    if settings.gate is None:
        if settings.skip is not None or settings.budget is not None:
            raise OptionError("`skip` and `budget` need a gate; name it with `gate`")
        return None
    if settings.lam is not None:
        raise OptionError("a gate chooses λ itself; leave out `lam` and `knn=False`, or `gate`")
    skip = 0.0 if settings.skip is None else settings.skip
    return Gate.load(store, settings.gate).at(skip, settings.budget)
