"""The network of a mixture: features of a context → the weights of its experts, decided after the search."""

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor, nn

from nearlm.base import Doubles, Floats
from nearlm.mixing.mixture_features import experts_count, stores_count, width_of

HIDDEN = 64
DROPOUT = 0.1
_ROWS = 16  # handled by one thread at a time
_CLIP = 4.0  # standard deviations: a feature never seen like this counts as the most extreme one that was


class MixtureNetwork(nn.Module):
    """MLP with two hidden layers, and a softmax over the experts that are there for a context."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, experts: int, hidden: int = HIDDEN, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.mlp = nn.Sequential(
            linear(features, hidden),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            linear(hidden, experts),
        )
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    @property
    def layers(self) -> list[nn.Linear]:
        """The three layers, first to last."""
        return [layer for layer in self.mlp if isinstance(layer, nn.Linear)]

    def fit(self, features: Tensor) -> None:
        """Learn mean and spread of the features."""
        self.mean = features.mean(0)
        self.scale = 1 / features.std(0, correction=0).clamp_min(1e-3)

    def forward(self, features: Tensor, there: Tensor) -> Tensor:
        """Return the log weights of experts, [n, experts]; -inf for those that are not there, [n, experts] of bool."""
        scaled = ((features - self.mean) * self.scale).clamp(-_CLIP, _CLIP)
        return self.mlp(scaled).masked_fill(~there, -torch.inf).log_softmax(-1)  # type: ignore[no-any-return]

    def frozen(self) -> "Weigher":
        """Return what the network computes now, to be used many times."""
        tensors = [self.mean, self.scale, *(part for layer in self.layers for part in (layer.weight.T, layer.bias))]
        return Weigher(*(np.array(tensor.detach().numpy(), np.float32, order="C") for tensor in tensors))

    def log_weights(self, features: Floats, there: Any) -> Doubles:
        """Return the log weights of many contexts, without dropout."""
        return self.frozen().log_weights(features, there)


def network_of(sources: tuple[str, ...], linear: type[nn.Linear] = nn.Linear) -> MixtureNetwork:
    """Make an untrained network for sources, the wider the more stores they look at."""
    return MixtureNetwork(width_of(sources), experts_count(sources), HIDDEN * stores_count(sources), linear)


class Weigher(NamedTuple):
    """The weights of a network as arrays, which weigh a context in a microsecond, whatever else is in its batch."""

    mean: Floats
    scale: Floats
    first: Floats
    first_bias: Floats
    second: Floats
    second_bias: Floats
    last: Floats
    last_bias: Floats

    def log_weights(self, features: Floats, there: Any) -> Doubles:
        """Return the log weights of experts, [n, experts]; -inf for those that are not there, [n, experts] of bool."""
        out = np.empty(there.shape)
        _network_kernel(np.ascontiguousarray(features, np.float32), there, tuple(self), out)
        return out


def mixture_loss(log_weights: Tensor, log_p: Tensor) -> Tensor:
    """Return -mean log Σ_e w_e p_e of experts that give the target log_p, [n, experts]."""
    return -(log_weights + log_p).logsumexp(-1).mean()


@numba.njit(cache=True, parallel=True, nogil=True)
def _network_kernel(features, there, network, out):  # type: ignore[no-untyped-def]
    for chunk in numba.prange((len(features) + _ROWS - 1) // _ROWS):
        network_rows(chunk * _ROWS, min(chunk * _ROWS + _ROWS, len(features)), features, there, network, out)


@numba.njit(cache=True)
def network_rows(begin, end, features, there, network, out):  # type: ignore[no-untyped-def]
    """Weigh some rows, one after the other."""
    width = features.shape[1]
    mean, scale, first_weights, first_bias, second_weights, second_bias, last_weights, last_bias = network
    scaled = np.empty(width, np.float32)
    first = np.empty(len(first_bias), np.float32)
    second = np.empty(len(second_bias), np.float32)
    scores = np.empty(len(last_bias), np.float32)
    for i in range(begin, end):
        for j in range(width):
            scaled[j] = min(max((features[i, j] - mean[j]) * scale[j], -_CLIP), _CLIP)
        _layer(scaled, first_weights, first_bias, first)
        _relu(first)
        _layer(first, second_weights, second_bias, second)
        _relu(second)
        _layer(second, last_weights, last_bias, scores)
        _log_softmax(scores, there[i], out[i])


@numba.njit(cache=True)
def _layer(inputs, weights, bias, out):  # type: ignore[no-untyped-def]
    """Compute inputs · weights + bias."""
    for o in range(len(out)):
        out[o] = bias[o]
    for j in range(len(inputs)):
        if inputs[j] != 0:  # about half of what ReLU leaves is 0
            for o in range(len(out)):
                out[o] += inputs[j] * weights[j, o]


@numba.njit(cache=True)
def _relu(values):  # type: ignore[no-untyped-def]
    for o in range(len(values)):
        values[o] = max(values[o], np.float32(0))


@numba.njit(cache=True)
def _log_softmax(scores, there, out):  # type: ignore[no-untyped-def]
    """Compute the log softmax over the experts that are there."""
    largest = -np.inf
    total = 0.0
    for e in range(len(scores)):
        if there[e]:
            largest = max(largest, np.float64(scores[e]))
    for e in range(len(scores)):
        out[e] = scores[e] - largest if there[e] else -np.inf
        total += np.exp(out[e])
    for e in range(len(scores)):
        out[e] -= np.log(total)
