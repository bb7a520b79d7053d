"""What a server serves: stores by name, each with its memory, and one engine for all stores of a model."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nearlm.base import NearLMError, OptionError
from nearlm.knnlm.drafting import Drafter
from nearlm.mixing import Memory, open_memory
from nearlm.model.lm import LM
from nearlm.search import Retriever, read_settings
from nearlm.serve.documents import Documents
from nearlm.serve.engine import Engine
from nearlm.serve.errors import APIError, refuse
from nearlm.serve.explanation import ShownStore
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.vocabulary import Vocabulary
from nearlm.store import AnyStore, Datastore, SearchSettings, open_stores
from nearlm.store.manifest import read_manifest
from nearlm.store.model_files import check_lm, load_lm
from nearlm.store.watching import Stamp, stamp_of

OFF = ":off"
_LOG = logging.getLogger("nearlm.serve")
TOGETHER = "+"  # between the names of stores that are used at once
_MOST_VARIANTS = 64  # memories with a request's own settings that are kept


@dataclass
class Served:
    """A store that is served, or several at once: its memory as it was tuned, and as requests want it."""

    name: str
    store: Datastore
    memory: Memory
    engine: Engine
    vocabulary: Vocabulary
    drafter: Drafter | None = None
    names: dict[Datastore, str] = field(default_factory=dict)  # of several
    stamp: Stamp = ()
    _variants: "OrderedDict[SearchSettings, Memory]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def shown(self) -> list[ShownStore]:
        """The stores whose texts explain a token, in the memory's order."""
        return [ShownStore(one.store, self.names.get(one.store, "")) for one in self.memory.each]

    @cached_property
    def documents(self) -> Documents:
        """Its documents."""
        return Documents(self.store, self.vocabulary.show)

    @cached_property
    def _retriever(self) -> Retriever:
        if self.memory.retriever is not None:
            return self.memory.retriever
        return Retriever.open(self.store, SearchSettings(index=self.store.defaults.index))

    def memory_for(self, settings: SearchSettings) -> Memory:
        """Return the memory with a request's own λ, temperature or k: one λ then holds for all tokens."""
        if not settings.values:
            return self.memory
        if self.memory.parts:
            raise refuse("several stores have each their own settings; leave out lam, knn_temperature and k", "nearlm")
        if not len(self.store):
            raise refuse("this memory has no keys and searches nothing; leave out lam, knn_temperature and k", "nearlm")
        with self._lock:
            if settings not in self._variants:
                retriever = self._retriever
                known = read_settings(self.store, retriever.name)
                whole = replace(settings.over(known), nprobe=None, distances=None, gate=None, mixture=None)
                self._variants[settings] = Memory.of(retriever, replace(whole, skip=None, budget=None))
            self._variants.move_to_end(settings)
            if len(self._variants) > _MOST_VARIANTS:
                self._variants.popitem(last=False)
            return self._variants[settings]

    @property
    def changed(self) -> bool:
        """Whether the store has changed on disk since this was opened."""
        return stamp_of(self.store.layout, self._index) != self.stamp

    @property
    def _index(self) -> str | None:
        return self.memory.retriever.name if self.memory.retriever else None

    def reopen(self) -> "Served":
        """Return the store as it is now; requests that are being computed go on with what they began with."""
        stamp = stamp_of(self.store.layout, self._index)  # before anything is read: what changes meanwhile is seen
        store = Datastore.open(self.store.path)
        check_lm(store, self.engine.lm)
        memory = Memory.open(store)
        memory.check_model(self.engine.lm.fingerprint())
        drafter = Drafter.of(store, memory) if self.drafter is not None else None
        return Served(self.name, store, memory, self.engine, self.vocabulary, drafter, stamp=stamp)

    def describe(self) -> dict[str, Any]:
        """Say what the store holds and how it is searched."""
        manifest = self.store.manifest
        settings = self.memory.settings
        gone = self.store.forgotten
        used = {name: getattr(settings, name) for name in ("lam", "knn_temperature", "k", "nprobe", "mixture")}
        return {
            "name": self.name,
            "model": self.engine.lm.name,
            "records": len(self.store) - (gone.records if gone else 0),
            "documents": manifest.documents - (len(gone) if gone else 0),
            "tokens": manifest.tokens - (gone.tokens if gone else 0),
            "bytes": self.store.bytes,
            "dim": self.store.dim,
            "index": self.memory.retriever.name if self.memory.retriever else None,
            "settings": {**used, "gate": self.memory.gate.name if self.memory.gate else None},
            "has_keys": len(self.store) > 0,
        }


@dataclass(frozen=True)
class Chosen:
    """What the name of a model stands for: a store, with its memory or without."""

    served: Served
    memory: bool


