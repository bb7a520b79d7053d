"""`KNNLM`: an LM with a memory; score text, explain tokens, generate."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearlm.base import Int32s, OptionError
from nearlm.knnlm.attachment import attach
from nearlm.knnlm.scoring import ScoredBatch, Scorer, TokenScores
from nearlm.mixing import Gate, Memory
from nearlm.model import ModelSpec
from nearlm.model.lm import LM
from nearlm.search import Retriever
from nearlm.store import Context, Datastore, SearchSettings
from nearlm.text import plan_windows

_REFUSED = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


@dataclass(frozen=True)
class Explanation:
    """One token of a text: what LM and memory thought of it, and the nearest contexts (text and token) behind that."""

    token: str
    p_lm: float
    p_knn: float
    p: float
    lam: float
    nearest: list[tuple[float, Context]]


class KNNLM:
    """An LM with a memory: p = λ p_kNN + (1 - λ) p_LM, with one λ or what the gate of a gate says."""

    def __init__(self, lm: LM, store: Datastore, memory: Memory | None):
        self.lm = lm
        self.store = store
        self.memory = memory
        if memory is not None:
            memory.check_model(lm.fingerprint())

    @classmethod
    def load(
        cls,
        store: str | Path | Datastore,
        model: str | ModelSpec | LM | None = None,
        settings: SearchSettings = SearchSettings(),
        *,
        knn: bool = True,
    ) -> "KNNLM":
        """Load a store's model, index and tuned settings; what is given here goes before what was tuned.

        Without `knn` it is the model alone.
        """
        opened = Datastore.open(store)
        if not knn and settings.gate is not None:
            raise OptionError("a gate chooses λ itself; leave out `lam` and `knn=False`, or `gate`")
        memory = Memory.open(opened, settings) if knn else None
        return cls(load_lm(opened, model), opened, memory)

    @property
    def retriever(self) -> Retriever | None:
        """What is searched, if there is a memory."""
        return self.memory.retriever if self.memory is not None else None

    @property
    def gate(self) -> Gate | None:
        """What decides which tokens skip retrieval, if anything does."""
        return self.memory.gate if self.memory is not None else None

    def score(self, text: str) -> TokenScores:
        """Score one text, from its second token on (the first after BOS, if the tokenizer has one)."""
        parts = [(batch.positions, batch.scores) for batch in self._score_batches(self._document(text))]
        order = np.argsort(np.concatenate([positions for positions, _ in parts]))
        names = [field.name for field in fields(TokenScores)]
        columns = (np.concatenate([getattr(scores, name) for _, scores in parts]) for name in names)
        return TokenScores(*(column[order] for column in columns))

    def explain(self, ids: Sequence[int], first: int = 1, nearest: int = 3) -> Iterator[Explanation]:
        """Explain the tokens of a sequence from position `first` on: what LM and memory thought of each, and why."""
        explained: dict[int, Explanation] = {}
        for batch in self._score_batches(np.asarray(ids, np.int32)):
            wanted = np.flatnonzero(batch.positions >= max(first, 1))
            explained |= {int(batch.positions[row]): self._explanation(batch, int(row), nearest) for row in wanted}
        yield from (explained[position] for position in sorted(explained))

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

    def _nearest(self, batch: ScoredBatch, row: int, count: int) -> list[tuple[float, Context]]:
        if batch.near is None or not batch.scores.retrieved[row]:
            return []
        found = int(batch.scores.retrieved[:row].sum())  # neighbours are those of the tokens that retrieved
        distances = batch.near.distances[found]
        closest = np.argsort(distances, kind="stable")[:count]
        pairs = zip(distances[closest], batch.near.ids[found, closest], strict=True)
        return [(float(d), self.store.context_of(int(i), before=12)) for d, i in pairs if i >= 0]

    def generate(
        self, prompt: str | Sequence[str] | Sequence[dict[str, str]], *, chat: bool = False, **options: Any
    ) -> Any:
        """Continue one prompt or several by transformers' own `generate`, on the mixture; return the new text(s).

        `options` are those of `generate` (`max_new_tokens`, `do_sample`, `num_beams`, `streamer` …).
        """
        single = isinstance(prompt, str) or chat
        ids = self.generate_ids([prompt] if single else list(prompt), chat=chat, **options)
        texts = [self.lm.tokenizer.decode(new, skip_special_tokens=True) for _, new in ids]
        return texts[0] if single else texts

    def generate_ids(
        self, prompts: Sequence[Any], *, chat: bool = False, **options: Any
    ) -> list[tuple[list[int], list[int]]]:
        """Generate for several prompts and return, for each, the ids of prompt and continuation."""
        refused = [name for name in _REFUSED if options.get(name) is not None]
        if refused:
            why = "drafts tokens without the memory"
            raise OptionError(f"{refused[0]} {why}; leave it out (assisted decoding is not supported)")
        rows = [self._chat(prompt) if chat else self._document(prompt).tolist() for prompt in prompts]
        if not all(rows):
            raise OptionError("the prompt is empty and the tokenizer has no BOS to begin with; give some text")
        ids, mask = _left_padded(rows, self._pad_id)
        inputs = {"input_ids": ids.to(self.lm.device), "attention_mask": mask.to(self.lm.device)}
        model: Any = self.lm.model
        with attach(self.lm, self.memory):
            out = model.generate(**inputs, **{"pad_token_id": self._pad_id, **options})
        out = getattr(out, "sequences", out).tolist()
        per = len(out) // len(rows)
        return [(rows[i // per], _until_end(row[ids.shape[1] :], self._pad_id)) for i, row in enumerate(out)]

    @property
    def _pad_id(self) -> int:
        tokenizer = self.lm.tokenizer
        return int(next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0))

    def _document(self, text: str) -> Int32s:
        tokenizer = self.lm.tokenizer
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        return np.asarray(bos + tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], np.int32)

    def _chat(self, prompt: str | list[dict[str, str]]) -> list[int]:
        tokenizer = self.lm.tokenizer
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


def load_lm(store: Datastore, model: str | ModelSpec | LM | None = None) -> LM:
    """Load the model of a store, or another that must be the same, and check that it fits."""
    if not isinstance(model, LM):
        model = LM.load(store.model_spec() if model is None else model, key_tap=store.manifest.key_tap)
    warning = store.check_model(model.fingerprint(), model.probe(), model.tokenizer_fingerprint(), model.name)
    if warning:
        warnings.warn(warning, stacklevel=2)
    return model


def _left_padded(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def _until_end(ids: list[int], pad: int) -> list[int]:
    """Cut the padding off the end of a finished row, leaving one end token."""
    while len(ids) > 1 and ids[-1] == pad and ids[-2] == pad:
        ids = ids[:-1]
    return ids
