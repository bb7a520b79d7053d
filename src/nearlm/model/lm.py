"""A causal LM as nearlm uses it: windows of tokens in, context vectors and statistics out."""

import contextlib
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearlm.base import Floats, Ints, ModelError, canonical_hash
from nearlm.model.packing import Packing
from nearlm.model.passes import plain_turn
from nearlm.model.pretrained import load_pretrained
from nearlm.model.spec import FFN, PLAIN, ModelSpec
from nearlm.model.statistics import statistics_of
from nearlm.model.tap import Tap, capture, drift, ended_before, find_body, find_head, find_tap, output_of, tolerance
from nearlm.model.weights import WeightsHash, describe_commit, describe_origin
from nearlm.text import Batch

PROBE_TOKENS = 32
SLICE_BYTES = 64 << 20  # of full-vocabulary logits at a time
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx")
_NOT_THE_MODEL = "transformers_version dtype torch_dtype quantization_config architectures use_cache".split()


@dataclass(frozen=True)
class Scores:
    """What an LM says of each recorded position: its key, log p(target), max p, entropy of p, the likeliest token."""

    keys: Tensor
    logp: Tensor
    conf: Tensor | None = None
    ent: Tensor | None = None
    top: Tensor | None = None


class LM:
    """A loaded causal LM with its tokenizer and its key tap."""

    def __init__(self, model: nn.Module, tokenizer: Any, *, key_tap: str = FFN, name: str | None = None):
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
        self.spec = ModelSpec(self.name)
        self.vocab_size: int = _text_config(model).vocab_size
        # accelerate moves weights around each module's forward, which then must not be cut short
        self._may_stop = not any(hasattr(module, "_hf_hook") for module in model.modules())
        with plain_turn(model):
            self.tap: Tap = find_tap(model, key_tap, self._tiny, _width(model))
            self.dim = self._check_tap()
        self._weights = WeightsHash(None, model)
        self.packing = Packing(PLAIN)  # a model that somebody else loaded stays as it is

    @classmethod
    def load(cls, spec: ModelSpec | str, *, key_tap: str = FFN) -> "LM":
        """Load a model by name, folder or GGUF file."""
        if isinstance(spec, str):
            spec = ModelSpec(spec)
        packing = Packing(spec.weights)
        origin = describe_origin(spec)
        model, tokenizer = load_pretrained(spec)
        lm = cls(model, tokenizer, key_tap=key_tap, name=spec.model)
        lm.spec = spec
        lm._weights = WeightsHash(origin or describe_commit(spec, model), model)
        packing.check(model)
        lm.packing = packing
        return lm

    def __repr__(self) -> str:
        return f"LM({self.name!r}: {self.dim} dimensions at {self.tap.path}, {self.dtype} on {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        places = (parameter.device for parameter in self.model.parameters())
        return next((place for place in places if place.type != "meta"), torch.device("cpu"))  # meta: offloaded

    @property
    def dtype(self) -> str:
        """What the model computes in, e.g. `float32`."""
        return str(getattr(self.model, "dtype", torch.float32)).removeprefix("torch.")

    @property
    def limit(self) -> int | None:
        """The longest window that the model can read, if it says so."""
        return longest_window(self.model)

    def packed(self) -> contextlib.AbstractContextManager[None]:
        """Use packed weights in the passes of a `with` block, if the model was loaded for that."""
        return self.packing.in_use(self.model)

    def keys(self, batch: Batch) -> Tensor:
        """Return the context vectors of a batch's recorded positions, [records, dim]; the LM head is not run.

        They come from the plain weights, so that a store does not depend on how those are packed.
        """
        ids = torch.from_numpy(batch.ids).to(self.device)
        with torch.inference_mode():
            return _pick(self._vectors(ids), torch.from_numpy(batch.recorded))

    def score(self, batch: Batch, *, statistics: bool = True) -> Scores:
        """Return the keys and log p(target) of a batch's recorded positions, and unless told not to the statistics.

        Log-probabilities of the whole vocabulary exist for one slice of positions at a time only.
        """
        measure = _statistics if statistics else _log_probability
        ids = torch.from_numpy(batch.ids).to(self.device)
        recorded = torch.from_numpy(batch.recorded)
        targets = torch.from_numpy(batch.targets)
        rows = max(1, SLICE_BYTES // (4 * self.vocab_size))
        with torch.inference_mode(), plain_turn(self.model), self.packed():
            body = self._body
            with capture(self.tap, stop=False) as inside:
                output = output_of(body, self.model, ids)
            states = _pick(_states(output), recorded)
            with capture(self.tap, stop=False) as behind:  # a tap between body and logits is passed slice by slice
                parts = [
                    measure(_logits(self.model, body, output, states[i : i + rows]), targets[i : i + rows])
                    for i in range(0, len(states), rows)
                ]
            if inside:
                keys = _pick(self._reshape(inside, ids), recorded)
            else:
                keys = torch.cat([vectors[0] for vectors in behind])
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        return Scores(keys, *columns)

    def fingerprint(self) -> str:
        """Return the sha256 of the model's canonical config and its parameters' names and shapes."""
        shapes = sorted((name, list(value.shape)) for name, value in self.model.state_dict().items())
        config = _canonical(self.model.config.to_diff_dict())  # type: ignore[union-attr,operator]
        return canonical_hash({"config": config, "parameters": shapes})

    def weights_hash(self) -> str:
        """Return the sha256 of the model's weights as they are now, which costs nothing until they change."""
        return self._weights.of(self.model)

    def tokenizer_fingerprint(self) -> str:
        """Return the sha256 of the tokenizer's vocabulary, special tokens and of what it makes of a sample."""
        return tokenizer_fingerprint(self.tokenizer)

    def probe(self) -> Floats:
        """Return the keys of a fixed sequence of tokens, [32, dim]: the same model gives the same ones."""
        ids = torch.from_numpy(_probe_ids(self.vocab_size)[None]).to(self.device)
        with torch.inference_mode():
            return self._vectors(ids)[0].float().cpu().numpy()

    @property
    def _tiny(self) -> Tensor:
        """A few tokens to look at the model with, [2, 8]."""
        return torch.from_numpy(_probe_ids(self.vocab_size)[:16].reshape(2, 8)).to(self.device)

    def _vectors(self, ids: Tensor) -> Tensor:
        """Run the model as far as its tap. Padding stands at the end, so causal attention needs no mask."""
        end = None if self._may_stop else find_head(self.model)
        with plain_turn(self.model), capture(self.tap, stop=self._may_stop) as found, ended_before(end):
            self.model(input_ids=ids, use_cache=False)
        return self._reshape(found, ids)

    def _reshape(self, found: list[Tensor], ids: Tensor) -> Tensor:
        if not found:
            raise ModelError(f"key tap {self.tap.path} was not reached in the forward pass; name another `key_tap`")
        if found[0].shape[:-1].numel() != ids.numel():
            shapes = f"{list(found[0].shape)} for {list(ids.shape)} tokens"
            raise ModelError(f"key tap {self.tap.path} gives {shapes}, expected one vector per token")
        return found[0].reshape(*ids.shape, -1)

    @functools.cached_property
    def _body(self) -> nn.Module:
        """What runs before the head, once it is seen that head and body apart give the whole model's logits."""
        body = find_body(self.model, self._tiny)
        if body is None:
            raise ModelError(f"{type(self.model).__name__} has no body apart from its head; it cannot be scored")
        with torch.inference_mode():
            output = output_of(body, self.model, self._tiny)
            whole = self.model(input_ids=self._tiny, use_cache=False).logits.float().flatten(0, 1)
            parts = _logits(self.model, body, output, _states(output).flatten(0, 1)).to(whole.device)
        if parts.shape != whole.shape or drift(parts, whole) > tolerance(self.model):
            kind = type(self.model).__name__
            raise ModelError(f"the head of {kind} gives other logits when it is run by itself; {kind} cannot be scored")
        return body

    def _check_tap(self) -> int:
        """Run a tiny forward pass, refuse a tap that does not give one different vector per token; return its width."""
        other_end = self._tiny.clone()
        other_end[:, -1] = (other_end[:, -1] + 1) % self.vocab_size
        with torch.inference_mode():
            vectors = self._vectors(self._tiny).float()
            others = self._vectors(other_end).float()
        if not torch.isfinite(vectors).all():
            raise ModelError(f"key tap {self.tap.path} of {self.name} gives non-finite vectors; try `dtype='float32'`")
        if (vectors[0] - vectors[0, :1]).abs().max() == 0:
            raise ModelError(f"key tap {self.tap.path} of {self.name} gives the same vector for every token")
        if drift(vectors[:, :-1], others[:, :-1]) > tolerance(self.model):
            raise ModelError(f"{self.name} looks ahead: a token changes the vectors before it; expected a causal LM")
        return vectors.shape[-1]


AnyModel = str | ModelSpec | LM | nn.Module | None  # None is a store's own


def longest_window(model: nn.Module) -> int | None:
    """Return the longest window that a model can read, if it says so."""
    config = _text_config(model)
    limits = [getattr(config, name, None) for name in _LIMITS]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


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


def _pick(vectors: Tensor, recorded: Tensor) -> Tensor:
    return vectors[recorded.to(vectors.device)]


def _states(output: Any) -> Tensor:
    """Return the hidden states of a body's output."""
    return output if isinstance(output, Tensor) else output[0]


def _logits(model: nn.Module, body: nn.Module, output: Any, states: Tensor) -> Tensor:
    """Turn final hidden states, [n, dim], into the model's own logits, [n, vocabulary].

    The whole model is called with its body giving these states in place of the `output` it gave, so
    that whatever the model does around its head (scaling, soft-capping) is done here too.
    """
    ids = torch.zeros((1, len(states)), dtype=torch.int64, device=states.device)
    kept = vars(body).get("forward")  # accelerate and others put their own there
    body.forward = lambda *_, **__: _with_states(output, states[None])
    try:
        return model(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]
    finally:
        del body.forward
        if kept is not None:
            body.forward = kept


def _with_states(output: Any, states: Tensor) -> Any:
    if isinstance(output, Tensor):
        return states
    if isinstance(output, tuple):
        return (states, *output[1:])
    return dataclasses.replace(output, **{next(iter(output)): states})


def _statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return log p(target), max p, the entropy and the likeliest token of each row of logits."""
    found = statistics_of(logits)
    return _chosen(logits, targets) - found.log_total, found.conf, found.ent, found.top


def _log_probability(logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return log p(target) of each row of logits."""
    return (_chosen(logits, targets) - logits.logsumexp(-1),)


def _chosen(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(-1, targets.to(logits.device, torch.int64)[:, None])[:, 0]


def _probe_ids(vocab_size: int) -> Ints:
    return (np.arange(1, PROBE_TOKENS + 1, dtype=np.int64) * 2654435761) % vocab_size


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _width(model: nn.Module) -> int:
    """Return the width of the hidden state between the model's layers."""
    width = getattr(_text_config(model), "hidden_size", None)
    if not isinstance(width, int):
        kind = type(model).__name__
        raise ModelError(f"the config of {kind} gives no hidden_size; expected a Hugging Face causal LM")
    return width


def _canonical(value: Any) -> Any:
    """Return what of a config makes the model, without names, versions, dtypes and special tokens."""
    if not isinstance(value, dict):
        return value
    return {
        name: _canonical(item)
        for name, item in sorted(value.items(), key=lambda pair: str(pair[0]))
        if not str(name).startswith("_") and name not in _NOT_THE_MODEL and not str(name).endswith("token_id")
    }
