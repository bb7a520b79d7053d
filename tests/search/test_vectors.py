"""Products in vector registers against numpy, whatever the sizes."""

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.vectors import ROWS, distances_within, lowest_bit, multiply, multiply_matrix


@numba.njit
def multiply_all(a, some, b, row, every, rows, out):
    for m in range(0, len(a), some):
        multiply(a, m, some, b, row, every, rows, out[m : m + some])


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 3), st.sampled_from([1, 4]), st.integers(0, 99))
def test_integer_products_are_exact(width, rows, every, some, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**15) + 1, 2**15, (2 * some, 16 * width)).astype(np.int16)
    b = rng.integers(-128, 128, ((4 * rows + 2) * every, 16 * width)).astype(np.int8)
    out = np.zeros((2 * some, 4 * rows + 3), np.int32)
    multiply_all(a, some, b, 2, every, 4 * rows, out)
    expected = a.astype(np.int64) @ b[2 : 2 + 4 * rows * every : every].T.astype(np.int64)
    np.testing.assert_array_equal(out[:, : 4 * rows], expected)
    assert not out[:, 4 * rows :].any()


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
