"""Mix the memory into a model's own forward pass, so that everything built on its logits sees the mixture."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearlm.errors import ModelError
from nearlm.lm import LM
from nearlm.mix import log_p_knn_vocabulary
from nearlm.retrieve import Retriever
from nearlm.tap import captured

_SLICE_BYTES = 64 << 20


@contextlib.contextmanager
def attach(
    lm: LM,
    retriever: Retriever,
    *,
    lam: float,
    temperature: float = 1.0,
    k: int | None = None,
) -> Iterator[nn.Module]:
    """Let `lm.model` return log p_mix as its logits, and a loss computed from them, until the context ends.

    `generate`, pipelines, logits processors, beams and samplers then work on the mixture without knowing of it.
    """
    model: Any = lm.model
    own, original = "forward" in vars(model), model.forward
    if getattr(original, "_nearlm", False):
        raise ModelError(f"{lm.name} has a memory attached already; leave that context first")

    @functools.wraps(original)
    def forward(*args: Any, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any) -> Any:
        with captured(lm.tap, stop=False) as vectors:
            output = original(*args, **kwargs, return_dict=True)
        keys = vectors[0].reshape(len(output.logits), -1, lm.dim)
        keys = _kept(keys, output.logits, kwargs.get("logits_to_keep", 0))
        logits, loss = mixed_logits(output.logits, keys, retriever, lam, temperature, k), None
        if labels is not None:
            loss = model.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1])
        output = dataclasses.replace(output, loss=loss, logits=logits)
        return output if return_dict is not False else output.to_tuple()

    forward._nearlm = True  # type: ignore[attr-defined]
    model.forward = forward
    try:
        yield model
    finally:
        if own:
            model.forward = original
        else:
            del model.forward


def mixed_logits(
    logits: Tensor, keys: Tensor, retriever: Retriever, lam: float, temperature: float, k: int | None
) -> Tensor:
    """Return log(λ p_kNN + (1 - λ) p_LM) for logits [batch, positions, vocabulary] and their keys."""
    exact = logits.dtype if logits.dtype == torch.float64 else torch.float32
    flat = logits.reshape(-1, logits.shape[-1])
    queries = keys.detach().reshape(-1, keys.shape[-1]).float().cpu().numpy()
    out = torch.empty(flat.shape, dtype=exact, device=logits.device)
    rows = max(1, _SLICE_BYTES // (8 * flat.shape[-1]))
    for start in range(0, len(flat), rows):
        part = slice(start, start + rows)
        near = retriever.search(queries[part], k, ordered=False)
        log_lm = flat[part].to(exact).log_softmax(-1)
        knn = log_p_knn_vocabulary(near.distances, near.tokens, flat.shape[-1], temperature, near.weights)
        log_knn = torch.from_numpy(knn).to(logits.device, exact)
        empty = torch.from_numpy((near.tokens < 0).all(axis=1)).to(logits.device)
        log_knn[empty] = log_lm[empty]
        with np.errstate(divide="ignore"):
            log_lam, log_rest = float(np.log(lam)), float(np.log1p(-lam))
        out[part] = torch.logaddexp(log_knn + log_lam, log_lm + log_rest)
    return out.view(*logits.shape)


def _kept(keys: Tensor, logits: Tensor, kept: int | Tensor) -> Tensor:
    """Pick the keys of those positions whose logits the model returned."""
    if isinstance(kept, Tensor):
        return keys[:, kept]
    return keys[:, -logits.shape[1] :]
