"""The methods that are compared: what a user could do to make a model know a text, each from raw text, in its time."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from nearlm.base import files
from nearlm.mixing import Memory, Mixture, traces_in, tune
from nearlm.model import ModelSpec
from nearlm.model.adaptation import FULL, LORA, Adaptation, AdaptOptions, save_adapter
from nearlm.model.lm import LM, longest_window
from nearlm.model.pretrained import load_pretrained, load_tokenizer
from nearlm.optimizer.fit_plan import measure_speed
from nearlm.paper.comparison_budgets import Made, Task, choose_documents, plan_memory
from nearlm.paper.comparison_rag import Passages, RagOptions, RagReader, candidates
from nearlm.paper.comparison_reading import WINDOW, MemoryReader, Reader, reading_of
from nearlm.paper.comparison_updates import time_adding, time_removing
from nearlm.search import AUTO, PAPER, build_index
from nearlm.store import BuildOptions, Datastore
from nearlm.store.builder import build
from nearlm.store.model_files import load_lm
from nearlm.store.plan import NO_KEYS
from nearlm.text import Framing, Reading, TextSource, TokenText, read_text

_SPLIT = 0.5  # of the time for an adapter, where a memory follows
_TRIED = 6  # ways of RAG that there should be time for
_RAG_COST = 5.0  # of reading a token with passages, compared with one without; only to begin with


class Method(Protocol):
    """Something that a user could do."""

    def make(self, task: Task) -> Made:
        """Learn the training text within the task's time, and keep what was made in its folder."""

    def open(self, task: Task) -> Reader:
        """Return what was made, ready to read."""

    def disk(self, task: Task) -> int:
        """Return the bytes that it takes on disk beside the model."""

    def add(self, task: Task, made: Made, document: TextSource) -> float | None:
        """Return the seconds that it takes to add a document; None if there is nothing to add to."""

    def remove(self, task: Task, made: Made) -> float | None:
        """Return the seconds that it takes to remove a document."""


class Alone:
    """The LM as it is."""

    def make(self, task: Task) -> Made:
        """Make nothing."""
        return Made(0.0, 0)

    def open(self, task: Task) -> Reader:
        """Return the LM."""
        return MemoryReader(LM.load(task.spec))

    def disk(self, task: Task) -> int:
        """Return 0."""
        return 0

    def add(self, task: Task, made: Made, document: TextSource) -> None:
        """There is nothing to add to."""

    def remove(self, task: Task, made: Made) -> None:
        """There is nothing to remove."""


@dataclass(frozen=True)
class Trained:
    """A fine-tuned LM: by LoRA, or in all weights."""

    options: AdaptOptions

    def make(self, task: Task) -> Made:
        """Train within the time."""
        return _adapt(task, self.options)

    def open(self, task: Task) -> Reader:
        """Return the trained LM."""
        return MemoryReader(LM.load(_trained_spec(task, self.options)))

    def disk(self, task: Task) -> int:
        """Return the size of the adapter, or of all weights."""
        return _size(_place(task, self.options))

    def add(self, task: Task, made: Made, document: TextSource) -> float:
        """Return what one pass of training over the document takes."""
        tokenizer = load_tokenizer(task.spec)
        ids = [tokenizer(text)["input_ids"] for text in document.text]
        return made.window_seconds * max(1.0, sum(map(len, ids)) / WINDOW)

    def remove(self, task: Task, made: Made) -> float:
        """Return what training anew takes: a document cannot be taken out of weights."""
        return made.seconds


