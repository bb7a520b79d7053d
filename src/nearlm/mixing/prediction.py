"""What a memory says of some contexts, for targets and for the whole vocabulary, and the time that it took."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nearlm.base import Doubles, Int32s
from nearlm.mixing.advice import Advice
from nearlm.mixing.interpolation import Interpolation
from nearlm.mixing.mixture_features import Bools, experts_of
from nearlm.search import Neighbors


class Spent(NamedTuple):
    """The seconds that a prediction took: to decide which tokens skip retrieval, to search, and to weigh and mix."""

    gate: float
    search: float
    mixing: float


@dataclass(frozen=True)
class Prediction:
    """What a memory says of n contexts, the neighbours of those that retrieved, and the time that it took."""

    said: Advice | Interpolation
    near: Neighbors | None
    retrieved: Bools
    spent: Spent

    @property
    def lam(self) -> Doubles:
        """How much the memory weighs in each, [n]."""
        return self.said.lam

    def score(self, log_lm: Doubles, targets: Int32s) -> tuple[Doubles, Doubles]:
        """Return log p_kNN and log p of one target per context."""
        if isinstance(self.said, Advice):
            log_experts = self.said.log_experts(log_lm, targets)
            return self.said.log_knn(log_experts), self.said.log_p(log_experts)
        log_knn = self.said.log_knn(targets)
        return log_knn, self.said.log_p(log_lm, log_knn)

    def log_p_vocabulary(self, log_lm: Tensor) -> Tensor:
        """Return log p of the whole vocabulary, [n, vocabulary], for the LM's: for a few contexts at a time."""
        return self.said.log_p_vocabulary(log_lm)

    def by_source(self, log_lm: Doubles, targets: Int32s) -> dict[str, tuple[Doubles, Doubles]]:
        """Return how much each source of a mixture weighs, and what it gives the targets; nothing without a mixture."""
        if not isinstance(self.said, Advice):
            return {}
        p = np.exp(self.said.log_experts(log_lm, targets))
        weights = np.exp(self.said.log_weights)
        found = {}
        for name, place in experts_of(self.said.sources).items():
            weight = weights[:, place].sum(1)
            given = (weights[:, place] * p[:, place]).sum(1) / np.maximum(weight, 1e-30)
            found[name] = weight, given
        return found
