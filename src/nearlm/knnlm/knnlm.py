"""`KNNLM`: an LM, a retriever and a mixing policy; score text, explain tokens, generate."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nearlm.base import OptionError, files
from nearlm.knnlm.attachment import attach, check_mixing
from nearlm.mixing import (
    NO_ADAPTOR,
    SCORE_BATCH_TOKENS,
    Adaptor,
    Gate,
    Reading,
    Tokens,
    found,
    last_tokens,
    log_p_knn,
    mix,
)
from nearlm.model import LM, ModelSpec
from nearlm.search import Neighbors, Retriever, index_folder
from nearlm.store import Context, Datastore
from nearlm.text import Batch, Ints, Windows, fill_batch, plan_batches, plan_windows

_REFUSED = ("assistant_model", "prompt_lookup_num_tokens", "assistant_early_exit")


@dataclass
class Timer:
    """Where the time of a run went, in seconds."""

    lm: float = 0.0
    adaptor: float = 0.0
    search: float = 0.0
    mixing: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @property
    def total(self) -> float:
        """Everything since the start."""
        return time.perf_counter() - self.started


@dataclass(frozen=True)
class TokenScores:
    """Per predicted token, in order: its id, log p of the LM, of the neighbours and of the mixture, λ, if it asked."""

    tokens: npt.NDArray[np.int32]
    log_lm: npt.NDArray[np.float64]
    log_knn: npt.NDArray[np.float64]
    logp: npt.NDArray[np.float64]
    lam: npt.NDArray[np.float64]
    asked: npt.NDArray[np.bool_]


class Predicted(NamedTuple):
    """What the LM says of a batch's targets: log p, the queries, and its confidence and entropy if an adaptor asks."""

    log_lm: npt.NDArray[np.float64]
    queries: npt.NDArray[np.float32]
    conf: npt.NDArray[np.float32] | None
    ent: npt.NDArray[np.float32] | None


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
    """An LM with a memory: p = λ p_kNN + (1 - λ) p_LM, with one λ or what the gate of an adaptor says."""

    def __init__(
        self,
        lm: LM,
        store: Datastore,
        retriever: Retriever | None,
        *,
        lam: float = 0.0,
        temperature: float = 1.0,
        k: int | None = None,
        gate: Gate | None = None,
    ):
        check_mixing(lam, temperature, k)
        self.lm, self.store, self.retriever = lm, store, retriever
        self.lam, self.temperature, self.k = (lam if retriever else 0.0), temperature, k
        self.gate = gate if retriever else None
        if self.gate is not None and retriever is not None:
            used = min(k or retriever.default_k(), retriever.max_k)
            self.gate.adaptor.check(retriever, temperature, used, lm.fingerprint())

    @classmethod
    def load(
        cls,
        store: str | Path | Datastore,
        model: str | ModelSpec | LM | None = None,
        *,
        index: str | None = None,
        lam: float | None = None,
        temperature: float | None = None,
        k: int | None = None,
        nprobe: int | None = None,
        distances: str | None = None,
        knn: bool = True,
        adaptor: str | None = None,
        skip: float | str | None = None,
        budget: float | None = None,
    ) -> "KNNLM":
        """Load a store's model, index and tuned settings; what is given here goes before what was tuned.

        With an adaptor λ comes from it, and the share `skip` of the tokens (`auto`: as many as a perplexity `budget`
        allows) does not ask the memory. Index, adaptor and share are the store's defaults if nothing is said of a
        search; adaptor `none` stands for one λ.
        """
        opened = store if isinstance(store, Datastore) else Datastore.open(store)
        defaults = opened.defaults
        given = [value for value in (index, lam, temperature, k, nprobe, distances) if value is not None]
        if adaptor is None and knn and not given:
            adaptor = defaults["adaptor"]
            skip = defaults["skip"] if adaptor is not None and skip is None and budget is None else skip
        adaptor, index = (None if adaptor == NO_ADAPTOR else adaptor), index or defaults["index"]
        if adaptor is None and (skip is not None or budget is not None):
            raise OptionError("--skip and --budget need an adaptor; name it with --adaptor")
        if adaptor is not None and (lam is not None or not knn):
            raise OptionError("an adaptor chooses λ itself; leave out --lam and --no-knn, or --adaptor")
        gate = None
        if adaptor is not None:
            gate = Adaptor.load(opened, adaptor).gate(0.0 if skip is None else skip, budget)
        lm = load_lm(opened, model)
        if not knn:
            return cls(lm, opened, None, lam=0.0)
        path = index_folder(opened, index) / "settings.json"
        tuned = files.read_stamped(path) if path.exists() else {}
        if gate is not None and gate.adaptor.settings.index == index:
            tuned = {**asdict(gate.adaptor.settings), "lam": gate.adaptor.lam}
        retriever = Retriever(
            opened,
            index,
            nprobe=nprobe if nprobe is not None else tuned.get("nprobe"),
            distances=distances or tuned.get("distances", "index"),
        )
        return cls(
            lm,
            opened,
            retriever,
            lam=lam if lam is not None else tuned.get("lam", 0.25),
            temperature=temperature if temperature is not None else tuned.get("temperature", 1.0),
            k=k if k is not None else tuned.get("k"),
            gate=gate,
        )

    def score_batch(self, batch: Batch, contexts: Tokens | None, timer: Timer) -> tuple[TokenScores, Neighbors | None]:
        """Score one batch of windows and note where the time went; `contexts` are those of `contexts`."""
        return self.remember(batch, contexts, self.predict(batch, timer), timer)

    def contexts(self, tokens: npt.NDArray[np.int32], bounds: Ints, windows: Windows) -> Tokens | None:
        """Return what the adaptor wants to know of the tokens before the targets of some windows, if anything."""
        if self.gate is None or not self.gate.needs_contexts:
            return None
        return last_tokens(tokens, bounds, windows.target_positions)

    def predict(self, batch: Batch, timer: Timer) -> Predicted:
        """Run the LM over a batch."""
        started = time.perf_counter()
        scores = self.lm.score(batch, statistics=self.gate is not None and self.gate.needs_statistics)
        conf, ent = (None if value is None else value.float().cpu().numpy() for value in (scores.conf, scores.ent))
        predicted = Predicted(scores.logp.double().cpu().numpy(), scores.keys.float().cpu().numpy(), conf, ent)
        timer.lm += time.perf_counter() - started
        return predicted

    def remember(
        self, batch: Batch, contexts: Tokens | None, predicted: Predicted, timer: Timer
    ) -> tuple[TokenScores, Neighbors | None]:
        """Search the memory for the tokens that ask, and mix what it says with what the LM said.

        The neighbours are those of the tokens that ask.
        """
        log_lm, count = predicted.log_lm, len(predicted.log_lm)
        started = time.perf_counter()
        lam, asked = np.full(count, self.lam), np.full(count, self.retriever is not None)
        if self.gate is not None:
            lam = self.gate.weights(predicted.queries, predicted.conf, predicted.ent, contexts)
            asked = lam > 0
            timer.adaptor += time.perf_counter() - started
        log_knn, logp, near = np.full(count, -np.inf), log_lm, None
        if self.retriever is not None and asked.any():
            started = time.perf_counter()
            near = self.retriever.search(predicted.queries[asked], self.k, ordered=False)
            searched = time.perf_counter()
            ours = log_p_knn(near.distances, near.tokens, batch.targets[asked], self.temperature, near.weights)
            log_knn[asked], logp = ours, log_lm.copy()
            logp[asked] = mix(log_lm[asked], found(ours, log_lm[asked], near.tokens), lam[asked])
            timer.search += searched - started
            timer.mixing += time.perf_counter() - searched
        return TokenScores(batch.targets, log_lm, log_knn, logp, lam, asked), near

    def score(self, text: str) -> TokenScores:
        """Score one text, from its second token on (the first after BOS, if the tokenizer has one)."""
        ids = self._document(text)
        return self._score_ids(ids)[0]

    def explain(self, ids: Sequence[int], first: int = 1, nearest: int = 3) -> Iterator[Explanation]:
        """Explain the tokens of a sequence from position `first` on: what LM and memory thought of each, and why."""
        scores, neighbors = self._score_ids(np.asarray(ids, np.int32))
        for row in range(max(first, 1) - 1, len(scores.tokens)):
            yield Explanation(
                token=self.lm.tokenizer.decode([int(scores.tokens[row])]),
                p_lm=float(np.exp(scores.log_lm[row])),
                p_knn=float(np.exp(scores.log_knn[row])),
                p=float(np.exp(scores.logp[row])),
                lam=float(scores.lam[row]),
                nearest=self._contexts(neighbors, row, nearest),
            )

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
            raise OptionError(
                f"{refused[0]} drafts tokens without the memory; leave it out (assisted decoding is not supported)"
            )
        rows = [self._chat(prompt) if chat else self._document(prompt).tolist() for prompt in prompts]
        if not all(rows):
            raise OptionError("the prompt is empty and the tokenizer has no BOS to begin with; give some text")
        ids, mask = _left_padded(rows, self._pad_id)
        inputs = {"input_ids": ids.to(self.lm.device), "attention_mask": mask.to(self.lm.device)}
        options = {"pad_token_id": self._pad_id, **options}
        model: Any = self.lm.model
        if self.retriever is None:
            out = model.generate(**inputs, **options)
        else:
            policy: dict[str, Any] = {"lam": self.lam} if self.gate is None else {"gate": self.gate}
            with attach(self.lm, self.retriever, temperature=self.temperature, k=self.k, **policy):
                out = model.generate(**inputs, **options)
        out = getattr(out, "sequences", out).tolist()
        per = len(out) // len(rows)
        return [(rows[i // per], _until_end(row[ids.shape[1] :], self._pad_id)) for i, row in enumerate(out)]

    @property
    def _pad_id(self) -> int:
        tokenizer = self.lm.tokenizer
        return int(next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0))

    def _document(self, text: str) -> npt.NDArray[np.int32]:
        tokenizer = self.lm.tokenizer
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        return np.asarray(bos + tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], np.int32)

    def _chat(self, prompt: str | list[dict[str, str]]) -> list[int]:
        tokenizer = self.lm.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise OptionError(f"the tokenizer of {self.lm.name} has no chat template; leave out --chat")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    def _score_ids(self, ids: npt.NDArray[np.int32]) -> tuple[TokenScores, Neighbors | None]:
        """Score every token of a sequence but its first, in order."""
        reading = self.reading()
        windows = plan_windows(np.array([0, len(ids)]), reading.window, reading.stride)
        if not len(windows):
            raise OptionError(f"the text has {len(ids)} token, expected at least two: a context and what follows it")
        order, parts, near, bounds = [], [], [], np.array([0, len(ids)])
        for rows in plan_batches(windows, SCORE_BATCH_TOKENS):
            contexts = self.contexts(ids, bounds, windows[rows])
            scores, neighbors = self.score_batch(fill_batch(ids, windows[rows]), contexts, Timer())
            order.append(windows[rows].target_positions)
            parts.append(scores)
            near.append(neighbors)
        rank = np.argsort(np.concatenate(order))
        scores = TokenScores(*(_joined(parts, column.name, rank) for column in fields(TokenScores)))
        if all(part is None for part in near):
            return scores, None
        width = next(part.ids.shape[1] for part in near if part is not None)
        weighted = self.store.weighted
        spread = [_spread(part, one.asked, width, weighted) for part, one in zip(near, parts, strict=True)]
        return scores, Neighbors(*(_joined(spread, name, rank) for name in Neighbors._fields))

    def reading(self, stride: int | None = None) -> Reading:
        """Return how this model cuts up text: framed and windowed as its store was; the stride is the window."""
        return Reading.of_store(self.store.manifest, stride)

    def _contexts(self, neighbors: Neighbors | None, row: int, count: int) -> list[tuple[float, Context]]:
        if neighbors is None:
            return []
        nearest = np.argsort(neighbors.distances[row], kind="stable")[:count]
        pairs = zip(neighbors.distances[row, nearest], neighbors.ids[row, nearest], strict=True)
        return [(float(d), self.store.context_of(int(i), before=12)) for d, i in pairs if i >= 0]


def load_lm(store: Datastore, model: str | ModelSpec | LM | None = None) -> LM:
    """Load the model of a store, or another that must be the same, and check that it fits."""
    if not isinstance(model, LM):
        spec = ModelSpec(**store.model_options()) if model is None else model
        model = LM.load(spec, key_tap=store.manifest["key_tap"])
    warning = store.check_model(model.fingerprint(), model.probe(), model.tokenizer_fingerprint(), model.name)
    if warning:
        import warnings

        warnings.warn(warning, stacklevel=2)
    return model


def _joined(parts: Sequence[Any], name: str, rank: npt.NDArray[np.int64]) -> Any:
    columns = [getattr(part, name) for part in parts]
    return None if columns[0] is None else np.concatenate(columns)[rank]


def _spread(near: Neighbors | None, asked: npt.NDArray[np.bool_], width: int, weighted: bool) -> Neighbors:
    """Give the tokens that did not ask a row without neighbours."""
    rows = len(asked)
    distances, tokens = np.full((rows, width), np.inf, np.float32), np.full((rows, width), -1, np.int32)
    ids, weights = np.full((rows, width), -1, np.int64), np.zeros((rows, width), np.int32) if weighted else None
    if near is not None:
        distances[asked], tokens[asked], ids[asked] = near.distances, near.tokens, near.ids
    if weights is not None and near is not None and near.weights is not None:
        weights[asked] = near.weights
    return Neighbors(distances, tokens, weights, ids)


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
