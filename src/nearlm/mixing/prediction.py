"""What a memory says of some contexts, for targets and for the whole vocabulary, and the time that it took."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from nearlm.base import Doubles, Int32s
from nearlm.mixing.advice import Advice
from nearlm.mixing.interpolation import Interpolation
from nearlm.mixing.mixture_features import Bools, experts_of
from nearlm.search import Neighbors


class Nearest(NamedTuple):
    """A neighbour: the number of its store, its record, its squared distance, and its share of p_kNN."""

    store: int
    record: int
    distance: float
    share: float


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
    others: tuple[Neighbors | None, ...] = ()  # the neighbours in further stores

    @property
    def nears(self) -> tuple[Neighbors | None, ...]:
        """The neighbours in each store."""
        return (self.near, *self.others)

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

    def nearest(self, row: int, most: int, temperatures: Sequence[float]) -> list[Nearest]:
        """Return the closest neighbours of a context, for the T of each store; of several stores those that count most.

        Distances in unlike stores are not compared: a neighbour counts by its share in its own store's p_kNN, times
        that store's share in the weight of all neighbours.
        """
        if not self.retrieved[row]:
            return []
        at = int(self.retrieved[:row].sum())  # neighbours are those of the contexts that retrieved
        searched = [(number, near) for number, near in enumerate(self.nears) if near is not None]
        weights = np.ones(len(searched))
        if isinstance(self.said, Advice) and len(searched) > 1:
            weights = self.said.store_shares()[row]
        found: list[Nearest] = []
        for (number, near), weight in zip(searched, weights, strict=True):
            found += _closest(near, at, most, temperatures[number], number, float(weight))
        if len(searched) > 1:
            found.sort(key=lambda one: -one.share)
        return found[:most]

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


def _closest(near: Neighbors, at: int, most: int, temperature: float, store: int, weight: float) -> list[Nearest]:
    """Return the closest neighbours of one row of a store's, nearest first, with their shares of a weight."""
    distances = near.distances[at].astype(np.float64)
    shares = np.exp((distances.min() - distances) / temperature)
    if near.weights is not None:
        shares = shares * near.weights[at]
    shares = weight * shares / max(shares.sum(), 1e-30)
    closest = np.argsort(distances, kind="stable")[:most]
    ids = near.ids[at]
    return [Nearest(store, int(ids[i]), float(distances[i]), float(shares[i])) for i in closest if ids[i] >= 0]
