"""Continuing prompts: transformers' own `generate` on the mixture, with drafts where it writes one token at a time."""

import copy
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteriaList, StopStringCriteria

from nearlm.knnlm.attachment import Attachment
from nearlm.knnlm.draft_votes import AHEAD
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.pass_costs import pass_costs
from nearlm.knnlm.speculation import Pass, Speculation
from nearlm.mixing import Memory
from nearlm.model.lm import LM
from nearlm.model.passes import turn

_ONE_BY_ONE = ("greedy_search", "sample")  # ways of generating that choose one token after another
_MOST_ROWS = 16  # that are drafted for: more of them make full use of a pass without drafts


@dataclass(frozen=True, repr=False)
class Continuation:
    """What was written after a prompt, which of it was drafted, the model's passes, and the seconds of it all.

    Rows that are written together share passes and seconds.
    """

    prompt: list[int]
    tokens: list[int]
    drafted: list[bool]
    passes: list[Pass]
    seconds: float

    @property
    def tokens_per_pass(self) -> float:
        """How many tokens a pass of the model gave."""
        return len(self.tokens) / max(len(self.passes), 1)

    @property
    def tokens_per_second(self) -> float:
        """How fast it was written, the reading of the prompt included."""
        return len(self.tokens) / max(self.seconds, 1e-9)

    def __repr__(self) -> str:
        return (
            f"Continuation({len(self.tokens)} tokens at {self.tokens_per_second:.1f}/s, "
            f"{self.tokens_per_pass:.2f} per pass, {sum(self.drafted)} drafted)"
        )


def continue_rows(
    lm: LM, memory: Memory | None, drafter: Drafter | None, rows: list[list[int]], options: Mapping[str, Any]
) -> list[Continuation]:
    """Continue rows of tokens, all of them together; each has its own drafts, if there is a drafter."""
    ids, mask = _left_padded(rows, pad_id(lm))
    inputs = {"input_ids": ids.to(lm.device), "attention_mask": mask.to(lm.device), "pad_token_id": pad_id(lm)}
    inputs |= {"tokenizer": lm.tokenizer}  # stop strings need it
    model: Any = lm.model
    speculation = None
    if drafter is not None and len(rows) <= _MOST_ROWS and _one_by_one(model, options):
        speculation = Speculation(drafter, streamer=options.get("streamer"))
    watch = None if speculation is None else speculation.watch
    with turn(model), lm.packed(), nullcontext() if memory is None else Attachment(lm, memory, watch):
        if speculation is not None:
            speculation.seconds = pass_costs(lm, memory, len(rows)).by_tokens(len(rows) * (AHEAD + 1))
            options = {**_with_stop_strings(lm, options), "custom_generate": speculation}
        started = time.perf_counter()
        out = model.generate(**{**inputs, **options})
        seconds = time.perf_counter() - started
    out = getattr(out, "sequences", out).tolist()
    per = len(out) // len(rows)
    made = [until_end(row[ids.shape[1] :], pad_id(lm)) for row in out]
    if speculation is not None and speculation.rows:
        written = zip(rows, made, speculation.rows, strict=True)
        return [Continuation(row, new, each.drafted[: len(new)], each.passes, seconds) for row, new, each in written]
    passes = [Pass(0, 1)] * max(map(len, made))
    return [Continuation(rows[i // per], new, [False] * len(new), passes, seconds) for i, new in enumerate(made)]


def pad_id(lm: LM) -> int:
    """Return the token that fills rows up."""
    tokenizer = lm.tokenizer
    return int(next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0))


def until_end(ids: list[int], pad: int) -> list[int]:
    """Cut the padding off the end of a finished row, leaving one end token."""
    while len(ids) > 1 and ids[-1] == pad and ids[-2] == pad:
        ids = ids[:-1]
    return ids


def _one_by_one(model: Any, options: Mapping[str, Any]) -> bool:
    """Tell whether options of `generate` ask for one sequence, written token by token with a cache."""
    config = copy.deepcopy(_config(model, options))
    config.update(**{name: value for name, value in options.items() if hasattr(config, name)})
    mode = config.get_generation_mode(options.get("assistant_model"))
    several = (config.num_return_sequences or 1) > 1
    special = options.get("custom_generate") or options.get("negative_prompt_ids") is not None
    special = special or config.prefill_chunk_size is not None
    return mode.value in _ONE_BY_ONE and not several and not special and config.use_cache is not False


def _config(model: Any, options: Mapping[str, Any]) -> Any:
    return options.get("generation_config") or model.generation_config


def _with_stop_strings(lm: LM, options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn stop strings into the criterion that they stand for: a custom loop is not given the tokenizer for it."""
    config = _config(lm.model, options)
    strings = options.get("stop_strings") or config.stop_strings
    if not strings:
        return dict(options)
    config = copy.deepcopy(config)
    config.stop_strings = None
    criterion = StopStringCriteria(lm.tokenizer, strings)
    criteria = StoppingCriteriaList([*(options.get("stopping_criteria") or ()), criterion])
    rest = {name: value for name, value in options.items() if name != "stop_strings"}
    return {**rest, "generation_config": config, "stopping_criteria": criteria}


def _left_padded(rows: list[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
