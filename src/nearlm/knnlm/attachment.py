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

from nearlm.base import ModelError, OptionError
from nearlm.knnlm.history import as_tokens, contexts_of, keep_history, read_history
from nearlm.mixing import Gate, Tokens, log_p_knn_vocabulary
from nearlm.model import LM, captured, confidence_and_entropy
from nearlm.search import Retriever

_SLICE_BYTES = 64 << 20


@contextlib.contextmanager
def attach(
    lm: LM,
    retriever: Retriever,
    *,
    lam: float | None = None,
    temperature: float | None = None,
    k: int | None = None,
    gate: Gate | None = None,
) -> Iterator[nn.Module]:
    """Let `lm.model` return log p_mix as its logits, and a loss computed from them, until the context ends.

    `generate`, pipelines, logits processors, beams and samplers then work on the mixture without knowing of it.
    λ is one number, or comes from an adaptor's `gate`, with the adaptor's own T and k.
    """
    mixer = _mixer(lm, retriever, lam, temperature, k, gate)
    model: Any = lm.model
    own, original = "forward" in vars(model), model.forward
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
        kept, contexts = kwargs.get("logits_to_keep", 0), None
        if history is not None:
            keep_history(output, history)
            contexts = _kept(contexts_of(history, keys.shape[1]), output.logits, kept)
        logits, loss = mixer(output.logits, _kept(keys, output.logits, kept), contexts), None
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


def check_mixing(lam: float, temperature: float, k: int | None) -> None:
    """Refuse a λ, T or k that makes no mixture."""
    if not 0 <= lam <= 1:
        raise OptionError(f"--lam is {lam}, expected 0 to 1")
    if not temperature > 0:
        raise OptionError(f"--temperature is {temperature}, expected more than 0")
    if k is not None and k < 1:
        raise OptionError(f"--k is {k}, expected at least 1")


def _mixer(
    lm: LM, retriever: Retriever, lam: float | None, temperature: float | None, k: int | None, gate: Gate | None
) -> "Mixer":
    if (lam is None) == (gate is None):
        raise OptionError("attach needs either lam, one λ for all tokens, or the gate of an adaptor")
    check_mixing(lam or 0.0, 1.0 if temperature is None else temperature, k)
    made_by = retriever.store.manifest["model"]
    if lm.fingerprint() != made_by["fingerprint"]:
        raise ModelError(
            f"{retriever.store.path} was built with {made_by['name']}, {lm.name} is another architecture or size"
        )
    if gate is None:
        return Mixer(retriever, 1.0 if temperature is None else temperature, k, lam=lam or 0.0)
    settings = gate.adaptor.settings
    temperature, k = settings.temperature if temperature is None else temperature, k or settings.k
    gate.adaptor.check(retriever, temperature, k, lm.fingerprint())
    return Mixer(retriever, temperature, k, gate=gate)


@dataclasses.dataclass(frozen=True)
class Mixer:
    """Turns logits and keys into log p_mix, with one λ or what a gate says; where λ is 0 nothing is searched."""

    retriever: Retriever
    temperature: float
    k: int | None
    lam: float = 0.0
    gate: Gate | None = None

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
        if self.gate is None:
            return np.full(len(queries), self.lam)
        conf = ent = None
        if self.gate.needs_statistics:
            measured = confidence_and_entropy(log_lm.detach())
            conf, ent = (value.float().cpu().numpy() for value in measured[1:])
        return self.gate.weights(queries, conf, ent, contexts)

    def _mixed(self, log_lm: Tensor, queries: npt.NDArray[np.float32], lam: npt.NDArray[np.float64]) -> Tensor:
        near = self.retriever.search(queries, self.k, ordered=False)
        knn = log_p_knn_vocabulary(near.distances, near.tokens, log_lm.shape[-1], self.temperature, near.weights)
        log_knn = torch.from_numpy(knn).to(log_lm.device, log_lm.dtype)
        empty = torch.from_numpy((near.tokens < 0).all(axis=1)).to(log_lm.device)
        log_knn[empty] = log_lm[empty]
        with np.errstate(divide="ignore"):
            weights = np.stack([np.log(lam), np.log1p(-lam)])[..., None]
        log_lam, log_rest = torch.from_numpy(weights).to(log_lm.device, log_lm.dtype)
        return torch.logaddexp(log_knn + log_lam, log_lm + log_rest)


def _kept(keys: Tensor, logits: Tensor, kept: int | Tensor) -> Tensor:
    """Pick the keys of those positions whose logits the model returned."""
    if isinstance(kept, Tensor):
        return keys[:, kept]
    return keys[:, -logits.shape[1] :]
