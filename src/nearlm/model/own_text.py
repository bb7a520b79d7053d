"""Text that an LM writes by itself, drawn from its own distribution after nothing but what begins a text."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig

from nearlm.base import Int32s
from nearlm.model.lm import LM
from nearlm.model.passes import plain_turn

NOTHING = -1  # what stands behind a piece that has ended
_SEEDS = 1 << 63  # that torch takes


def write_pieces(lm: LM, pieces: int, length: int, seed: int, start: Sequence[int] = ()) -> Int32s:
    """Draw pieces of at most so many tokens, [pieces, length]; the same seed on the same machine, the same pieces.

    They come after `start`, by default `start_tokens`, which is not part of them. A piece that ends has its end token,
    and then `NOTHING`.
    """
    start = start or start_tokens(lm)
    ends = end_tokens(lm)
    first = torch.tensor(start, device=lm.device).expand(pieces, -1)
    devices = [lm.device] if lm.device.type == "cuda" else []
    drawn = GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=length,
        eos_token_id=list(ends) or None,
        pad_token_id=int(start[0]),
    )
    with plain_turn(lm.model), lm.packed(), _own_settings(lm.model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed % _SEEDS)
        made = lm.model.generate(first, attention_mask=torch.ones_like(first), generation_config=drawn)  # type: ignore[operator]
    out = np.full((pieces, length), NOTHING, np.int32)
    for row, tokens in zip(out, made[:, len(start) :].cpu().numpy(), strict=True):
        ended = np.flatnonzero(np.isin(tokens, ends))
        count = ended[0] + 1 if len(ended) else len(tokens)
        row[:count] = tokens[:count]
    return out


def can_write(lm: LM) -> bool:
    """Tell whether a model can write at all: some have a forward pass alone."""
    return callable(getattr(lm.model, "generate", None))


def start_tokens(lm: LM) -> tuple[int, ...]:
    """Return the token that stands before a text where nothing is put there: the one that ends the text before it."""
    known = (lm.tokenizer.eos_token_id, lm.tokenizer.bos_token_id, 0)
    return (next(int(one) for one in known if one is not None),)


def end_tokens(lm: LM) -> tuple[int, ...]:
    """Return the tokens that end the model's texts."""
    said = getattr(getattr(lm.model, "generation_config", None), "eos_token_id", None)
    known = said if isinstance(said, list) else [said]
    return tuple(sorted({int(one) for one in (*known, lm.tokenizer.eos_token_id) if one is not None}))


@contextlib.contextmanager
def _own_settings(model: nn.Module) -> Iterator[None]:
    """Take away what a model's authors advise for writing: penalties and limits would make another distribution."""
    below: Any = getattr(model, "get_base_model", None)  # of an adapter, which writes there too
    inner = below() if callable(below) else model
    advised = [(one, one.generation_config) for one in {id(one): one for one in (model, inner)}.values()]
    for one, _ in advised:
        one.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for one, own in advised:
            one.generation_config = own
