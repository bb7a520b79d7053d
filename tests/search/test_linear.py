"""Principal axes against numpy."""

import numpy as np
import pytest

from nearlm.search.linear import principal_axes


@pytest.mark.parametrize("power", [0.0, -0.25, -0.5])
def test_principal_axes_scale_by_variance_and_keep_its_total(power):
    rng = np.random.default_rng(0)
    keys = (rng.normal(size=(4000, 12)) * np.geomspace(8, 0.5, 12) + 3).astype(np.float32)
    out = principal_axes(keys, 6, power).apply(keys).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(keys.T.astype(np.float64)))
    values, vectors = values[::-1][:6], vectors[:, ::-1][:, :6]
    expected = (keys - keys.mean(0)) @ vectors * values**power
    expected *= np.sqrt(values.sum() / expected.var(0).sum())
    np.testing.assert_allclose(np.abs(out), np.abs(expected), rtol=1e-2, atol=2e-2)


def test_principal_axes_of_keys_without_variance_are_finite():
    keys = np.zeros((100, 8), np.float32)
    keys[:, 0] = np.arange(100)
    assert np.isfinite(principal_axes(keys, 8, -0.5).apply(keys)).all()
    assert np.isfinite(principal_axes(keys * 0, 8, -0.5).apply(keys)).all()