class Catalog:
    """All that is served, by name; the first store is the default."""

    def __init__(self, served: Sequence[Served]):
        self._stores = {one.name: one for one in served}
        self._reopening = threading.Lock()
        self.engines = list({id(one.engine): one.engine for one in served}.values())
        self._together: dict[str, Served] = {}
        self._joined: dict[str, list[int]] = {}  # which states of stores are used at once
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls,
        stores: Sequence[AnyStore],
        limits: Limits,
        metrics: Metrics,
        lms: Sequence[LM] = (),
        *,
        draft: bool = True,
        **loading: Any,
    ) -> "Catalog":
        """Open stores and load their models, each model once.

        Args:
            stores: Folders of stores, `cache:NAME`, or open stores.
            limits: What requests may ask for.
            metrics: Where is counted.
            lms: Models that are loaded already.
            draft: Let the stores' texts and what was read draft tokens.
            loading: How models are loaded (`device`, `dtype`, `trust_remote_code`).
        """
        if not stores:
            raise OptionError("there is no store to serve; name at least one")
        engines: dict[Any, tuple[Engine, Vocabulary]] = {}
        served: list[Served] = []
        for store in map(Datastore.open, stores):
            lm = next((lm for lm in lms if _fits(store, lm)), None)
            key = (store.model_spec(), store.manifest.key_tap) if lm is None else id(lm)
            if key not in engines:
                lm = lm or load_lm(store, replace(store.model_spec(), **loading))
                vocabulary = Vocabulary(lm.tokenizer)
                engines[key] = (Engine(lm, vocabulary.decode, limits, metrics), vocabulary)
            engine, vocabulary = engines[key]
            check_lm(store, engine.lm)
            memory = Memory.open(store)
            memory.check_model(engine.lm.fingerprint())
            drafter = _drafter(engine, store, memory) if draft else None
            opened = Served(_unique(store.path.name, served), store, memory, engine, vocabulary, drafter)
            served.append(replace(opened, stamp=stamp_of(store.layout, opened._index)))
        return cls(served)

    @property
    def stores(self) -> dict[str, Served]:
        """All stores by name, each as it is now."""
        return {name: self._fresh(name) for name in self._stores}

    def _fresh(self, name: str) -> Served:
        """Return a store, opened again if it has changed on disk.

        One that cannot be opened just now stays as it was, unless documents were forgotten: then it is refused.
        """
        served = self._stores[name]
        if not served.changed:
            return served
        with self._reopening:
            served = self._stores[name]
            if served.changed:
                try:
                    self._stores[name] = served.reopen()
                except (NearLMError, OSError) as error:
                    _LOG.warning("%s has changed, and cannot be opened now: %s", served.store.path, error)
                    if _has_forgotten(served.store):
                        raise APIError(
                            503, f"store {name!r} is being changed; try again later", code="changing"
                        ) from None
            return self._stores[name]

    @property
    def names(self) -> list[str]:
        """The names of models: each store's, and with `:off` its model alone; and all stores of a model at once."""
        return [*(name + end for name in self._stores for end in ("", OFF)), *self.together]

    @property
    def together(self) -> list[str]:
        """The names that stand for all stores of a model at once, where it has several."""
        alike = [[one.name for one in self._stores.values() if one.engine is engine] for engine in self.engines]
        return [TOGETHER.join(names) for names in alike if len(names) > 1]

    def choose(self, name: str | None) -> Chosen:
        """Return what a request's `model` stands for; nothing is the first store."""
        if not name:
            return Chosen(self._fresh(next(iter(self._stores))), True)
        bare = name.removesuffix(OFF)
        if name in self._stores:
            return Chosen(self._fresh(name), True)
        if bare in self._stores:
            return Chosen(self._fresh(bare), False)
        parts = name.split(TOGETHER)
        if len(parts) > 1 and all(part in self._stores for part in parts):
            return Chosen(self._join(parts), True)
        known = ", ".join(self.names)
        raise APIError(404, f"there is no model {name[:100]!r}; expected one of {known}", "model", "model_not_found")

    def _join(self, parts: list[str]) -> Served:
        """Return several stores that are used at once; they share the indexes that are open."""
        name = TOGETHER.join(parts)
        served = [self._fresh(part) for part in parts]
        with self._lock:
            if name not in self._together or self._joined[name] != list(map(id, served)):
                try:
                    stores = open_stores([one.store for one in served])
                    memory = open_memory(stores, opened=[one.memory for one in served])
                    memory.check_model(served[0].engine.lm.fingerprint())
                except NearLMError as error:
                    raise APIError(400, f"{name[:100]!r} cannot be used at once: {error}", "model") from error
                names = {one.store: one.name for one in served}
                first = served[0]
                drafter = Drafter.of(first.store, memory) if first.drafter is not None else None
                parts_of_it = (first.store, memory, first.engine, first.vocabulary, drafter, names)
                self._together[name] = Served(name, *parts_of_it)
                self._joined[name] = list(map(id, served))
            return self._together[name]

    def store(self, name: str) -> Served:
        """Return a store by its name."""
        if name not in self._stores:
            known = ", ".join(self._stores)
            raise APIError(404, f"there is no store {name[:100]!r}; expected one of {known}", code="store_not_found")
        return self._fresh(name)


def _has_forgotten(store: Datastore) -> bool:
    """Tell whether a store on disk, as far as it can be read, has forgotten more than when it was opened."""
    try:
        now = read_manifest(store.path)
    except (NearLMError, OSError):
        return True
    before = store.manifest
    return now.compacted != before.compacted or now.forgotten != before.forgotten


def _drafter(engine: Engine, store: Datastore, memory: Memory) -> Drafter:
    """Make an engine ready to draft, from a store's text."""
    engine.prepare_drafts(memory)
    return Drafter.of(store, memory)


def _fits(store: Datastore, lm: LM) -> bool:
    try:
        check_lm(store, lm)
    except NearLMError:
        return False
    return True


def _unique(name: str, served: Sequence[Served]) -> str:
    """Return a name that no other store has, without what stands for something else."""
    taken = {one.name for one in served}
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name) or "store"
    numbered = (f"{plain}-{number}" for number in range(2, len(taken) + 3))
    return next(each for each in (plain, *numbered) if each not in taken)
