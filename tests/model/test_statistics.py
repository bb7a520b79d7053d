"""The statistics of logits against numpy in float64, however they are computed."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearlm.model.statistics import statistics_of


def by_numpy(logits):
    x = logits.double().numpy()
    largest = x.max(1, keepdims=True)
    p = np.exp(x - largest)
    log_total = np.log(p.sum(1)) + largest[:, 0]
    p /= p.sum(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ent = -np.nan_to_num(p * np.log(p)).sum(1)
    return log_total, p.max(1), ent, x.argmax(1)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 1024, 3000]), st.sampled_from([0.0, 0.1, 3.0, 30.0, 1000.0]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_are_those_of_the_equations(dtype, seed, vocabulary, spread):
    rng = np.random.default_rng(seed)
    logits = torch.tensor(spread * rng.normal(size=(3, vocabulary)) + rng.normal(), dtype=dtype)
    logits[0, ::3] = -torch.inf
    logits[0, 0] = 1
    found = statistics_of(logits)
    for one, expected in zip(found, by_numpy(logits), strict=True):
        np.testing.assert_allclose(one.numpy(), expected, rtol=2e-6, atol=2e-6)
    assert found.conf.dtype == dtype


def test_a_row_does_not_depend_on_its_batch_nor_on_threads():
    logits = 5 * torch.randn(40, 2000, generator=torch.Generator().manual_seed(0))
    together = statistics_of(logits)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    alone = [statistics_of(row[None]) for row in logits]
    numba.set_num_threads(before)
    for name in together._fields:
        assert torch.equal(torch.cat([getattr(one, name) for one in alone]), getattr(together, name))
    columns = statistics_of(logits.T.contiguous().T)  # not contiguous
    assert torch.equal(columns.ent, together.ent)


def test_the_first_of_equals_is_the_likeliest():
    for dtype in (torch.float32, torch.float64):
        assert statistics_of(torch.tensor([[0, 2, 1, 2]], dtype=dtype)).top.tolist() == [1]