@dataclass(frozen=True)
class Stored:
    """An LM with a memory; with `options` the LM is adapted first, in half of the time."""

    index: str | None  # None: no keys, the ∞-gram and the text so far alone
    sources: str | None  # of the mixture; None: one λ
    options: AdaptOptions | None = None

    def make(self, task: Task) -> Made:
        """Adapt the LM if need be, then build, index and tune within the time."""
        adapted = None
        if self.options is not None:
            adapted = _adapt(task.share(_SPLIT), self.options)
        with traces_in(task.folder / "traces"):
            lm = LM.load(self._spec(task))
            store, chosen = self._build(task, lm)
            if self.index is not None:
                build_index(store, self.index, reporter=task.reporter)
                tune(store, chosen, lm, reporter=task.reporter)
            if self.sources is not None:
                Mixture.train(store, chosen, lm, sources=self.sources, reporter=task.reporter)
        said = f"{store.manifest.tokens:,} tokens stored, {chosen.max_tokens:,} to tune on"
        if adapted is not None:
            said = f"{adapted.chosen}; {said}"
        return Made(task.spent, store.manifest.tokens, said, adapted.window_seconds if adapted else 0.0)

    def _build(self, task: Task, lm: LM) -> tuple[Datastore, TextSource]:
        """Build the store of as much text as there is time for; return it and the text to tune on."""
        speed = measure_speed(lm, task.train.open(), reading_of(lm).window)
        plan = plan_memory(speed, task.left, keys=self.index is not None)
        text = task.train
        if plan.store is not None:
            text = choose_documents(text, plan.store, speed.characters)
        options = BuildOptions(keys=NO_KEYS if self.index is None else None)
        store = build(lm, text, task.folder / "store", options, reporter=task.reporter)
        most = min(plan.valid, task.valid.max_tokens or plan.valid)
        return store, replace(task.valid, max_tokens=most)

    def open(self, task: Task) -> Reader:
        """Return the LM with its memory."""
        store = Datastore.open(task.folder / "store")
        return MemoryReader(load_lm(store, self._spec(task)), Memory.open(store))

    def disk(self, task: Task) -> int:
        """Return the size of the store, and of the adapter."""
        return _size(task.folder / "store") + _size(_place(task, LORA))

    def add(self, task: Task, made: Made, document: TextSource) -> float:
        """Add the document to the store; an adapter stays as it is."""
        store = Datastore.open(task.folder / "store")
        return time_adding(store, load_lm(store, self._spec(task)), document)

    def remove(self, task: Task, made: Made) -> float:
        """Remove a document from the store; from an adapter it can be removed only by training anew."""
        if self.options is not None:
            return made.seconds
        return time_removing(Datastore.open(task.folder / "store"))

    def _spec(self, task: Task) -> ModelSpec:
        return task.spec if self.options is None else _trained_spec(task, self.options)


class Rag:
    """Passages of the training text, found by BM25, before what the LM reads."""

    def make(self, task: Task) -> Made:
        """Index the text, and choose passages on validation text within the time."""
        lm = LM.load(task.spec)
        text = _read(task, lm, task.train, "train")
        speed = measure_speed(lm, task.train.open(), reading_of(lm).window)
        most = int(max(200, task.left / (speed.seconds * _RAG_COST * _TRIED)))
        valid = _read(task, lm, replace(task.valid, max_tokens=min(most, task.valid.max_tokens or most)), "valid")
        scores: dict[RagOptions, float] = {}
        known: dict[int, Passages] = {}
        longest = 0.0
        for one in candidates():
            if scores and longest > task.left:
                break
            started = time.monotonic()
            if one.chunk not in known:
                known[one.chunk] = Passages(lm.tokenizer, text, one.chunk)
            scores[one] = float(RagReader(lm, known[one.chunk], one).predict(valid).logp.mean())
            longest = max(longest, time.monotonic() - started)
            task.reporter.say(f"{one.label}: loss {-scores[one]:.4f}")
        best = max(scores, key=lambda one: scores[one])
        files.write_json(task.folder / "rag.json", {"chunk": best.chunk, "count": best.count, "stretch": best.stretch})
        known[best.chunk].save(task.folder / "index")
        return Made(task.spent, len(text.tokens), f"{best.label}; {len(scores)} ways tried on {len(valid.targets):,}")

    def open(self, task: Task) -> Reader:
        """Return the LM with its passages."""
        lm = LM.load(task.spec)
        options = RagOptions(**json.loads((task.folder / "rag.json").read_text()))
        return RagReader(lm, Passages(lm.tokenizer, _read(task, lm, task.train, "train"), options.chunk), options)

    def disk(self, task: Task) -> int:
        """Return the size of index and text."""
        return _size(task.folder / "index") + _size(task.folder / "train")

    def add(self, task: Task, made: Made, document: TextSource) -> float:
        """Index the text again: BM25's weights depend on all of it."""
        lm = LM.load(task.spec)
        options = RagOptions(**json.loads((task.folder / "rag.json").read_text()))
        started = time.perf_counter()
        Passages(lm.tokenizer, _read(task, lm, task.train, "again"), options.chunk)
        return time.perf_counter() - started

    def remove(self, task: Task, made: Made) -> float:
        """Index the text again."""
        return self.add(task, made, task.train)


