"""What the rows of an LM's logits say of themselves: log Σ exp, the largest p, the entropy, the likeliest token."""

from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from nearlm.base.arrays import FEW

_BLOCK = 1024  # logits at a time, which stay in the first cache
_LOWEST = np.float32(-87)  # exp of less is no normal float32
_LOG2_E = np.float32(1 / np.log(2))
_LN_2 = np.float32(0.693359375)  # nine bits of it, so that its multiples are exact
_LN_2_REST = np.float32(np.log(2) - 0.693359375)
_TERMS = tuple(np.float32(1 / factorial) for factorial in (1, 1, 2, 6, 24, 120, 720))  # of exp


class Statistics(NamedTuple):
    """Of rows of logits: log Σ exp, max p, the entropy of p, and the token of max p (the first of equals)."""

    log_total: Tensor
    conf: Tensor
    ent: Tensor
    top: Tensor


def statistics_of(logits: Tensor) -> Statistics:
    """Return the statistics of rows of logits, [n, vocabulary]; of float32 on a CPU in one pass after the largest."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return _by_torch(logits)
    values = logits.contiguous().numpy()
    top = values.argmax(-1)
    sums = np.empty((3, len(values)), np.float32)
    kernel = _few_kernel if len(values) <= FEW else _statistics_kernel
    kernel(values, top, *sums)
    log_total, conf, ent = torch.from_numpy(sums)
    return Statistics(log_total, conf, ent, torch.from_numpy(top))


def _by_torch(logits: Tensor) -> Statistics:
    largest, top = logits.max(-1)
    below = logits - largest[:, None]
    p = below.exp()
    total = p.sum(-1)
    product = p.mul(below).where(p > 0, 0).sum(-1)  # 0 log 0 is 0
    return Statistics(total.log() + largest, 1 / total, total.log() - product / total, top)


@numba.njit(cache=True, parallel=True, nogil=True)
def _statistics_kernel(logits, top, log_total, conf, ent):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(logits)):
        log_total[i], conf[i], ent[i] = _describe(logits[i], logits[i, top[i]])


@numba.njit(cache=True, nogil=True)
def _few_kernel(logits, top, log_total, conf, ent):  # type: ignore[no-untyped-def]
    for i in range(len(logits)):
        log_total[i], conf[i], ent[i] = _describe(logits[i], logits[i, top[i]])


@numba.njit(cache=True)
def _describe(logits, largest):  # type: ignore[no-untyped-def]
    total, product = _sum(logits, largest)
    return np.log(total) + largest, 1 / total, np.log(total) - product / total


@numba.njit(cache=True, fastmath={"reassoc", "contract", "nnan", "nsz"})
def _sum(logits, largest):  # type: ignore[no-untyped-def]
    """Return Σ exp(x) and Σ x exp(x) for x = logit - largest.

    exp(x) = 2^n exp(r) with a whole n and |r| ≤ ln 2 / 2: its exponent's bits are n, and few terms of the series do
    for r. Unlike calls of exp, these are computed for many at once.
    """
    total = np.float64(0)
    product = np.float64(0)
    for start in range(0, len(logits), _BLOCK):
        here = logits[start : start + _BLOCK]
        some = np.float32(0)
        some_product = np.float32(0)
        for j in range(len(here)):
            x = max(here[j] - largest, _LOWEST)
            n = np.floor(x * _LOG2_E + np.float32(0.5))
            r = (x - n * _LN_2) - n * _LN_2_REST
            p = _series(r) * _power_of_two(np.int32(n))
            some += p
            some_product += p * x
        total += some
        product += some_product
    return total, product


@numba.njit(cache=True, inline="always")
def _series(r):  # type: ignore[no-untyped-def]
    """Return the first terms of exp(r)."""
    p = _TERMS[6]
    for term in range(5, -1, -1):
        p = p * r + _TERMS[term]
    return p


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(context: Any, n: Any) -> Any:
    """Return 2^n as the float32 whose exponent's bits are n."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.add(arguments[0], ir.IntType(32)(127)), ir.IntType(32)(23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), codegen
