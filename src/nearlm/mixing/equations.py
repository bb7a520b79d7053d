"""The maths of a kNN-LM: p_kNN from neighbours, and its mixture with the LM. No files, no state.

p_kNN(y|c) ∝ Σ_i 1[v_i = y] s_i exp(-d_i / T) over the neighbours i, with squared L2 distances d, weights s and
temperature T; p = λ p_kNN + (1 - λ) p_LM. All in log space; a token that no neighbour has gets p_kNN = 0.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from nearlm.base import Doubles, Int32s, Ints, Reals
from nearlm.mixing.token_tables import place_of, table_for


def log_p_knn(
    distances: Reals,
    tokens: Int32s,
    targets: Int32s,
    temperature: float = 1.0,
    weights: Int32s | None = None,
) -> Doubles:
    """Return log p_kNN of one target per row, [n]; distances and tokens are [n, k]; a token of -1 is no neighbour."""
    out = np.empty(len(targets), np.float64)
    _target_kernel(distances, tokens, targets, _or_ones(weights), 1.0 / temperature, out)
    return out


class Masses(NamedTuple):
    """Probability mass of some tokens of some rows, each pair once, [m] each: rows of a vocabulary, mostly 0."""

    rows: Ints
    tokens: Int32s
    mass: Doubles


def p_knn_masses(distances: Reals, tokens: Int32s, temperature: float = 1.0, weights: Int32s | None = None) -> Masses:
    """Return p_kNN of all tokens that neighbours have: for the few positions of a generation step."""
    return Masses(*_mass_kernel(distances, tokens, _or_ones(weights), 1.0 / temperature))


def add_mass(log_p: Tensor, masses: Masses) -> None:
    """Add mass to the p of rows of a vocabulary, [n, vocabulary], in place; tokens that it does not have are left out.

    Where nothing is added, log p stays as it is to the bit.
    """
    if on_cpu(log_p):
        _add_kernel(log_p.numpy(), *masses)
        return
    rows, tokens, mass = (torch.from_numpy(one[masses.tokens < log_p.shape[1]]).to(log_p.device) for one in masses)
    log_p[rows, tokens.long()] = log_p[rows, tokens.long()].logaddexp(mass.log().to(log_p.dtype))


def on_cpu(log_p: Tensor) -> bool:
    """Tell whether kernels may change log p in place."""
    return log_p.device.type == "cpu" and not log_p.requires_grad


def mix(log_lm: Reals, log_knn: Reals, lam: float | Reals) -> Doubles:
    """Return log(λ p_kNN + (1 - λ) p_LM); λ is one number or an array that broadcasts."""
    mixed: Doubles = mix_logs(log_lm, log_knn, *log_weights(lam))
    return mixed


def log_weights(lam: float | Reals) -> tuple[Doubles, Doubles]:
    """Return log λ and log(1 - λ)."""
    lam = np.asarray(lam, np.float64)
    with np.errstate(divide="ignore"):
        return np.log(lam), np.log1p(-lam)


def mix_logs(log_lm: Any, log_knn: Any, log_lam: Any, log_rest: Any) -> Any:
    """Return log(λ p_kNN + (1 - λ) p_LM) for arrays or torch tensors: the one place where a mixture is computed.

    Where λ is 0 the result is log p_LM to the bit, so that a token that skips retrieval needs no case of its own.
    """
    memory = log_lam + log_knn
    model = log_rest + log_lm
    return np.logaddexp(memory, model) if isinstance(memory, np.ndarray | float) else memory.logaddexp(model)


def back_off(log_knn: Reals, log_lm: Reals, tokens: Int32s) -> Reals:
    """Return log p_kNN, or log p_LM in rows where a search found no neighbour at all: any λ then gives p_LM."""
    return np.where((tokens >= 0).any(axis=1), log_knn, log_lm)


def warm_up() -> None:
    """Compile or load the kernels, so that the first real call is not timed with it."""
    for weights in (None, np.ones((1, 1), np.int32)):
        distances = np.zeros((1, 1), np.float32)
        tokens = np.zeros((1, 1), np.int32)
        log_p_knn(distances, tokens, tokens[0], 1.0, weights)


def perplexity(logp: Reals) -> float:
    """Return exp of the mean negative log-probability."""
    return float(np.exp(-np.mean(logp, dtype=np.float64)))


def _or_ones(weights: Int32s | None) -> Int32s:
    """Stand in for weights that are all 1: an array of another shape, which the kernels do not look at."""
    return np.ones((0, 1), np.int32) if weights is None else weights


@numba.njit(cache=True, inline="always")
def _largest(distances, tokens, scale):  # type: ignore[no-untyped-def]
    """Return the largest exponent -d/T among real neighbours, -inf if there is none."""
    best = -np.inf
    for j in range(len(distances)):
        if tokens[j] >= 0:
            best = max(best, -distances[j] * scale)
    return best


@numba.njit(cache=True, parallel=True, nogil=True)
def _target_kernel(distances, tokens, targets, weights, scale, out):  # type: ignore[no-untyped-def]
    weighted = weights.shape[0] == tokens.shape[0] and weights.shape[1] == tokens.shape[1]
    for i in numba.prange(len(targets)):
        best = _largest(distances[i], tokens[i], scale)
        total = 0.0
        hit = 0.0
        if best > -np.inf:
            for j in range(tokens.shape[1]):
                if tokens[i, j] >= 0:
                    p = np.exp(-distances[i, j] * scale - best)
                    if weighted:
                        p *= weights[i, j]
                    total += p
                    if tokens[i, j] == targets[i]:
                        hit += p
        out[i] = np.log(hit / total) if hit > 0 else -np.inf


@numba.njit(cache=True, nogil=True)
def _mass_kernel(distances, near, weights, scale):  # type: ignore[no-untyped-def]
    n, k = near.shape
    weighted = weights.shape[0] == n and weights.shape[1] == k
    rows = np.empty(n * k, np.int64)
    tokens = np.empty(n * k, np.int32)
    mass = np.zeros(n * k, np.float64)
    table = table_for(k)
    keys = np.empty(k, np.int64)
    begin = 0
    for i in range(n):
        best = _largest(distances[i], near[i], scale)
        total = 0.0
        found = 0
        for j in range(k):
            if near[i, j] < 0:
                continue
            place = place_of(near[i, j], table, keys, tokens[begin:], found)
            found += place == found
            share = np.exp(-distances[i, j] * scale - best)
            if weighted:
                share *= weights[i, j]
            mass[begin + place] += share
            total += share
        for place in range(found):
            table[keys[place]] = -1
            rows[begin + place] = i
            mass[begin + place] /= total
        begin += found
    return rows[:begin], tokens[:begin], mass[:begin]


@numba.njit(cache=True, nogil=True)
def _add_kernel(log_p, rows, tokens, mass):  # type: ignore[no-untyped-def]
    for m in range(len(mass)):
        if tokens[m] < log_p.shape[1] and mass[m] > 0:
            log_p[rows[m], tokens[m]] = add_log(log_p[rows[m], tokens[m]], mass[m])


@numba.njit(cache=True, inline="always")
def add_log(log_p, mass):  # type: ignore[no-untyped-def]
    """Return log(p + mass)."""
    one = np.float64(log_p)
    other = np.log(mass)
    return max(one, other) + np.log1p(np.exp(-abs(one - other)))
