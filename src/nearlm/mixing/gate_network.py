"""The gate's network: features of a context → (log λ, log 1 - λ), as in the paper's appendix A.2."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearlm.base import Doubles, Floats, OptionError, Reals
from nearlm.mixing.equations import mix_logs
from nearlm.mixing.ngrams import MAX_N, Counts

SCALARS = {"conf": 1, "ent": 1, "freq": MAX_N, "fert": MAX_N, "suffix": 4}
FEATURES = ("keys", *SCALARS)
PAPER_FEATURES = ("keys", "conf", "ent", "fert")
MOST_LAMBDA = 0.999
HIDDEN = 128
HIDDEN_LAYERS = 4
DROPOUT = 0.2
STANDARDISE = ("all", "scalars", "none")


@dataclass(frozen=True)
class Inputs:
    """What a network takes in: the width of f(c), the features it uses, and which of them are standardised."""

    dim: int
    features: tuple[str, ...] = PAPER_FEATURES
    standardise: str = "all"

    def __post_init__(self) -> None:
        unknown = [name for name in self.features if name not in FEATURES]
        if unknown or not self.features or len(set(self.features)) < len(self.features):
            got = ",".join(self.features)
            raise OptionError(f"`features` is {got!r}, expected some of {','.join(FEATURES)}, each once")
        if self.standardise not in STANDARDISE:
            raise OptionError(f"`standardise` is {self.standardise!r}, expected one of {', '.join(STANDARDISE)}")

    @property
    def scalars(self) -> list[str]:
        """The scalar features used, in their fixed order."""
        return [name for name in SCALARS if name in self.features]

    @property
    def width(self) -> int:
        """How many numbers all scalar features are."""
        return sum(SCALARS[name] for name in self.scalars)

    @property
    def counts(self) -> bool:
        """Whether n-grams must be looked up."""
        return "freq" in self.features or "fert" in self.features

    @property
    def statistics(self) -> bool:
        """Whether the LM's confidence or entropy is used."""
        return "conf" in self.features or "ent" in self.features

    @property
    def suffix(self) -> bool:
        """Whether the longest suffix of the context that occurs in the store's text is looked at."""
        return "suffix" in self.features


def scalar_columns(
    inputs: Inputs,
    count: int,
    conf: Reals | None,
    ent: Reals | None,
    counts: Counts | None,
    suffix: Reals | None = None,
) -> Floats:
    """Put the scalar features of some contexts side by side, [count, width]; n-gram counts become log(1 + count)."""
    known: dict[str, Any] = {"conf": conf, "ent": ent, "suffix": suffix}
    if counts is not None:
        known |= {"freq": np.log1p(counts.frequency), "fert": np.log1p(counts.fertility)}
    columns = [np.reshape(known[name], (count, -1)) for name in inputs.scalars]
    return np.concatenate([np.empty((count, 0)), *columns], axis=1).astype(np.float32)


class GateNetwork(nn.Module):
    """MLP of an input layer, four hidden layers and an output layer; each scalar feature goes through one of its own.

    A scalar feature type becomes dim // (types present) numbers by Linear-ReLU-Linear and stands beside f(c). What is
    standardised is so with buffers that `fit` sets.
    """

    mean: Tensor
    scale: Tensor
    key_mean: Tensor
    key_scale: Tensor

    def __init__(self, inputs: Inputs, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.inputs = inputs
        scalars = inputs.scalars
        each = max(1, inputs.dim // max(1, len(scalars)))
        self.scalar = nn.ModuleDict(
            {name: nn.Sequential(linear(SCALARS[name], each), nn.ReLU(), linear(each, each)) for name in scalars}
        )
        wide = each * len(scalars) + (inputs.dim if "keys" in inputs.features else 0)
        layers: list[nn.Module] = []
        for width in (wide, *[HIDDEN] * HIDDEN_LAYERS):
            layers += [linear(width, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT)]
        self.mlp = nn.Sequential(*layers, linear(HIDDEN, 2), nn.LogSoftmax(-1))
        for name, count in (("", inputs.width), ("key_", inputs.dim)):
            self.register_buffer(f"{name}mean", torch.zeros(count))
            self.register_buffer(f"{name}scale", torch.ones(count))

    def fit(self, keys: Tensor, scalars: Tensor) -> None:
        """Learn mean and spread of what is standardised."""
        if self.inputs.standardise != "none" and self.inputs.width:
            self.mean = scalars.mean(0)
            self.scale = 1 / scalars.std(0, correction=0).clamp_min(1e-4)
        if self.inputs.standardise == "all" and "keys" in self.inputs.features:
            self.key_mean = keys.mean(0)
            self.key_scale = 1 / keys.std(0, correction=0).clamp_min(1e-4)

    def begin_at(self, lam: float) -> None:
        """Let the untrained network give about this λ everywhere."""
        last = self.mlp[-2]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(torch.tensor([lam, 1 - lam]).clamp(1e-3, 1).log())

    def forward(self, keys: Tensor, scalars: Tensor) -> Tensor:
        """Return (log λ, log 1 - λ), [n, 2], of contexts with keys [n, dim] and scalar features [n, width]."""
        parts = [(keys - self.key_mean) * self.key_scale] if "keys" in self.inputs.features else []
        scalars = (scalars - self.mean) * self.scale
        begin = 0
        for name, network in self.scalar.items():
            parts.append(network(scalars[:, begin : begin + SCALARS[name]]))
            begin += SCALARS[name]
        return self.mlp(torch.cat(parts, -1))  # type: ignore[no-any-return]

    def log_weights(self, keys: Reals, scalars: Floats, batch: int = 4096) -> Doubles:
        """Return (log λ, log 1 - λ) of many contexts, without dropout, some at a time."""
        self.eval()
        out = np.empty((len(keys), 2))
        with torch.inference_mode():
            for start in range(0, len(keys), batch):
                part = slice(start, start + batch)
                vectors = torch.from_numpy(np.array(keys[part], np.float32))
                out[part] = self(vectors, torch.from_numpy(scalars[part])).double().numpy()
        return out


def capped_lambda(log_lam: Doubles) -> Doubles:
    """Return λ(c), at most 0.999: a network that is too sure must not leave a token without any probability."""
    return np.exp(np.minimum(log_lam, np.log(MOST_LAMBDA)))


def mixture_loss(log_weights: Tensor, log_knn: Tensor, log_lm: Tensor, a: float) -> Tensor:
    """Return -mean log(λ p_kNN + (1 - λ) p_LM) + a · mean λ."""
    log_lam, log_rest = log_weights.unbind(-1)
    mixed: Tensor = mix_logs(log_lm, log_knn, log_lam, log_rest)
    return a * log_lam.exp().mean() - mixed.mean()


def classification_loss(log_weights: Tensor, log_knn: Tensor, log_lm: Tensor, a: float) -> Tensor:
    """Return the cross-entropy of predicting whether p_kNN ≥ p_LM; `a` plays no part."""
    return nn.functional.nll_loss(log_weights, (log_knn < log_lm).long())


LOSSES = {"likelihood": mixture_loss, "classify": classification_loss}


def parse_features(features: str | Sequence[str]) -> tuple[str, ...]:
    """Turn `keys,conf,ent,fert`, or `all`, into the names of features, in their fixed order."""
    names = features.split(",") if isinstance(features, str) else features
    stripped = list(FEATURES) if features == "all" else [name.strip() for name in names]
    Inputs(1, tuple(stripped))
    return tuple(name for name in FEATURES if name in stripped)