ALONE = "LM alone"
INSTANT = "instant memory"
VANILLA = "kNN-LM"
NEARLM = "nearlm"
LORA_NAME = "LoRA"
FULL_NAME = "full fine-tuning"
RAG = "RAG"
LORA_INSTANT = "LoRA + instant memory"
LORA_NEARLM = "LoRA + nearlm"
METHODS: dict[str, Method] = {
    ALONE: Alone(),
    INSTANT: Stored(None, "ngram,text"),
    VANILLA: Stored(PAPER, None),
    NEARLM: Stored(AUTO, "knn,ngram,text"),
    LORA_NAME: Trained(LORA),
    FULL_NAME: Trained(FULL),
    RAG: Rag(),
    LORA_INSTANT: Stored(None, "ngram,text", LORA),
    LORA_NEARLM: Stored(AUTO, "knn,ngram,text", LORA),
}


def _adapt(task: Task, options: AdaptOptions) -> Made:
    """Train on windows of the whole text within the time, and save the adapter or the model."""
    spec = replace(task.spec, dtype="float32")
    model, tokenizer = load_pretrained(spec)
    window = min(WINDOW, longest_window(model) or WINDOW)
    reading = Reading(Framing.of(tokenizer, "eos"), window, window)
    texts = {
        name: read_text(source, tokenizer, reading, _folder(task, name))
        for name, source in (("train", task.train), ("valid", task.valid))
    }
    adaptation = Adaptation(model, texts["train"], texts["valid"], options)
    pace = adaptation.measure()
    plan = pace.plan(task.left, options, len(texts["valid"].windows))
    adapted = adaptation.run(plan, reporter=task.reporter)
    place = _place(task, options)
    if options.rank is not None:
        save_adapter(adaptation.model, spec, place)
    else:
        model.eval().save_pretrained(place)  # type: ignore[operator]
        tokenizer.save_pretrained(place)
    said = f"rate {adapted.rate:g}, {adapted.steps} steps, {adapted.tokens:,} tokens"
    return Made(task.spent, adapted.tokens, said, pace.step / options.batch)


def _trained_spec(task: Task, options: AdaptOptions) -> ModelSpec:
    place = str(_place(task, options))
    return replace(task.spec, model=place) if options.rank is None else replace(task.spec, adapter=place)


def _place(task: Task, options: AdaptOptions) -> Path:
    return task.folder / ("model" if options.rank is None else "adapter")


def _read(task: Task, lm: LM, source: TextSource, name: str) -> TokenText:
    return read_text(source, lm.tokenizer, reading_of(lm), _folder(task, name))


def _folder(task: Task, name: str) -> Path:
    folder = task.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _size(folder: Path) -> int:
    """Return the bytes of a folder's files, 0 if it is not there."""
    return int(np.sum([path.stat().st_size for path in folder.rglob("*") if path.is_file()], dtype=np.int64))
