"""Two codes in a byte, here and in FAISS."""

import faiss
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.packing import pack, pack_like_faiss, unpack, unpack_from_faiss


@given(st.integers(1, 40), st.integers(0, 9), st.sampled_from([4, 8]), st.integers(0, 99))
def test_codes_come_out_as_they_went_in(dim, rows, bits, seed):
    top = 1 << (bits - 1)
    codes = np.random.default_rng(seed).integers(-top, top, (rows, dim)).astype(np.int8)
    kept = pack(codes, bits)
    assert kept.dtype == (np.int8 if bits == 8 else np.uint8) and kept.shape == (rows, -(-dim * bits // 8))
    np.testing.assert_array_equal(unpack(kept, dim), codes)
    np.testing.assert_array_equal(unpack_from_faiss(pack_like_faiss(codes, bits), dim, bits), codes)


def test_bytes_are_those_of_faiss():
    for bits, kind in ((8, faiss.ScalarQuantizer.QT_8bit), (4, faiss.ScalarQuantizer.QT_4bit)):
        keys = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
        quantizer = faiss.ScalarQuantizer(7, kind)
        quantizer.train(keys)
        raw = quantizer.compute_codes(keys)
        codes = unpack_from_faiss(raw, 7, bits)
        np.testing.assert_array_equal(pack_like_faiss(codes, bits), raw)
        step = np.ptp(keys, axis=0) / (2**bits - 1)
        np.testing.assert_allclose(
            (codes.astype(float) + 2 ** (bits - 1) + 0.5) * step + keys.min(0), keys, atol=step.max()
        )
