"""What comes of a mixture: the weights of LM and experts, and p = Σ_e w_e(c) p_e, for targets and the vocabulary."""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from nearlm.base import Doubles, Int32s
from nearlm.mixing.equations import add_log, add_mass, on_cpu
from nearlm.mixing.mixture_features import KNN, Bools, Proposal, experts_of, kind_of, source_of
from nearlm.search import Neighbors


@dataclass(frozen=True)
class Advice:
    """What the memory proposes for n contexts, and the log weights of LM and experts, [n, 1 + experts]."""

    sources: tuple[str, ...]
    proposals: dict[str, Proposal]
    log_weights: Doubles
    near: Neighbors | None
    retrieved: Bools

    @property
    def lam(self) -> Doubles:
        """How much the whole memory weighs, [n]."""
        return np.asarray(-np.expm1(self.log_weights[:, 0]))

    def log_knn(self, log_experts: Doubles) -> Doubles:
        """Return log p_kNN of targets at the tuned temperature, -inf where nothing was retrieved.

        Neighbours of several stores count as these weigh.
        """
        searched = [name for name in self.sources if kind_of(name) == KNN]
        if not searched:
            return np.full(len(log_experts), -np.inf)
        places = experts_of(self.sources)
        found = log_experts[:, [places[name].start + source_of(name).main for name in searched]]
        if len(searched) == 1:
            return found[:, 0]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log((self.store_shares() * np.exp(found)).sum(1)))

    def store_shares(self) -> Doubles:
        """Return how the weight of all neighbours is shared out among stores that were searched, [n, stores]."""
        weights = np.exp(self.log_weights)
        places = experts_of(self.sources)
        searched = [places[name] for name in self.sources if kind_of(name) == KNN]
        shares = np.stack([weights[:, place].sum(1) for place in searched], 1)
        return np.asarray(shares / np.maximum(shares.sum(1, keepdims=True), 1e-30))

    def log_experts(self, log_lm: Doubles, targets: Int32s) -> Doubles:
        """Return log p of one target per context under LM and experts, [n, 1 + experts]."""
        return log_p_of(self.sources, self.proposals, log_lm, targets)

    def log_p(self, log_experts: Doubles) -> Doubles:
        """Return log p of targets that LM and experts give these: log Σ_e w_e p_e."""
        return log_sum(self.log_weights + log_experts)

    def log_p_vocabulary(self, log_lm: Tensor) -> Tensor:
        """Return log p of the whole vocabulary, [n, vocabulary], for the LM's: for a few contexts at a time."""
        out = log_lm + torch.from_numpy(self.log_weights[:, :1]).to(log_lm.device, log_lm.dtype)
        weights = np.exp(self.log_weights)
        for name, place in experts_of(self.sources).items():
            proposal = self.proposals.get(name)
            if proposal is not None:
                _add(out, proposal, weights[:, place])
        return out


def _add(log_p: Tensor, proposal: Proposal, weights: Doubles) -> None:
    """Add the mass Σ_e w_e p_e of every candidate of a source to rows of a vocabulary, in place."""
    rows, candidates = proposal
    if on_cpu(log_p):
        _add_kernel(log_p.numpy(), tuple(candidates), rows, weights)
    else:
        add_mass(log_p, candidates.masses(rows, weights))


@numba.njit(cache=True, nogil=True)
def _add_kernel(log_p, made, rows, weights):  # type: ignore[no-untyped-def]
    tokens, p, begins, counts, _, _, _ = made
    for i in range(len(rows)):
        for j in range(begins[i], begins[i] + counts[i]):
            mass = 0.0
            for e in range(p.shape[1]):
                mass += weights[rows[i], e] * p[j, e]
            if tokens[j] < log_p.shape[1] and mass > 0:
                log_p[rows[i], tokens[j]] = add_log(log_p[rows[i], tokens[j]], mass)


def log_sum(values: Doubles) -> Doubles:
    """Return log Σ exp over the last axis; -inf is allowed, but not in all places."""
    largest = values.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(values - largest).sum(-1)) + largest[..., 0])


def there_of(sources: tuple[str, ...], proposals: dict[str, Proposal], count: int) -> Bools:
    """Tell which experts have a distribution for each context, [n, 1 + experts]; the LM always has."""
    places = experts_of(sources)
    there = np.zeros((count, 1 + sum(place.stop - place.start for place in places.values())), np.bool_)
    there[:, 0] = True
    for name, (rows, candidates) in proposals.items():
        there[rows, places[name]] = (candidates.counts > 0)[:, None]
    return there


def log_p_of(sources: tuple[str, ...], proposals: dict[str, Proposal], log_lm: Any, targets: Int32s) -> Doubles:
    """Return log p of one target per context under LM and experts, [n, 1 + experts]; -inf where one gives nothing."""
    places = experts_of(sources)
    p = np.zeros((len(targets), 1 + sum(place.stop - place.start for place in places.values())))
    for name, (rows, candidates) in proposals.items():
        p[rows, places[name]] = candidates.p_of(targets[rows])
    with np.errstate(divide="ignore"):
        log_p: Doubles = np.log(p)
    log_p[:, 0] = log_lm
    return log_p
