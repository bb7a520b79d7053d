"""What gates and mixtures are trained for: an index, how it is searched, and a trace of a validation text."""

from typing import Protocol

from nearlm.base import OptionError, Reporter, StoreError, canonical_hash
from nearlm.mixing.traces import LMTrace, Trace, trace_lm, trace_search
from nearlm.model.lm import LM
from nearlm.search import Retriever, read_settings, tune_again
from nearlm.store import DEFAULT, Datastore, SearchSettings, StoreState, Tuned
from nearlm.text import Reading, TokenText

_OF_A_SEARCH = ("index", "knn_temperature", "k", "nprobe", "distances")


def tuned_settings(store: Datastore, index: str) -> Tuned:
    """Return what was tuned for an index; a gate or mixture is trained for just that."""
    store.need_keys()
    tuned = read_settings(store, index)
    if tuned is None:
        raise StoreError(f"index {index!r} of {store.path} has no tuned T and k; {tune_again(store, index)}")
    return tuned


def search_only(settings: SearchSettings) -> SearchSettings:
    """Return the settings that a gate or mixture depends on: all of a search, and T."""
    return SearchSettings(**{name: getattr(settings, name) for name in _OF_A_SEARCH})


def search_hash(retriever: Retriever) -> str:
    """Return a hash of all that a search depends on."""
    return canonical_hash(retriever.describe())


def lasting_hash(retriever: Retriever) -> str:
    """Return a hash of how distances are measured, which stays the same when an index grows with an append."""
    return canonical_hash([retriever.info.hash, retriever.index.nprobe, retriever.distances])


class _Made(Protocol):
    @property
    def store(self) -> str: ...

    @property
    def state(self) -> StoreState | None: ...


def train_again(store: Datastore, name: str) -> str:
    """Say how to train a mixture and a gate."""
    named = "" if name == DEFAULT else f" `gate={name!r}`"
    return f"train it again with: nearlm gate {store.path} `text=…`{named}, or learn_all()"


def check_of_store(what: str, info: _Made, store: Datastore, again: str) -> None:
    """Refuse a gate or mixture of another store than this was before text was appended."""
    if not store.learned_from(info.store, info.state):
        raise StoreError(f"the {what} is of another state of {store.path}; train it again: {again}")


def what_came_after(info: _Made, store: Datastore) -> str | None:
    """Say what was added to a store since a gate or mixture was trained; None if nothing was."""
    if info.store == store.checksum or info.state is None:
        return None
    added = len(store.tokens) - info.state.tokens
    if added > 0:
        return f"{added:,} of its {len(store.tokens):,} tokens"
    return None if info.state.records else "its keys"


def trace_for(
    lm: LM, retriever: Retriever, text: TokenText, reading: Reading, settings: SearchSettings, reporter: Reporter
) -> Trace:
    """Trace a text with enough neighbours for some settings, the same trace that tuning reads if possible."""
    return search_for(trace_lm(lm, text, reading, reporter), retriever, settings, reporter)


def search_for(traced: LMTrace, retriever: Retriever, settings: SearchSettings, reporter: Reporter) -> Trace:
    """Search for a traced text with enough neighbours for some settings."""
    k = retriever.used_k(settings.k)
    if retriever.nested:
        k = max(retriever.used_k(), k)
    return trace_search(traced, retriever, k, reporter)


def check_trained(
    what: str, trained: SearchSettings, search: str, retriever: Retriever, settings: SearchSettings
) -> None:
    """Refuse another index or other search settings than those that a gate or mixture was trained with."""
    if retriever.name != trained.index:
        raise OptionError(
            f"the {what} was trained for index {trained.index!r}, this is {retriever.name!r}; "
            f"use `index={trained.index!r}`, or train one for this index with `nearlm gate`"
        )
    used = search_only(retriever.settings.over(settings))
    for name in _OF_A_SEARCH[1:]:
        here = getattr(used, name)
        then = getattr(trained, name)
        if here != then:
            raise OptionError(
                f"the {what} was trained with {name}={then}, here it is {here}; "
                f"leave `{name}` out, or tune the index and train again"
            )
    if search not in (lasting_hash(retriever), search_hash(retriever)):  # older ones name the state of the store too
        raise OptionError(
            f"the {what} was trained with an earlier index {retriever.name!r}; train it again with `nearlm gate`"
        )
