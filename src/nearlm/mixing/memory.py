"""A memory, ready to be mixed: settings resolved against a store, its index and its gate opened."""

import warnings
from dataclasses import dataclass, replace

from nearlm.base import Doubles, Int32s, NearLMWarning, OptionError, Reals
from nearlm.mixing.equations import log_p_knn, log_p_knn_vocabulary
from nearlm.mixing.gate import Gate
from nearlm.search import Neighbors, Retriever, read_settings, tune_again
from nearlm.store import NO_GATE, Datastore, SearchSettings

_USUAL = SearchSettings(lam=0.25, knn_temperature=1.0, distances="index")
_OF_A_SEARCH = {"index", "lam", "knn_temperature", "k", "nprobe", "distances", "gate"}


@dataclass(frozen=True, repr=False)
class Memory:
    """A retriever, how it is searched and mixed, and, if λ is not one for all tokens, the gate that decides it."""

    retriever: Retriever
    settings: SearchSettings
    gate: Gate | None = None

    @classmethod
    def open(cls, store: Datastore, settings: SearchSettings = SearchSettings()) -> "Memory":
        """Open a store's memory; what is given goes before what was tuned.

        Index, gate and share to skip are the store's defaults if nothing is said of a search; gate `none` stands
        for one λ. With a gate λ comes from it, and a share of the tokens (`auto`: as many as a perplexity budget
        allows) skips retrieval.
        """
        chosen = _with_defaults(settings, store.defaults)
        gate = _gate(store, chosen)
        known: SearchSettings | None = read_settings(store, chosen.index or "")
        if gate is not None:
            chosen = replace(chosen, skip=gate.skip, budget=None)
            if gate.settings.index == chosen.index:
                known = replace(gate.settings, lam=gate.lam)
        chosen = chosen.over(known)
        retriever = Retriever.open(store, chosen)
        _warn_untuned(store, chosen)
        return cls.of(retriever, chosen, gate)

    @classmethod
    def of(cls, retriever: Retriever, settings: SearchSettings, gate: Gate | None = None) -> "Memory":
        """Make a memory of what is open; what the settings leave open is the retriever's."""
        whole = settings.over(retriever.settings).over(_USUAL)
        return cls(retriever, replace(whole, k=retriever.used_k(whole.k)), gate)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self.settings.values.items())
        return f"Memory({self.retriever.store.path.name}: {len(self.retriever.store):,} records, {shown})"

    @property
    def lam(self) -> float:
        """The one λ, which a gate overrules."""
        assert self.settings.lam is not None
        return self.settings.lam

    @property
    def knn_temperature(self) -> float:
        """What distances are divided by."""
        assert self.settings.knn_temperature is not None
        return self.settings.knn_temperature

    def check_model(self, fingerprint: str) -> None:
        """Refuse a gate that was trained for another model, index or settings."""
        if self.gate is not None:
            self.gate.check(self.retriever, self.settings, fingerprint)

    def search(self, queries: Reals) -> Neighbors:
        """Return the neighbours of queries, in any order."""
        return self.retriever.search(queries, self.settings.k, ordered=False)

    def log_p(self, near: Neighbors, targets: Int32s) -> Doubles:
        """Return log p_kNN of one target for each row of neighbours."""
        return log_p_knn(near.distances, near.tokens, targets, self.knn_temperature, near.weights)

    def log_p_vocabulary(self, near: Neighbors, vocab_size: int) -> Doubles:
        """Return log p_kNN of the whole vocabulary for each row of neighbours."""
        return log_p_knn_vocabulary(near.distances, near.tokens, vocab_size, self.knn_temperature, near.weights)


def _warn_untuned(store: Datastore, settings: SearchSettings) -> None:
    """Say which defaults are used since nothing was tuned, or since what was tuned is gone."""
    usual = {f"λ={_USUAL.lam:g}": settings.lam, f"T={_USUAL.knn_temperature:g}": settings.knn_temperature}
    used = " and ".join(text for text, given in usual.items() if given is None)
    if used and settings.lam != 0:
        again = tune_again(store, settings.index or "")
        warnings.warn(f"index {settings.index!r} is not tuned, using {used}; {again}", NearLMWarning, stacklevel=3)


def _with_defaults(settings: SearchSettings, defaults: SearchSettings) -> SearchSettings:
    """Fill in the store's index and, if nothing is said of a search, its gate and share to skip."""
    chosen = settings
    if not settings.values.keys() & _OF_A_SEARCH:
        skip = defaults.skip if settings.budget is None else None
        chosen = chosen.over(SearchSettings(gate=defaults.gate, skip=skip if defaults.gate else None))
    if chosen.gate == NO_GATE:
        chosen = replace(chosen, gate=None)
    return chosen.over(SearchSettings(index=defaults.index))


def _gate(store: Datastore, settings: SearchSettings) -> Gate | None:
    if settings.gate is None:
        if settings.skip is not None or settings.budget is not None:
            raise OptionError("`skip` and `budget` need a gate; name it with `gate`")
        return None
    if settings.lam is not None:
        raise OptionError("a gate chooses λ itself; leave out `lam` and `knn=False`, or `gate`")
    skip = 0.0 if settings.skip is None else settings.skip
    return Gate.load(store, settings.gate).at(skip, settings.budget)
