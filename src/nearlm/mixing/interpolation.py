"""The paper's mixture: p = λ p_kNN + (1 - λ) p_LM, for targets and for the whole vocabulary."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearlm.base import Doubles, Int32s
from nearlm.mixing.equations import back_off, log_p_knn, log_p_knn_vocabulary, log_weights, mix, mix_logs
from nearlm.mixing.mixture_features import Bools
from nearlm.search import Neighbors


@dataclass(frozen=True)
class Interpolation:
    """What the memory says of n contexts: the neighbours of those that retrieved, and the λ of all."""

    near: Neighbors | None
    retrieved: Bools
    lam: Doubles
    knn_temperature: float

    def log_knn(self, targets: Int32s) -> Doubles:
        """Return log p_kNN of one target per context, -inf where none was retrieved."""
        log_knn = np.full(len(targets), -np.inf)
        if self.near is not None:
            near = self.near
            wanted = targets[self.retrieved]
            log_knn[self.retrieved] = log_p_knn(near.distances, near.tokens, wanted, self.knn_temperature, near.weights)
        return log_knn

    def log_p(self, log_lm: Doubles, log_knn: Doubles) -> Doubles:
        """Return log p of targets that LM and memory give these; it is the LM's where nothing was retrieved."""
        if self.near is None:
            return log_lm
        here = self.retrieved
        logp = log_lm.copy()
        known = back_off(log_knn[here], log_lm[here], self.near.tokens)
        logp[here] = mix(log_lm[here], known, self.lam[here])
        return logp

    def log_p_vocabulary(self, log_lm: Tensor) -> Tensor:
        """Return log p of the whole vocabulary, [n, vocabulary], for the LM's: for a few contexts at a time."""
        if self.near is None:
            return log_lm
        near = self.near
        place = log_lm.device
        knn = log_p_knn_vocabulary(near.distances, near.tokens, log_lm.shape[-1], self.knn_temperature, near.weights)
        rows = torch.from_numpy(np.flatnonzero(self.retrieved)).to(place)
        model = log_lm[rows]
        log_knn = torch.from_numpy(knn).to(place, log_lm.dtype)
        empty = torch.from_numpy((near.tokens < 0).all(axis=1)).to(place)
        log_knn[empty] = model[empty]
        parts = log_weights(self.lam[self.retrieved])
        weights = (torch.from_numpy(part[:, None]).to(place, log_lm.dtype) for part in parts)
        out = log_lm.clone()
        out[rows] = mix_logs(model, log_knn, *weights)
        return out
