"""Products of tiles against numpy, whatever the sizes, for each kind of processor that code is made for."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import binding

from nearlm.search import tiles
from nearlm.search.packing import pack
from nearlm.search.tiles import NIBBLE_OFFSET, PACKED_LANES, products
from nearlm.search.vectors import multiply


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


def packed_products(multiply, a, codes, rows):
    """Multiply 8-bit weights [m, d] with 4-bit codes by a tile of four queries, or one."""
    half = -(-codes.shape[1] // 2)
    width = -(-half // PACKED_LANES) * PACKED_LANES
    bytes_ = np.zeros((len(codes), width), np.int8)
    bytes_[:, :half] = pack(codes, 4).view(np.int8)
    weights = np.zeros((len(a), 2 * width), np.int8)
    weights[:, :half] = a[:, :half]
    weights[:, width : width + a.shape[1] - half] = a[:, half:]
    out = np.zeros((len(a), rows), np.int32)
    multiply(weights, len(a), bytes_, 0, 1, rows, out)
    return out


def some_packed(seed, some, rows, dim):
    rng = np.random.default_rng(seed)
    codes = rng.integers(-8, 8, (rows, dim)).astype(np.int8)
    a = rng.integers(-127, 128, (some, dim)).astype(np.int8)
    codes[0], a[0], a[-1] = 7, 127, -127 if some > 1 else 127  # the largest sums there can be
    return a, codes, a.astype(np.int64) @ (codes.astype(np.int64) + NIBBLE_OFFSET).T


@given(st.integers(1, 700), st.integers(1, 8), st.sampled_from([1, 4]), st.integers(0, 99))
def test_products_of_packed_codes_are_exact(dim, rows, some, seed):
    a, codes, expected = some_packed(seed, some, 4 * rows, dim)
    np.testing.assert_array_equal(packed_products(multiply_all, a, codes, 4 * rows), expected)


@pytest.mark.parametrize("features", [[], ["+avx2"], ["+avxvnni"], ["+avx512vnni", "+avx512vl"]])
@pytest.mark.parametrize(("some", "rows"), [(4, 2), (1, 4)])
def test_products_are_the_same_on_every_processor(monkeypatch, features, some, rows):
    can = binding.get_host_cpu_features()
    if not all(can.get(feature[1:]) for feature in features):
        pytest.skip(f"this processor has no {' '.join(features)}")
    monkeypatch.setattr(tiles, "_features", lambda context: features)
    tile = products(some, rows)

    @numba.njit
    def multiply_few(a, some, b, row, every, rows_, out):
        tile(a, 0, b, row, every, out, 0)

    for dim in (1, 64, 192, 576, 1001):
        a, codes, expected = some_packed(dim, some, rows, dim)
        np.testing.assert_array_equal(packed_products(multiply_few, a, codes, rows), expected)
