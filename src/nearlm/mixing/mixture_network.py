"""The network of a mixture: features of a context → the weights of its experts, decided after the search."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearlm.base import Doubles, Floats

HIDDEN = 64
DROPOUT = 0.1
_CLIP = 4.0  # standard deviations: a feature never seen like this counts as the most extreme one that was


class MixtureNetwork(nn.Module):
    """MLP with two hidden layers, and a softmax over the experts that are there for a context."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, experts: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.mlp = nn.Sequential(
            linear(features, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            linear(HIDDEN, experts),
        )
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def fit(self, features: Tensor) -> None:
        """Learn mean and spread of the features."""
        self.mean = features.mean(0)
        self.scale = 1 / features.std(0, correction=0).clamp_min(1e-3)

    def forward(self, features: Tensor, there: Tensor) -> Tensor:
        """Return the log weights of experts, [n, experts]; -inf for those that are not there, [n, experts] of bool."""
        scaled = ((features - self.mean) * self.scale).clamp(-_CLIP, _CLIP)
        return self.mlp(scaled).masked_fill(~there, -torch.inf).log_softmax(-1)  # type: ignore[no-any-return]

    def log_weights(self, features: Floats, there: Any, batch: int = 4096) -> Doubles:
        """Return the log weights of many contexts, without dropout, some at a time."""
        self.eval()
        out = np.empty(there.shape)
        with torch.inference_mode():
            for start in range(0, len(features), batch):
                part = slice(start, start + batch)
                out[part] = self(torch.from_numpy(features[part]), torch.from_numpy(there[part])).double().numpy()
        return out


def mixture_loss(log_weights: Tensor, log_p: Tensor) -> Tensor:
    """Return -mean log Σ_e w_e p_e of experts that give the target log_p, [n, experts]."""
    return -(log_weights + log_p).logsumexp(-1).mean()
