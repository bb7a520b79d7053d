"""`KNNLM`: an LM with a memory; score text, explain tokens, generate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from nearlm.base import Int32s, OptionError
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.explanation import Explanation, Explanations, Suffix
from nearlm.knnlm.generation import Continuation, continue_rows
from nearlm.knnlm.scoring import ScoredBatch, Scorer, TokenScores
from nearlm.mixing import TEXT, Contexts, Gate, Memory, kind_of, open_memory, store_of
from nearlm.model.lm import LM, AnyModel
from nearlm.search import Retriever
from nearlm.store import AnyStores, Context, Datastore, SearchSettings, open_stores, store_names
from nearlm.store.model_files import as_lm, check_lm
from nearlm.store.watching import Stamp, stamp_of
from nearlm.text import plan_windows

Conversation = Sequence[Mapping[str, str]]


class GenerateOptions(TypedDict, total=False):
    """The options of transformers' `generate` that people use; `generation_config` takes all others."""

    max_new_tokens: int
    min_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    num_beams: int
    num_return_sequences: int
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    stop_strings: str | list[str]
    eos_token_id: int | list[int]
    pad_token_id: int
    max_time: float
    use_cache: bool
    prompt_lookup_num_tokens: int
    assistant_model: Any
    logits_processor: Any
    stopping_criteria: Any
    streamer: Any
    generation_config: Any


