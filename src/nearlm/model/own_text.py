"""Text that an LM writes by itself, drawn from its own distribution after nothing but the token that begins a text."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig

from nearlm.base import Int32s
from nearlm.model.lm import LM
from nearlm.model.passes import plain_turn

NOTHING = -1  # what stands behind a piece that has ended


def write_pieces(lm: LM, pieces: int, length: int, seed: int, begin: int | None = None) -> Int32s:
    """Draw pieces of at most so many tokens, [pieces, length]; the same seed on the same machine, the same pieces.

    They come after `begin`, by default the token that ends the model's texts, which is not part of them. A piece that
    ends has its end token, and then `NOTHING`.
    """
    tokenizer = lm.tokenizer
    start = next((one for one in (begin, tokenizer.eos_token_id, tokenizer.bos_token_id) if one is not None), 0)
    ends = _end_tokens(lm)
    first = torch.full((pieces, 1), int(start), device=lm.device)
    devices = [lm.device] if lm.device.type == "cuda" else []
    drawn = GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=length,
        eos_token_id=ends or None,
        pad_token_id=int(start),
    )
    with plain_turn(lm.model), lm.packed(), _own_settings(lm.model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        made = lm.model.generate(first, attention_mask=torch.ones_like(first), generation_config=drawn)  # type: ignore[operator]
    out = np.full((pieces, length), NOTHING, np.int32)
    for row, tokens in zip(out, made[:, 1:].cpu().numpy(), strict=True):
        ended = np.flatnonzero(np.isin(tokens, ends))
        count = ended[0] + 1 if len(ended) else len(tokens)
        row[:count] = tokens[:count]
    return out


def _end_tokens(lm: LM) -> list[int]:
    """Return the tokens that end the model's texts."""
    said = getattr(getattr(lm.model, "generation_config", None), "eos_token_id", None)
    known = said if isinstance(said, list) else [said]
    return sorted({int(one) for one in (*known, lm.tokenizer.eos_token_id) if one is not None})


@contextlib.contextmanager
def _own_settings(model: nn.Module) -> Iterator[None]:
    """Take away what a model's authors advise for writing: penalties and limits would make another distribution."""
    advised = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = advised
