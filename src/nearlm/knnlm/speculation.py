"""Generation by drafts: one pass over a draft, and then a decision for each of its positions as if there were none.

This stands in for transformers' own loop over tokens (`custom_generate`), which has prepared everything: the cache,
logits processors and stopping criteria. Every token is chosen from the model's logits as that loop would choose it,
with the same calls in the same order (also of the random generator), so that neither drafts nor their lengths change
what is written. A draft only lets one pass of the model serve several of these choices, for as long as what is chosen
is what was drafted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.generation import logits_process, stopping_criteria

from nearlm.base import Doubles, Int32s
from nearlm.knnlm.draft_length import Pace
from nearlm.knnlm.draft_passes import Reader, can_crop
from nearlm.knnlm.draft_votes import AHEAD, Chain, no_chain
from nearlm.knnlm.drafting import Drafter
from nearlm.mixing import Prediction

_OF_THE_LOOP = {"past_key_values", "attention_mask", "position_ids", "cache_position", "logits_to_keep", "use_cache"}
_BY_ROW = {  # treats each row of a batch as if it were alone
    *(logits_process.InfNanRemoveLogitsProcessor, logits_process.NoBadWordsLogitsProcessor),
    *(logits_process.MinLengthLogitsProcessor, logits_process.MinNewTokensLengthLogitsProcessor),
    *(logits_process.NoRepeatNGramLogitsProcessor, logits_process.RepetitionPenaltyLogitsProcessor),
    *(logits_process.SuppressTokensLogitsProcessor, logits_process.SequenceBiasLogitsProcessor),
    *(stopping_criteria.MaxLengthCriteria, stopping_criteria.MaxTimeCriteria),
    *(stopping_criteria.EosTokenCriteria, stopping_criteria.StopStringCriteria),
}


class Pass(NamedTuple):
    """A pass of the model: how many tokens of a row were drafted for it, and how many were written after it."""

    drafted: int
    written: int


@dataclass
class Speculation:
    """Continues sequences; afterwards its rows tell which tokens were drafted, and what each pass gave.

    `seconds` are those of passes over one token, two, three, …, by default all alike; `watch` is to be told what the
    memory says in each pass.
    """

    drafter: Drafter
    seconds: Doubles = field(default_factory=lambda: np.ones(AHEAD + 1))
    streamer: Any = None
    rows: list["Row"] = field(default_factory=list)
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
        mask = inputs.get("attention_mask")
        several = len(input_ids) > 1
        possible = not generation_config.return_dict_in_generate and can_crop(model, cache, len(input_ids))
        if several:
            possible = possible and not generation_config.do_sample
            possible = possible and rows_are_alone(logits_processor, stopping_criteria)
            mask = torch.ones_like(input_ids) if mask is None else mask
        elif mask is not None:
            possible = False
        if not possible:
            prepared = {"logits_processor": logits_processor, "stopping_criteria": stopping_criteria}
            own = {"generation_config": generation_config, "streamer": self.streamer}
            return GenerationMixin._sample(model, input_ids, **prepared, **own, **inputs)
        extra = {name: value for name, value in inputs.items() if name not in _OF_THE_LOOP}
        begins = [0] if mask is None else mask.argmax(1).tolist()
        self.rows = [
            Row(ids[None], logits_processor, stopping_criteria, generation_config, self.streamer, begin)
            for ids, begin in zip(input_ids, begins, strict=True)
        ]
        self._write(Reader(model, cache, mask, extra))
        if self.streamer is not None:
            self.streamer.end()
        return _padded([row.ids for row in self.rows], generation_config.pad_token_id)

    def _write(self, reader: Reader) -> None:
        """Draft, read, choose, until a stopping criterion says so of every row."""
        running = self.rows
        pace = Pace(self.seconds, len(running))
        length = 0
        while True:
            drafts = [row.draft(length) for row in running]
            logits = reader.read([row.ids for row in running], drafts)
            for place, row in enumerate(running):
                row.go_on(logits[place], drafts[place])
                self.drafter.acceptance.learn(row.chain, row.latest)
            left = [place for place, row in enumerate(running) if not row.ended]
            if not left:
                return
            for place in left:
                near = self._near(place, len(running), logits.shape[1] - len(running[place].latest))
                running[place].chain = self.drafter.chain(running[place].text, *near)
            reader.keep(left, [len(running[place].latest) for place in left])
            pace.count(logits.shape[1], sum(len(row.latest) for row in running))
            if len(left) < len(running):
                running = [running[place] for place in left]
                pace = Pace(self.seconds, len(running))
            length = pace.best_length([self.drafter.acceptance.rates(row.chain) for row in running])

    def _near(self, place: int, rows: int, wrong: int) -> tuple[Any, ...]:
        """Return the neighbours of a row before what of its last columns turned out wrong, and where they stand.

        After that come its neighbours in other stores.
        """
        said = self._said
        if said is None:
            return None, 0
        each = len(said.retrieved) // rows
        at = (place + 1) * each - 1 - wrong
        if at < place * each or not said.retrieved[at]:
            return None, 0
        return said.near, int(said.retrieved[:at].sum()), *said.others


class Row:
    """One sequence: tokens are chosen for it as transformers' `_sample` does, one after another, until it ends.

    Its text begins after the padding.
    """

    def __init__(self, ids: Tensor, processor: Any, stopping: Any, config: Any, streamer: Any, begin: int = 0):
        self.ids = ids
        self.ended = False
        self.chain: Chain = no_chain()
        self.latest: Int32s = np.empty(0, np.int32)
        self.passes: list[Pass] = []
        self.drafted: list[bool] = []
        self._processor = processor
        self._stopping = stopping
        self._sample = config.do_sample
        self._most = config.max_length
        self._streamer = streamer
        self._begin = begin
        self._text = np.empty(max(self._most, ids.shape[1]) + 1, np.int32)
        self._text[: ids.shape[1]] = ids[0].cpu().numpy()

    @property
    def text(self) -> Int32s:
        """All tokens so far."""
        return self._text[self._begin : self.ids.shape[1]]

    def draft(self, length: int) -> Int32s:
        """Return so many tokens of the chain, if there is room for them: every pass writes a token beyond them."""
        room = max(0, int(self._most) - self.ids.shape[1] - 1)
        return self.chain.tokens[: min(length, room)]

    def go_on(self, logits: Tensor, draft: Int32s) -> None:
        """Choose a token after each of those that were read, as long as these are what was chosen before."""
        begin = self.ids.shape[1]
        right = 0
        while True:
            token = self._add(logits[right : right + 1])
            same = right < len(draft) and token == int(draft[right])
            self.drafted.append(same)
            if self.ended or not same:
                break
            right += 1
        self.latest = self._text[begin : self.ids.shape[1]]
        self.passes.append(Pass(len(draft), len(self.latest)))

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


def rows_are_alone(processors: Sequence[Any], criteria: Sequence[Any]) -> bool:
    """Tell whether rows of a batch can be written apart: nothing looks at several, and padding follows an end."""
    known = all(type(each) in _BY_ROW for each in (*processors, *criteria))
    return known and any(hasattr(each, "eos_token_id") for each in criteria)


def _padded(rows: Sequence[Tensor], pad: Any) -> Tensor:
    """Return rows as one batch, the shorter ones filled up at their ends."""
    width = max(row.shape[1] for row in rows)
    return torch.cat([nn.functional.pad(row, (0, width - row.shape[1]), value=pad or 0) for row in rows])


def _draw(scores: Tensor) -> Tensor:
    return torch.multinomial(scores.softmax(-1), num_samples=1).squeeze(1)
