"""Weights of several memories that nobody trained together: the odds that each of them gives its experts.

A memory alone gives its expert e the weight w_e and the LM w_0. Together an expert has the odds w_e / w_0 against the
LM that its own memory gives it, as if the others were not there; the text so far has the mean of what they give it. So
a memory that finds nothing to say leaves the weights of the others as they are, and a single one has its own.

Memories of one λ share it: each has λ times its share of Σ_i s_i exp(-d_i / T) over the neighbours of all. Where T is
the same and distances are comparable, that is p_kNN of the neighbours of all stores together; otherwise distances
are measured in units of the temperature that was tuned for them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from nearlm.base import Doubles, Floats, Ints
from nearlm.mixing.candidates import MAIN
from nearlm.mixing.mixture_features import (
    KNN,
    TEXT,
    Bools,
    columns_among,
    columns_with,
    experts_of,
    join_sources,
    name_at,
)
from nearlm.mixing.mixture_network import HIDDEN, MixtureNetwork, Weigher
from nearlm.mixing.usual import UsualWeights

_LEAST = 1e-9  # of the LM's weight
_OFFSET = 1e-6  # that is added to a distance before its log is taken


class Alone(NamedTuple):
    """How the memory of one store weighs its sources when it is alone: by a network, or by one λ for neighbours."""

    sources: tuple[str, ...]
    network: MixtureNetwork | UsualWeights | None
    lam: float = 0.0


@dataclass(frozen=True)
class Odds:
    """Weighs the sources of several memories by how each weighs its own."""

    alone: tuple[Alone, ...]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The sources of all, by name."""
        return join_sources([one.sources for one in self.alone])

    def begin(self, network: MixtureNetwork) -> None:
        """Let a network to be trained for all sources begin with these odds: each memory's own network is a part of it.

        The text so far has the mean of the log odds that they give it. A memory of one λ has no network to begin with;
        then nothing changes.
        """
        networks = [one.network for one in self.alone if isinstance(one.network, MixtureNetwork)]
        if len(networks) < len(self.alone):
            return
        first, second, last = network.layers
        shared = np.bincount(np.concatenate([experts[1:] for _, experts in self._places]))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()
            for number, (own, (columns, experts)) in enumerate(zip(networks, self._places, strict=True)):
                part = slice(number * HIDDEN, (number + 1) * HIDDEN)
                own_first, own_second, own_last = own.layers
                moved = (network.mean[columns] - own.mean) * own.scale
                first.weight[part, columns] = own_first.weight * (own.scale / network.scale[columns])
                first.bias[part] = own_first.bias + own_first.weight @ moved
                second.weight[part, part] = own_second.weight
                second.bias[part] = own_second.bias
                share = torch.from_numpy(1 / shared[experts[1:]]).float()
                last.weight[experts[1:], part] = share[:, None] * (own_last.weight[1:] - own_last.weight[0])
                last.bias[experts[1:]] += share * (own_last.bias[1:] - own_last.bias[0])

    def frozen(self) -> "Odds":
        """Return itself: there is nothing to learn."""
        return self

    @cached_property
    def _weighers(self) -> "list[Weigher | UsualWeights | None]":
        return [None if one.network is None else one.network.frozen() for one in self.alone]

    @cached_property
    def _places(self) -> list[tuple[Ints, Ints]]:
        """Where the features and experts of each memory are among those of all."""
        found = []
        for number, one in enumerate(self.alone):
            names = tuple(name_at(kind, number) for kind in one.sources)
            experts = experts_of(self.sources)
            places = [place for name in names for place in range(experts[name].start, experts[name].stop)]
            found.append((columns_among(names, self.sources), np.array([0, *places], np.int64)))
        return found

    def log_weights(self, features: Floats, there: Bools) -> Doubles:
        """Return the log weights of LM and experts, [n, 1 + experts]; -inf for those that are not there."""
        odds = np.zeros(there.shape)
        odds[:, 0] = 1
        shares = self._shares(features, there)
        for number, (columns, places) in enumerate(self._places):
            weigher = self._weighers[number]
            if weigher is None:
                own = self._by_one_lambda(number, shares[:, number], there[:, places])
            else:
                own_features = np.ascontiguousarray(features[:, columns])
                own = np.exp(weigher.log_weights(own_features, np.ascontiguousarray(there[:, places])))
            odds[:, places[1:]] += own[:, 1:] / np.maximum(own[:, :1], _LEAST)
        if TEXT in self.sources:
            odds[:, experts_of(self.sources)[TEXT]] /= sum(TEXT in one.sources for one in self.alone)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(odds) - np.log(odds.sum(1, keepdims=True)))

    def _by_one_lambda(self, number: int, share: Doubles, there: Bools) -> Doubles:
        """Return the weights of LM and the neighbours' experts: λ for the one at the tuned temperature, times a share.

        Divided by the LM's, they are its odds λ / (1 - λ), times that share.
        """
        lam = self.alone[number].lam
        weights = np.zeros(there.shape)
        weights[:, 0] = 1 - lam
        weights[:, 1 + MAIN] = lam * share
        return weights * there

    def _shares(self, features: Floats, there: Bools) -> Doubles:
        """Return the share of each memory of one λ in what all of these found, [n, memories]; others have 1."""
        log_mass = np.full((len(features), len(self.alone)), -np.inf)
        for number, one in enumerate(self.alone):
            if one.network is None:
                name = name_at(KNN, number)
                column = columns_with(name, self.sources)[2]
                nearest = np.exp(features[:, column].astype(np.float64)) - _OFFSET
                mass = features[:, column + 1 + MAIN] - nearest
                log_mass[:, number] = np.where(there[:, experts_of(self.sources)[name].start], mass, -np.inf)
        largest = np.maximum(log_mass.max(1, keepdims=True), -1e30)
        mass = np.exp(log_mass - largest)
        return np.asarray(mass / np.maximum(mass.sum(1, keepdims=True), 1e-30))
