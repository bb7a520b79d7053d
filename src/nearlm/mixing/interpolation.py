"""The paper's mixture: p = λ p_kNN + (1 - λ) p_LM, for targets and for the whole vocabulary."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearlm.base import Doubles, Int32s
from nearlm.mixing.equations import Masses, add_mass, back_off, log_p_knn, log_weights, mix, p_knn_masses
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
        found = p_knn_masses(near.distances, near.tokens, self.knn_temperature, near.weights)
        rows = np.flatnonzero(self.retrieved)[found.rows]
        lam = np.zeros(len(self.lam))
        lam[rows] = self.lam[rows]  # it stays 0, and p is the LM's, where no neighbour was found
        _, log_rest = log_weights(lam)
        out = log_lm + torch.from_numpy(log_rest[:, None]).to(log_lm.device, log_lm.dtype)
        add_mass(out, Masses(rows, found.tokens, found.mass * lam[rows]))
        return out
