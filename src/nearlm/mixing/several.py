"""A memory of several stores: each is searched by itself, and one mixture weighs what all of them propose.

The mixture is one that was learned for just these stores (kept in one of them, which names the others by their
checksums), or else weighs each memory by the odds that it gives itself.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nearlm.base import QUIET, Doubles, NearLMWarning, OptionError, Reporter, StoreError, files
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.memory import Memory, warn_short
from nearlm.mixing.mixture import (
    ALL_SOURCES,
    FORMAT,
    Mixture,
    MixtureInfo,
    OtherStore,
    mixture_files,
    untrained_info,
    verify_mixture,
)
from nearlm.mixing.mixture_features import KNN, NGRAM, join_sources, name_at, parse_sources
from nearlm.mixing.mixture_training import (
    MixtureExamples,
    Samples,
    Searched,
    StoreSide,
    learn_mixture,
    mixture_examples,
)
from nearlm.mixing.network_files import save_trained
from nearlm.mixing.odds import Alone, Odds
from nearlm.mixing.samples import Lessons, check_samples, trace_lessons
from nearlm.mixing.traces import AnyText, LMTrace
from nearlm.mixing.trained import check_trained, lasting_hash, search_for, search_only, tuned_settings, what_came_after
from nearlm.model.lm import LM
from nearlm.search import Retriever
from nearlm.store import DEFAULT, NONE, Datastore, SearchSettings, store_names

_OF_A_GATE = ("gate", "skip", "budget")


def open_memory(
    stores: Sequence[Datastore], settings: SearchSettings = SearchSettings(), opened: Sequence[Memory] = ()
) -> Memory:
    """Open the memory of one store or several; what is given goes before what was tuned, in each of them.

    With several every store is searched for every token. What is `opened` already, in the same order, is used again.
    """
    if len(stores) == 1:
        return opened[0] if opened else Memory.open(stores[0], settings)
    for name in _OF_A_GATE:
        if getattr(settings, name) not in (None, NONE):
            raise OptionError(f"`{name}` is for one store: several are all searched for every token; leave it out")
    settings = replace(settings, gate=None)
    named = None if settings.mixture == NONE else settings.mixture
    found = find_learned(stores, named) if named or not settings.values else None
    if found is not None:
        return _learned(*found, opened)
    if named:
        raise StoreError(f"no mixture {named!r} was learned for {_listed(stores)}; {_learn_them(stores)}")
    if not settings.values:
        said = f"no weights were learned for {_listed(stores)} together (on enough text), using those of each alone"
        warnings.warn(f"{said}; {_learn_them(stores)}", NearLMWarning, stacklevel=2)
    return join_memories(opened or [Memory.open(store, settings) for store in stores])


def _listed(stores: Sequence[Datastore]) -> str:
    return " and ".join(str(store.path) for store in stores)


def _learn_them(stores: Sequence[Datastore]) -> str:
    others = " ".join(f"`store={str(store.path)!r}`" for store in stores[1:])
    return f"learn them with: nearlm gate {stores[0].path} `text=…` {others}, or learn_all()"


def join_memories(memories: Sequence[Memory]) -> Memory:
    """Put memories together that were not trained so: each expert has the odds that its own memory gives it."""
    parts = tuple(replace(one, gate=None) for one in memories)
    odds = Odds(tuple(_alone(one) for one in parts))
    first = parts[0]
    known = first.store.manifest.model.fingerprint
    info = untrained_info(odds.sources, search_only(first.settings), first.store.checksum, known)
    names = store_names([one.store for one in parts])
    others = tuple(_describe(one, name) for one, name in zip(parts[1:], names[1:], strict=True))
    infinigrams = tuple(one.mixture.infinigram if one.mixture else None for one in parts)
    mixture = Mixture(NONE, replace(info, others=others), odds, infinigrams[0], infinigrams[1:])
    return Memory(first.store, None, SearchSettings(mixture=NONE), None, mixture, parts)


def _alone(memory: Memory) -> Alone:
    """Say how a memory weighs its sources when it is alone."""
    if memory.mixture is None:
        return Alone((KNN,), None, memory.lam)
    network = memory.mixture.network
    assert not isinstance(network, Odds)
    return Alone(memory.mixture.info.sources, network)


def _describe(memory: Memory, name: str) -> OtherStore:
    """Say what a store is, and how it is searched, if it is."""
    store = memory.store
    if memory.retriever is None:
        return OtherStore(name, store.checksum, "", SearchSettings(), store.state)
    settings = search_only(memory.settings)
    return OtherStore(name, store.checksum, lasting_hash(memory.retriever), settings, store.state)


def find_learned(stores: Sequence[Datastore], name: str | None = None) -> tuple[list[Datastore], str] | None:
    """Find the mixture that was learned for stores: these in its order, and its name; None if there is none.

    One that is not named is found only if it was surely better than each memory's own weights.
    """
    for home in stores:
        for each in home.mixtures if name is None else [one for one in home.mixtures if one == name]:
            info = verify_mixture(home, each)
            ordered = _in_order(info, home, stores)
            if ordered is not None and (info.better or name is not None):
                return ordered, each
    return None


def _in_order(info: MixtureInfo, home: Datastore, stores: Sequence[Datastore]) -> list[Datastore] | None:
    """Return stores in the order in which a mixture knows them, None if it is for others."""
    left = [store for store in stores if store is not home]
    ordered = [home]
    if len(left) != len(info.others) or not home.continues(info.store, info.state):
        return None
    for noted in info.others:
        fits = [store for store in left if store.continues(noted.store, noted.state)]
        if not fits:
            return None
        ordered.append(fits[0])
        left.remove(fits[0])
    return ordered


def _learned(stores: list[Datastore], name: str, opened: Sequence[Memory]) -> Memory:
    """Open the memory of stores for which a mixture was learned, each to be searched as it was then."""
    mixture = Mixture.load(stores[0], name, stores[1:])
    parts = []
    for number, (store, noted) in enumerate(zip(stores, mixture.info.stores, strict=True)):
        warn_short(store, mixture.infinigrams[number])
        added = what_came_after(noted, store)
        if added:
            said = f"the mixture {name!r} of {stores[0].path} was trained before {store.path} got {added}"
            warnings.warn(f"{said}, and is used as it is; {_learn_them(stores)}", NearLMWarning, stacklevel=3)
        searched = name_at(KNN, number) in mixture.info.sources
        parts.append(_part(store, noted, opened) if searched else Memory(store, None, SearchSettings()))
    return Memory(stores[0], None, SearchSettings(mixture=name), None, mixture, tuple(parts))


def _part(store: Datastore, noted: OtherStore, opened: Sequence[Memory]) -> Memory:
    """Open one store to be searched as a mixture was trained, with an index that is open already if it is that one."""
    known = [one.retriever for one in opened if one.store is store and one.retriever is not None]
    same = [one for one in known if one.settings == replace(noted.settings, knn_temperature=None, k=None)]
    retriever = same[0] if same else Retriever.open(store, noted.settings)
    check_trained("mixture", noted.settings, noted.search, retriever, noted.settings)
    return Memory.of(retriever, noted.settings)


def learn_together(
    stores: Sequence[Datastore],
    text: AnyText,
    lm: LM,
    *,
    name: str = DEFAULT,
    index: str = DEFAULT,
    sources: str = ALL_SOURCES,
    seed: int = 0,
    stride: int | None = None,
    samples: int | None = None,
    reporter: Reporter = QUIET,
) -> Mixture:
    """Train a mixture of several stores, each searched as it is alone, and keep it in the first of them."""
    check_samples(samples)
    home = stores[0]
    names = store_names(stores)
    name = f"with-{'-'.join(names[1:])}" if name == DEFAULT else name
    place = mixture_files(home, name)
    if name in home.mixtures and not verify_mixture(home, name).others:
        raise OptionError(f"`gate` is {name!r}, which {home.path} has for itself alone; expected another name")
    settings = SearchSettings() if index == DEFAULT else SearchSettings(index=index)
    parts = [Memory.open(store, settings) for store in stores]
    place.folder.mkdir(parents=True, exist_ok=True)
    with files.lock(place.folder):
        lessons = trace_lessons(lm, home, text, samples, seed, reporter, stride)
        asked = parse_sources(sources)
        network, info = _learn(parts, names, lessons, asked, {"model": lm.fingerprint(), "seed": seed}, reporter)
        save_trained(place, network, info)
    return Mixture.load(home, name, stores[1:])


def _learn(
    parts: Sequence[Memory],
    names: Sequence[str],
    lessons: Lessons,
    asked: tuple[str, ...],
    known: dict[str, Any],
    reporter: Reporter,
) -> tuple[Any, MixtureInfo]:
    """Train a network on traced texts, and say all there is to say of it."""
    traced, own = lessons
    kinds = [[kind for kind in asked if kind != KNN or one.retriever is not None] for one in parts]
    infinigrams = [_infinigram(one, named, reporter) for one, named in zip(parts, kinds, strict=True)]

    def look(one: LMTrace) -> tuple[MixtureExamples, list[Searched | None]]:
        found = [_search(part, one, reporter) for part in parts]
        sides = [StoreSide(*pair) for pair in zip(infinigrams, found, strict=True)]
        return mixture_examples(one, join_sources(kinds), *sides[0], sides[1:]), found

    examples, searched = look(traced)
    samples = None if own is None else Samples(look(own)[0], own.text.documents)
    odds, untrained = _untrained(parts, searched, traced)
    begun = odds if odds.sources == examples.sources else None
    network, verdict = learn_mixture(examples, traced, untrained, known["seed"], reporter, begun, samples)
    first, *others = [_describe(one, name) for one, name in zip(parts, names, strict=True)]
    return network, MixtureInfo(
        **vars(verdict),
        **known,
        format=FORMAT,
        sources=examples.sources,
        store=first.store,
        search=first.search,
        text=traced.text.sha256,
        settings=first.settings,
        files={},
        state=first.state,
        others=tuple(others),
        samples=len(own) if own else 0,
    )


def _infinigram(memory: Memory, kinds: Sequence[str], reporter: Reporter) -> InfiniGram | None:
    return build_infinigram(memory.store, reporter) if NGRAM in kinds else None


def _search(memory: Memory, traced: LMTrace, reporter: Reporter) -> Searched | None:
    """Search one store for a traced text, as it is searched alone; what is searched must be tuned."""
    if memory.retriever is None:
        return None
    tuned_settings(memory.store, memory.retriever.name)
    return Searched(search_for(traced, memory.retriever, memory.settings, reporter), memory.settings)


def _untrained(parts: Sequence[Memory], searched: Sequence[Searched | None], traced: LMTrace) -> tuple[Odds, Doubles]:
    """Return the weights of each store alone, and log p of every token by them."""
    mixture = join_memories(parts).mixture
    assert mixture is not None and isinstance(mixture.network, Odds)
    sides = [StoreSide(*pair) for pair in zip(mixture.infinigrams, searched, strict=True)]
    examples = mixture_examples(traced, mixture.info.sources, *sides[0], sides[1:])
    return mixture.network, examples.log_mixture(mixture.network)