class KNNLM:
    """An LM with a memory: p = λ p_kNN + (1 - λ) p_LM, with one λ for all tokens or what a gate says.

    Example:
        >>> knnlm = nearlm.KNNLM.load("mystore")
        >>> scores = knnlm.score("the licence grants rights to any person")
        >>> len(scores.tokens) == len(scores.logp)
        True
        >>> text = knnlm.generate("the licence", max_new_tokens=3)
    """

    def __init__(self, lm: LM, store: Datastore, memory: Memory | None):
        self.lm = lm
        self.store = store  # the first of several
        self.memory = memory
        self._asked = SearchSettings() if memory is None else memory.settings
        self._stores: Sequence[Datastore] = [store]
        self._stamps: tuple[Stamp, ...] = ()
        check_lm(store, lm)
        if memory is not None:
            memory.check_model(lm.fingerprint())
        lm.packing.prepare(lm.model)  # not while somebody takes the time

    def __repr__(self) -> str:
        return f"KNNLM({self.lm!r}, {self.memory or 'no memory'})"

    @classmethod
    def load(
        cls,
        store: AnyStores,
        model: AnyModel = None,
        settings: SearchSettings = SearchSettings(),
        *,
        knn: bool = True,
    ) -> "KNNLM":
        """Load a store's model, index and tuned settings, or those of several stores of one model.

        Args:
            store: Folder of a store, `cache:NAME`, or an open store; or a list of several, which are used together.
            model: The store's model where it is now: a hub id or folder, a `ModelSpec`, an `LM`, or a transformers
                model that is loaded already. By default the one that the store was built with.
            settings: What is given here goes before what was tuned.
            knn: Use the memory; without it this is the model alone.
        """
        stores = open_stores(store)
        if not knn and settings.gate is not None:
            raise OptionError("a gate chooses λ itself; leave out `lam` and `knn=False`, or `gate`")
        stamps = tuple(stamp_of(one.layout) for one in stores)
        memory = open_memory(stores, settings) if knn else None
        made = cls(as_lm(stores[0], model), stores[0], memory)
        made._asked = settings
        made._stores = stores
        made._stamps = stamps
        return made

    def refresh(self) -> bool:
        """Open the store again if it was added to, has forgotten documents or was compacted; return whether it was.

        `load` remembers the settings that it was given, and they hold again. A model under `attach` stays as it is.
        """
        stamps = tuple(stamp_of(one.layout) for one in self._stores)
        if stamps == self._stamps:
            return False
        stores = open_stores([one.path for one in self._stores])
        memory = open_memory(stores, self._asked) if self.memory is not None else None
        if memory is not None:
            memory.check_model(self.lm.fingerprint())
        self.store = stores[0]
        self.memory = memory
        self._stores = stores
        self._stamps = stamps
        vars(self).pop("drafter", None)
        vars(self).pop("_names", None)  # what was learned meanwhile may name the stores in another order
        return True

    @property
    def retriever(self) -> Retriever | None:
        """What is searched, if there is a memory of one store."""
        return self.memory.retriever if self.memory is not None else None

    @property
    def gate(self) -> Gate | None:
        """What decides which tokens skip retrieval, if anything does."""
        return self.memory.gate if self.memory is not None else None

    def score(self, text: str) -> TokenScores:
        """Score one text: log p of the LM, of the memory and of the mixture for each token that has one before it."""
        parts = [(batch.positions, batch.scores) for batch in self._score_batches(self._document(text))]
        order = np.argsort(np.concatenate([positions for positions, _ in parts]))
        names = [field.name for field in fields(TokenScores)]
        columns = (np.concatenate([getattr(scores, name) for _, scores in parts]) for name in names)
        return TokenScores(*(column[order] for column in columns))

    def explain(self, ids: Sequence[int], first: int = 1, nearest: int = 3) -> Explanations:
        """Explain the tokens of a sequence from position `first` on: what LM and memory thought of each, and why.

        In a notebook the list shows itself as a coloured text.
        """
        explained: dict[int, Explanation] = {}
        tokens = np.asarray(ids, np.int32)
        for batch in self._score_batches(tokens):
            sources = {}
            if batch.prediction is not None:
                sources = batch.prediction.by_source(batch.scores.log_lm, batch.scores.tokens)
            for row in np.flatnonzero(batch.positions >= max(first, 1)).tolist():
                weighed = {
                    self._source_name(name): (float(weight[row]), float(p[row]))
                    for name, (weight, p) in sources.items()
                }
                one = self._explanation(batch, row, nearest)
                position = int(batch.positions[row])
                explained[position] = replace(one, sources=weighed, suffix=self._suffix(tokens, position))
        return Explanations(explained[position] for position in sorted(explained))

    def _explanation(self, batch: ScoredBatch, row: int, nearest: int) -> Explanation:
        scores = batch.scores
        return Explanation(
            token=self.lm.tokenizer.decode([int(scores.tokens[row])]),
            p_lm=float(np.exp(scores.log_lm[row])),
            p_knn=float(np.exp(scores.log_knn[row])),
            p=float(np.exp(scores.logp[row])),
            lam=float(scores.lam[row]),
            nearest=self._nearest(batch, row, nearest),
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """What explanations call the stores: nothing where there is one."""
        stores = [one.store for one in self.memory.each] if self.memory is not None else []
        return store_names(stores) if len(stores) > 1 else ("",)

    def _source_name(self, source: str) -> str:
        """Return what explanations call a source of a mixture: of several stores `STORE/knn`."""
        kind, store = kind_of(source), self._names[store_of(source)]
        return f"{store}/{kind}" if store and kind != TEXT else kind

    def _suffix(self, tokens: Int32s, position: int) -> Suffix | None:
        """Look up the longest suffix of what stands before a position, if a mixture does: the longest in any store."""
        contexts = Contexts(tokens, np.zeros(1, np.int64), np.array([position]))
        found = self.memory.longest_suffix(contexts, 0) if self.memory is not None else None
        if found is None or self.memory is None:
            return None
        document = self.memory.each[found.store].store.document_of(found.place)[0]
        return Suffix(found.length, found.times, document, self._names[found.store])

    def _nearest(self, batch: ScoredBatch, row: int, count: int) -> list[tuple[float, Context]]:
        if batch.prediction is None or self.memory is None:
            return []
        shown = []
        for found in batch.prediction.nearest(row, count, self.memory.temperatures):
            context = self.memory.each[found.store].store.context_of(found.record, before=12)
            shown.append((found.distance, replace(context, store=self._names[found.store])))
        return shown

    @overload
    def generate(
        self, prompt: str | Conversation, *, chat: bool = ..., draft: bool = ..., **options: Unpack[GenerateOptions]
    ) -> str: ...
    @overload
    def generate(
        self, prompt: list[str], *, chat: bool = ..., draft: bool = ..., **options: Unpack[GenerateOptions]
    ) -> list[str]: ...
    def generate(
        self,
        prompt: str | Conversation | list[str],
        *,
        chat: bool = False,
        draft: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> str | list[str]:
        """Continue one prompt or several by transformers' own `generate`, on the mixture; return the new text(s).

        Args:
            prompt: A text, a conversation (messages with `role` and `content`), or a list of texts.
            chat: Put each text into the tokenizer's chat template, as a message of the user.
            draft: Let the store's text and what was read draft tokens, so that a pass of the model gives several. It
                changes the speed, and never what is written. Beams and batches that are sampled have no drafts.
            options: Those of transformers' `generate`. Assisted decoding (`prompt_lookup_num_tokens`,
                `assistant_model`) verifies its drafts under the mixture.
        """
        several = isinstance(prompt, list) and all(isinstance(one, str) for one in prompt)
        if not several and options.get("num_return_sequences", 1) > 1:
            raise OptionError("`num_return_sequences` asks for several texts; give the prompt as a list of one")
        prompts: Any = prompt if several else [prompt]
        found = self.generate_ids(prompts, chat=chat, draft=draft, **options)
        texts = [self.lm.tokenizer.decode(new, skip_special_tokens=True) for _, new in found]
        return texts if several else texts[0]

    def generate_ids(
        self,
        prompts: Sequence[str | Conversation],
        *,
        chat: bool = False,
        draft: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> list[tuple[list[int], list[int]]]:
        """Generate for several prompts and return, for each, the ids of prompt and continuation."""
        made = self.continuations(prompts, chat=chat, draft=draft, **options)
        return [(one.prompt, one.tokens) for one in made]

    def continuations(
        self,
        prompts: Sequence[str | Conversation],
        *,
        chat: bool = False,
        draft: bool = True,
        **options: Unpack[GenerateOptions],
    ) -> list[Continuation]:
        """Generate as `generate` does, and return all there is to say of each continuation."""
        rows = [self.prompt_ids(prompt, chat) for prompt in prompts]
        if not rows:
            raise OptionError("there is no prompt; give at least one")
        if not all(rows):
            raise OptionError("the prompt is empty and the tokenizer adds no BOS to begin with; give some text")
        return continue_rows(self.lm, self.memory, self.drafter if draft else None, rows, options)

    @cached_property
    def drafter(self) -> Drafter:
        """What drafts tokens for the model, and has learned how often they are accepted."""
        return Drafter.of(self.store, self.memory)

    def _document(self, text: str) -> Int32s:
        """Tokenise a text as a document of the store."""
        ids = self.lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray([*self.store.manifest.bos, *ids], np.int32)

    def prompt_ids(self, prompt: str | Conversation, chat: bool = False) -> list[int]:
        """Tokenise a prompt: a text as a document of the store, a conversation by the tokenizer's chat template."""
        tokenizer = self.lm.tokenizer
        if isinstance(prompt, str) and not chat:
            return list(self._document(prompt).tolist())
        if not getattr(tokenizer, "chat_template", None):
            raise OptionError(f"the tokenizer of {self.lm.name} has no chat template; leave out `chat`")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def _score_batches(self, ids: Int32s) -> Iterator[ScoredBatch]:
        """Score every token of a sequence but its first, batch by batch."""
        reading = self.store.reading()
        bounds = np.array([0, len(ids)])
        windows = plan_windows(bounds, reading.window, reading.stride)
        if not len(windows):
            raise OptionError(f"the text has {len(ids)} token, expected at least two: a context and what follows it")
        return Scorer(self.lm, self.memory).score(ids, bounds, windows)
