"""Products in vector registers against numpy, whatever the sizes."""

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.vectors import ROWS, distances_within, lowest_bit, multiply_matrix


@given(st.integers(0, 11), st.integers(1, 70), st.integers(1, 50), st.integers(0, 99))
def test_a_matrix_product_is_numpys_and_no_row_depends_on_others(n, m, d, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, d)).astype(np.float32)
    b = rng.normal(size=(m, d)).astype(np.float32)
    whole = multiply_matrix(a, b)
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b.T.astype(np.float64), atol=1e-5 * d)
    for row in range(n):
        np.testing.assert_array_equal(multiply_matrix(a[row : row + 1], b)[0], whole[row])


@numba.njit
def within(sums, n, constant, step, norms, limit, near):
    bits = distances_within(sums, n, constant, step, norms, limit, near)
    found = np.zeros(ROWS, np.bool_)
    while bits:
        found[lowest_bit(bits)] = True
        bits &= bits - np.uint32(1)
    return found


@given(st.floats(-3, 3, width=32), st.integers(0, 99))
def test_what_is_within_a_limit_is_told_by_bits(limit, seed):
    rng = np.random.default_rng(seed)
    sums = rng.integers(-1000, 1000, (4, ROWS)).astype(np.int32)
    norms = rng.normal(size=ROWS).astype(np.float32)
    norms[rng.integers(0, ROWS, 3)] = [np.nan, np.inf, -np.inf]
    near = np.empty(ROWS, np.float32)
    constant, step = np.float32(0.5), np.float32(1e-3)
    found = within(sums, 2, constant, step, norms, np.float32(limit), near)
    expected = constant + norms - step * sums[2].astype(np.float32)
    np.testing.assert_allclose(near, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found, near <= np.float32(limit))
