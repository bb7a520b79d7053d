"""What a server serves: stores by name, each with its memory, and one engine for all stores of a model."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from nearlm.base import NearLMError, OptionError
from nearlm.mixing import Memory
from nearlm.model.lm import LM
from nearlm.search import Retriever, read_settings
from nearlm.serve.documents import Documents
from nearlm.serve.engine import Engine
from nearlm.serve.errors import APIError, refuse
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.vocabulary import Vocabulary
from nearlm.store import AnyStore, Datastore, SearchSettings
from nearlm.store.model_files import check_lm, load_lm

OFF = ":off"
_MOST_VARIANTS = 64  # memories with a request's own settings that are kept


@dataclass
class Served:
    """A store that is served: its memory as it was tuned, and as requests want it."""

    name: str
    store: Datastore
    memory: Memory
    engine: Engine
    vocabulary: Vocabulary
    _variants: "OrderedDict[SearchSettings, Memory]" = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    def describe(self) -> dict[str, Any]:
        """Say what the store holds and how it is searched."""
        manifest = self.store.manifest
        settings = self.memory.settings
        used = {name: getattr(settings, name) for name in ("lam", "knn_temperature", "k", "nprobe", "mixture")}
        return {
            "name": self.name,
            "model": self.engine.lm.name,
            "records": len(self.store),
            "documents": manifest.documents,
            "tokens": manifest.tokens,
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
        self.stores = {one.name: one for one in served}
        self.engines = list({id(one.engine): one.engine for one in served}.values())

    @classmethod
    def open(
        cls, stores: Sequence[AnyStore], limits: Limits, metrics: Metrics, lms: Sequence[LM] = (), **loading: Any
    ) -> "Catalog":
        """Open stores and load their models, each model once.

        Args:
            stores: Folders of stores, `cache:NAME`, or open stores.
            limits: What requests may ask for.
            metrics: Where is counted.
            lms: Models that are loaded already.
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
            served.append(Served(_unique(store.path.name, served), store, memory, engine, vocabulary))
        return cls(served)

    @property
    def names(self) -> list[str]:
        """The names of models: each store's, and with `:off` its model alone."""
        return [name + end for name in self.stores for end in ("", OFF)]

    def choose(self, name: str | None) -> Chosen:
        """Return what a request's `model` stands for; nothing is the first store."""
        if not name:
            return Chosen(next(iter(self.stores.values())), True)
        bare = name.removesuffix(OFF)
        if name in self.stores:
            return Chosen(self.stores[name], True)
        if bare in self.stores:
            return Chosen(self.stores[bare], False)
        known = ", ".join(self.names)
        raise APIError(404, f"there is no model {name[:100]!r}; expected one of {known}", "model", "model_not_found")

    def store(self, name: str) -> Served:
        """Return a store by its name."""
        if name not in self.stores:
            known = ", ".join(self.stores)
            raise APIError(404, f"there is no store {name[:100]!r}; expected one of {known}", code="store_not_found")
        return self.stores[name]


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
