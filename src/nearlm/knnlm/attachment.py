"""Mix the memory into a model's own forward pass, so that everything built on its logits sees the mixture."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearlm.base import ModelError
from nearlm.knnlm.history import as_tokens, contexts_of, keep_history, read_history
from nearlm.mixing import Memory, Tokens, log_weights, mix_logs
from nearlm.model.lm import LM, confidence_and_entropy
from nearlm.model.tap import captured

_SLICE_BYTES = 64 << 20


@contextlib.contextmanager
def attach(lm: LM, memory: Memory | None) -> Iterator[nn.Module]:
    """Let `lm.model` return log p_mix as its logits, and a loss computed from them, until the context ends.

    `generate`, pipelines, logits processors, beams and samplers then work on the mixture without knowing of it.
    Without a memory the model stays as it is.
    """
    model: Any = lm.model
    if memory is None:
        yield model
        return
    mixer = _mixer(lm, memory)
    gate = memory.gate
    own = "forward" in vars(model)
    original = model.forward
    if getattr(original, "_nearlm", False):
        raise ModelError(f"{lm.name} has a memory attached already; leave that context first")

    @functools.wraps(original)
    def forward(*args: Any, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any) -> Any:
        history = None
        if gate is not None and gate.needs_contexts:
            history = read_history(kwargs.get("input_ids", args[0] if args else None), kwargs)
        with captured(lm.tap, stop=False) as vectors:
            output = original(*args, **kwargs, return_dict=True)
        keys = vectors[0].reshape(len(output.logits), -1, lm.dim)
        kept = kwargs.get("logits_to_keep", 0)
        contexts = None
        if history is not None:
            keep_history(output, history)
            contexts = _kept(contexts_of(history, keys.shape[1]), output.logits, kept)
        logits = mixer(output.logits, _kept(keys, output.logits, kept), contexts)
        loss = None
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


def _mixer(lm: LM, memory: Memory) -> "Mixer":
    """Refuse a memory of another model, and return what mixes it in."""
    fingerprint = lm.fingerprint()
    store = memory.retriever.store
    made_by = store.manifest.model
    if fingerprint != made_by.fingerprint:
        raise ModelError(f"{store.path} was built with {made_by.name}, {lm.name} is another architecture or size")
    memory.check_model(fingerprint)
    return Mixer(memory)


@dataclasses.dataclass(frozen=True)
class Mixer:
    """Turns logits and keys into log p_mix, with one λ or what a gate says; where λ is 0 nothing is searched."""

    memory: Memory

    def __call__(self, logits: Tensor, keys: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Return log(λ p_kNN + (1 - λ) p_LM) for logits [batch, positions, vocabulary], their keys and last tokens."""
        exact = logits.dtype if logits.dtype == torch.float64 else torch.float32
        flat = logits.reshape(-1, logits.shape[-1])
        queries = keys.detach().reshape(-1, keys.shape[-1]).float().cpu().numpy()
        tokens = None if contexts is None else as_tokens(contexts)
        out = torch.empty(flat.shape, dtype=exact, device=logits.device)
        rows = max(1, _SLICE_BYTES // (8 * flat.shape[-1]))
        for start in range(0, len(flat), rows):
            part = slice(start, start + rows)
            log_lm = flat[part].to(exact).log_softmax(-1)
            lam = self._weights(log_lm, queries[part], None if tokens is None else tokens[part])
            out[part] = log_lm
            asked = np.flatnonzero(lam)
            if len(asked):
                picked = torch.from_numpy(asked).to(logits.device)
                out[start + picked] = self._mixed(log_lm[picked], queries[part][asked], lam[asked])
        return out.view(*logits.shape)

    def _weights(
        self, log_lm: Tensor, queries: npt.NDArray[np.float32], contexts: Tokens | None
    ) -> npt.NDArray[np.float64]:
        gate = self.memory.gate
        if gate is None:
            return np.full(len(queries), self.memory.lam)
        conf = ent = None
        if gate.needs_statistics:
            measured = confidence_and_entropy(log_lm.detach())
            conf, ent = (value.float().cpu().numpy() for value in measured[1:])
        return gate.weights(queries, conf, ent, contexts)

    def _mixed(self, log_lm: Tensor, queries: npt.NDArray[np.float32], lam: npt.NDArray[np.float64]) -> Tensor:
        near = self.memory.search(queries)
        knn = self.memory.log_p_vocabulary(near, log_lm.shape[-1])
        log_knn = torch.from_numpy(knn).to(log_lm.device, log_lm.dtype)
        empty = torch.from_numpy((near.tokens < 0).all(axis=1)).to(log_lm.device)
        log_knn[empty] = log_lm[empty]
        weights = (torch.from_numpy(part[:, None]).to(log_lm.device, log_lm.dtype) for part in log_weights(lam))
        return mix_logs(log_lm, log_knn, *weights)  # type: ignore[no-any-return]


def _kept(keys: Tensor, logits: Tensor, kept: int | Tensor) -> Tensor:
    """Pick the keys of those positions whose logits the model returned."""
    if isinstance(kept, Tensor):
        return keys[:, kept]
    return keys[:, -logits.shape[1] :]
