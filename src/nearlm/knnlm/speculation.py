"""Generation by drafts: one pass over a draft, and then a decision for each of its positions as if there were none.

This stands in for transformers' own loop over tokens (`custom_generate`), which has prepared everything: the cache,
logits processors and stopping criteria. Every token is chosen from the model's logits as that loop would choose it,
with the same calls in the same order (also of the random generator), so that neither drafts nor their lengths change
what is written. A draft only lets one pass of the model serve several of these choices, for as long as what is chosen
is what was drafted.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from nearlm.base import Doubles, Int32s
from nearlm.knnlm.draft_length import Pace
from nearlm.knnlm.draft_votes import AHEAD, no_chain
from nearlm.knnlm.drafting import Drafter
from nearlm.mixing import Prediction
from nearlm.search import Neighbors

_OF_THE_LOOP = {"past_key_values", "attention_mask", "position_ids", "cache_position", "logits_to_keep", "use_cache"}


class Pass(NamedTuple):
    """A pass of the model: how many tokens were drafted for it, and how many were written after it."""

    drafted: int
    written: int


@dataclass
class Speculation:
    """Continues one sequence; afterwards it tells which tokens were drafted, and what each pass gave.

    `seconds` are those of passes over one token, two, three, …, by default all alike; `watch` is to be told what the
    memory says in each pass.
    """

    drafter: Drafter
    seconds: Doubles = field(default_factory=lambda: np.ones(AHEAD + 1))
    streamer: Any = None
    passes: list[Pass] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    _said: Prediction | None = None

    def watch(self, prediction: Prediction) -> None:
        """Take note of what the memory says in a pass."""
        self._said = prediction

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> Any:
        """Write on, as transformers' `_sample` does; what cannot be drafted for is left to it."""
        cache = inputs.get("past_key_values")
        masked = len(input_ids) > 1 or inputs.get("attention_mask") is not None
        if masked or generation_config.return_dict_in_generate or not can_crop(model, cache):
            prepared = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
            own = {"generation_config": generation_config, "streamer": self.streamer}
            return GenerationMixin._sample(model, input_ids, **prepared, **own, **inputs)
        extra = {name: value for name, value in inputs.items() if name not in _OF_THE_LOOP}
        reader = _Reader(model, cache, extra)
        writer = _Writer(input_ids, logits_processor, stopping_criteria, generation_config, self.streamer)
        self._write(reader, writer)
        return writer.ids

    def _write(self, reader: "_Reader", writer: "_Writer") -> None:
        """Draft, read, choose, until a stopping criterion says so."""
        pace = Pace(self.seconds)
        chain = no_chain()
        length = 0
        while True:
            draft = chain.tokens[:length]
            logits = reader.read(writer.ids, draft)
            written = writer.choose(logits, draft)
            right = len(written) - 1
            reader.forget(length - right)
            self.passes.append(Pass(length, len(written)))
            self.drafted += [True] * right + [right < length and int(written[right]) == int(draft[right])]
            if writer.ended:
                break
            self.drafter.acceptance.learn(chain, written)
            pace.count(length, len(written))
            chain = self.drafter.chain(writer.text, *self._near(length - right))
            length = min(pace.best_length(self.drafter.acceptance.rates(chain)), writer.room)
        if self.streamer is not None:
            self.streamer.end()

    def _near(self, wrong: int) -> tuple[Neighbors | None, int]:
        """Return the neighbours of the position before those of the draft that turned out wrong, and their row."""
        said = self._said
        row = -1 if said is None else len(said.retrieved) - 1 - wrong
        if said is None or row < 0 or said.near is None or not said.retrieved[row]:
            return None, 0
        return said.near, int(said.retrieved[:row].sum())


class _Reader:
    """Runs a model over what it has not read yet."""

    def __init__(self, model: Any, cache: Any, extra: dict[str, Any]):
        self._model = model
        self._cache = cache
        self._extra = extra
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()

    def read(self, ids: Tensor, draft: Int32s) -> Tensor:
        """Return the logits after the last of `ids` and after each drafted token, [draft + 1, vocabulary]."""
        known = self._cache.get_seq_length()
        new = torch.cat([ids[:, known:], torch.from_numpy(draft.astype(np.int64))[None].to(ids.device)], 1)
        kept = {"logits_to_keep": len(draft) + 1} if self._keeps else {}
        out = self._model(input_ids=new, past_key_values=self._cache, use_cache=True, **kept, **self._extra)
        return out.logits[0, -len(draft) - 1 :]  # type: ignore[no-any-return]

    def forget(self, tokens: int) -> None:
        """Take the last tokens out of the cache; with none a sliding window still drops what it needs no more."""
        self._cache.crop(-tokens)


class _Writer:
    """Chooses tokens as transformers' `_sample` does, one after another, and knows when to stop."""

    def __init__(self, ids: Tensor, processor: Any, stopping: Any, config: Any, streamer: Any):
        self.ids = ids
        self.ended = False
        self._processor = processor
        self._stopping = stopping
        self._sample = config.do_sample
        self._most = config.max_length
        self._streamer = streamer
        self._text = np.empty(max(self._most, ids.shape[1]) + 1, np.int32)
        self._text[: ids.shape[1]] = ids[0].cpu().numpy()

    @property
    def text(self) -> Int32s:
        """All tokens so far."""
        return self._text[: self.ids.shape[1]]

    @property
    def room(self) -> int:
        """How long a draft may be: every pass writes a token beyond it."""
        return max(0, int(self._most) - self.ids.shape[1] - 1)

    def choose(self, logits: Tensor, draft: Int32s) -> Int32s:
        """Choose a token after each of those that were read, as long as these are what was chosen before."""
        begin = self.ids.shape[1]
        for place in range(len(draft) + 1):
            token = self._add(logits[place : place + 1])
            if self.ended or place == len(draft) or token != draft[place]:
                break
        return self.text[begin:]

    def _add(self, logits: Tensor) -> int:
        """Choose the next token from the logits, [1, vocabulary]."""
        scores = self._processor(self.ids, logits.to(copy=True, dtype=torch.float32, device=self.ids.device))
        chosen = _draw(scores) if self._sample else scores.argmax(-1)
        token = int(chosen)
        self._text[self.ids.shape[1]] = token
        self.ids = torch.cat([self.ids, chosen[:, None]], 1)
        if self._streamer is not None:
            self._streamer.put(chosen.cpu())
        self.ended = bool(self._stopping(self.ids, None).all())
        return token


def _draw(scores: Tensor) -> Tensor:
    return torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)


def can_crop(model: Any, cache: Any) -> bool:
    """Tell whether tokens can be taken out of a model's cache again, exactly."""
    if getattr(model, "_is_stateful", False) or type(cache) is not DynamicCache:
        return False
    kinds = {type(layer) for layer in cache.layers}
    recording = hasattr(cache, "activate_past_recording")  # without it a sliding window has lost what was before
    return kinds <= ({DynamicLayer, DynamicSlidingWindowLayer} if recording else {DynamicLayer})
