"""A causal LM as nearlm uses it: windows of tokens in, context vectors and statistics out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nearlm.errors import ModelError
from nearlm.files import canonical_hash
from nearlm.pretrained import ModelSpec, load_pretrained
from nearlm.tap import FFN, Tap, captured, find_tap
from nearlm.windows import Batch

PROBE_TOKENS = 32
SLICE_BYTES = 64 << 20  # of full-vocabulary logits at a time
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")


@dataclass(frozen=True)
class Scores:
    """What an LM says of each recorded position: its key, log p(target), max p and the entropy of p."""

    keys: Tensor
    logp: Tensor
    conf: Tensor
    ent: Tensor


class LM:
    """A loaded causal LM with its tokenizer and its key tap."""

    def __init__(self, model: nn.Module, tokenizer: Any, *, key_tap: str = FFN, name: str | None = None):
        self.model, self.tokenizer = model, tokenizer
        self.name = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
        self.vocab_size: int = _text_config(model).vocab_size
        ids = torch.from_numpy(_probe_ids(self.vocab_size)[:16].reshape(2, 8)).to(self.device)
        self.tap: Tap = find_tap(model, key_tap, ids, _width(model))
        self._may_stop = not _has_accelerate_hooks(model)
        self.dim = self._check_tap(ids)

    @classmethod
    def load(cls, spec: ModelSpec | str, *, key_tap: str = FFN) -> "LM":
        """Load a model by name, folder or GGUF file."""
        spec = ModelSpec(spec) if isinstance(spec, str) else spec
        model, tokenizer = load_pretrained(spec)
        return cls(model, tokenizer, key_tap=key_tap, name=spec.name)

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> str:
        """What the model computes in, e.g. `float32`."""
        return str(getattr(self.model, "dtype", torch.float32)).removeprefix("torch.")

    @property
    def limit(self) -> int | None:
        """The longest window that the model can read, if it says so."""
        config = _text_config(self.model)
        limits = [getattr(config, name, None) for name in _LIMITS]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    def keys(self, batch: Batch) -> Tensor:
        """Return the context vectors of a batch's recorded positions, [records, dim]; the LM head is not run."""
        ids = torch.from_numpy(batch.ids).to(self.device)
        with torch.inference_mode():
            return self._vectors(ids)[torch.from_numpy(batch.recorded).to(self.device)]

    def score(self, batch: Batch) -> Scores:
        """Return the keys and statistics of a batch's recorded positions.

        Log-probabilities of the whole vocabulary exist for one slice of positions at a time only.
        """
        ids = torch.from_numpy(batch.ids).to(self.device)
        recorded = torch.from_numpy(batch.recorded).to(self.device)
        targets = torch.from_numpy(batch.targets).to(self.device, torch.int64)
        with torch.inference_mode():
            keys, hidden = self._vectors_and_hidden(ids)
            keys, hidden = keys[recorded], hidden[recorded]
            rows = max(1, SLICE_BYTES // (4 * self.vocab_size))
            parts = [
                _statistics(self._logits(hidden[i : i + rows]), targets[i : i + rows])
                for i in range(0, len(hidden), rows)
            ]
        logp, conf, ent = (torch.cat(column) for column in zip(*parts, strict=True))
        return Scores(keys, logp, conf, ent)

    def fingerprint(self) -> str:
        """Return the sha256 of the model's canonical config and its parameters' names and shapes."""
        shapes = sorted((name, list(value.shape)) for name, value in self.model.state_dict().items())
        return canonical_hash({"config": _canonical_config(self.model), "parameters": shapes})

    def tokenizer_fingerprint(self) -> str:
        """Return the sha256 of the tokenizer's vocabulary, special tokens and of what it makes of a sample."""
        return tokenizer_fingerprint(self.tokenizer)

    def probe(self) -> npt.NDArray[np.float32]:
        """Return the keys of a fixed sequence of tokens, [32, dim]: the same model gives the same ones."""
        ids = torch.from_numpy(_probe_ids(self.vocab_size)[None]).to(self.device)
        with torch.inference_mode():
            return self._vectors(ids)[0].float().cpu().numpy()

    def _vectors(self, ids: Tensor) -> Tensor:
        """Run the model as far as its tap. Padding stands at the end, so causal attention needs no mask."""
        if not self._may_stop:
            return self._vectors_and_hidden(ids)[0]
        with captured(self.tap, stop=True) as found:
            self.model(input_ids=ids, use_cache=False)
        return self._shaped(found, ids)

    def _vectors_and_hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        with captured(self.tap, stop=False) as found:
            hidden = self._backbone(input_ids=ids, use_cache=False)[0]
        if not found:  # the tap is the LM head itself
            found = [hidden]
        return self._shaped(found, ids), hidden

    def _shaped(self, found: list[Tensor], ids: Tensor) -> Tensor:
        if not found:
            raise ModelError(f"key tap {self.tap.path} was not reached in the forward pass; name another --key-tap")
        if found[0].shape[:-1].numel() != ids.numel():
            got, want = list(found[0].shape), list(ids.shape)
            raise ModelError(f"key tap {self.tap.path} gives {got} for {want} tokens, expected one vector a token")
        return found[0].reshape(*ids.shape, -1)

    @property
    def _backbone(self) -> Any:
        backbone: Any = getattr(self.model, "base_model", self.model)
        if backbone is self.model:
            raise ModelError(f"{type(self.model).__name__} has no base model apart from its head; it cannot be scored")
        return backbone

    def _logits(self, hidden: Tensor) -> Tensor:
        """Turn final hidden states, [n, dim], into the model's own logits, [n, vocabulary].

        The whole model is called with its backbone replaced by these states, so that whatever it
        does around its head (scaling, soft-capping) is done here too.
        """
        from transformers.modeling_outputs import BaseModelOutputWithPast

        backbone, states = self._backbone, BaseModelOutputWithPast(last_hidden_state=hidden[None])
        ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        backbone.forward = lambda *_, **__: states
        try:
            return self.model(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]
        finally:
            del backbone.forward

    def _check_tap(self, ids: Tensor) -> int:
        """Run a tiny forward pass, refuse a tap that does not give one different vector a token; return its width."""
        with torch.inference_mode():
            vectors = self._vectors(ids).float()
        if not torch.isfinite(vectors).all():
            raise ModelError(f"key tap {self.tap.path} of {self.name} gives non-finite vectors; try --dtype float32")
        if (vectors[0] - vectors[0, :1]).abs().max() == 0:
            raise ModelError(f"key tap {self.tap.path} of {self.name} gives the same vector for every token")
        return vectors.shape[-1]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return the sha256 of a tokenizer's vocabulary, special tokens and of what it makes of a sample."""
    sample = "The quick brown fox, 1234 times:\n\n    naïve café — 東京 🙂\tdef f(x): return x**2\r\n"
    return canonical_hash(
        {
            "vocabulary": sorted(tokenizer.get_vocab().items()),
            "special": sorted(tokenizer.all_special_ids),
            "sample": tokenizer(sample, add_special_tokens=False)["input_ids"],
        }
    )


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p(target), max p and the entropy of each row of logits."""
    total = logits.logsumexp(-1)
    logp = logits.gather(-1, targets[:, None])[:, 0] - total
    conf = (logits.amax(-1) - total).exp()
    p = (logits - total[:, None]).exp_()
    ent = total - torch.nan_to_num(p.mul_(logits), nan=0.0).sum(-1)
    return logp, conf, ent


def _probe_ids(vocab_size: int) -> npt.NDArray[np.int64]:
    return (np.arange(1, PROBE_TOKENS + 1, dtype=np.int64) * 2654435761) % vocab_size


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _width(model: nn.Module) -> int:
    """Return the width of the hidden state between the model's layers."""
    width = getattr(_text_config(model), "hidden_size", None)
    if not isinstance(width, int):
        raise ModelError(
            f"the config of {type(model).__name__} gives no hidden_size; expected a Hugging Face causal LM"
        )
    return width


def _has_accelerate_hooks(model: nn.Module) -> bool:
    """Tell whether accelerate moves weights around each module's forward, which then must not be cut short."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def _canonical_config(model: nn.Module) -> dict[str, Any]:
    """Return what of the config makes the model, without names, versions, dtypes and special tokens."""
    dropped = (
        "transformers_version",
        "dtype",
        "torch_dtype",
        "quantization_config",
        "architectures",
        "use_cache",
    )
    config: dict[str, Any] = model.config.to_diff_dict()  # type: ignore[union-attr,operator]
    return {
        name: value
        for name, value in sorted(config.items())
        if not name.startswith("_") and name not in dropped and not name.endswith("token_id")
    }
