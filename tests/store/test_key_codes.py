"""8-bit keys against rounding in numpy; how a build fits their scales, and what opens such a store."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import build
from nearlm.base import ArrayFile, ShardedArray, StoreError
from nearlm.search import Retriever, build_index
from nearlm.store import CodedKeys, Datastore, KeyCodec
from nearlm.store.key_codes import count_clipped
from synthetic import make_store, skewed_store


@given(st.integers(0, 2**32 - 1), st.floats(-100, 100), st.floats(0.1, 1e3))
def test_a_key_is_as_near_as_half_a_step_and_ends_are_those_beyond_six_deviations(seed, middle, spread):
    keys = np.random.default_rng(seed).standard_t(3, (400, 3)) * spread + middle
    codec = KeyCodec.fit(keys)
    deviations = np.abs(keys - keys.mean(0)) / keys.std(0)
    codes = codec.encode(keys.astype(np.float32))
    inside = deviations < 5.99
    error = np.abs(codec.decode(codes) - keys)
    rounding = 1e-6 * np.abs(keys)
    assert (error <= codec.step * 0.501 + rounding)[inside].all()
    assert (np.abs(codes) == 127)[deviations > 6.01].all() and not (np.abs(codes) == 127)[inside].any()
    np.testing.assert_array_equal(codec.encode(codec.decode(codes)), codes)


def test_an_axis_without_any_spread_keeps_its_value_and_some_room():
    keys = np.random.default_rng(0).normal(0, 1, (50, 3)).astype(np.float32)
    keys[:, 1] = 7
    codec = KeyCodec.fit(keys)
    assert np.isfinite(codec.step).all() and (codec.step > 0).all()
    np.testing.assert_array_equal(codec.decode(codec.encode(keys))[:, 1], 7)
    moved = keys + np.array([0, 1e-3, 0], np.float32)
    np.testing.assert_allclose(codec.decode(codec.encode(moved))[:, 1], 7.001, atol=codec.step[1])
    assert (KeyCodec.fit(np.ones((4, 2), np.float32) * 0).step > 0).all()


def test_coded_keys_are_read_like_an_array():
    rng = np.random.default_rng(2)
    codes = rng.integers(-127, 128, (20, 3)).astype(np.int8)
    codec = KeyCodec(np.array([1, -2, 30], np.float32), np.array([0.5, 0.25, 2], np.float32))
    keys = CodedKeys(ShardedArray([codes[:7], codes[7:]]), codec)
    want = np.array([1, -2, 30]) + codes * [0.5, 0.25, 2]
    assert keys.dtype == np.float32 and keys.shape == (20, 3) and len(keys) == 20
    for item in (4, -1, slice(5, 9), slice(0, 20, 3), slice(None)):
        np.testing.assert_array_equal(keys[item], want[item])
        assert keys[item].dtype == np.float32
    np.testing.assert_array_equal(keys.take([[3, 19], [0, 3]]), want[[[3, 19], [0, 3]]])
    np.testing.assert_array_equal(np.asarray(keys), want)


def test_a_build_rounds_the_keys_of_the_model_and_counts_what_it_clips(make, tmp_path):
    exact, store = (make(kind, key_dtype=kind, max_tokens=900) for kind in ("float32", "int8"))
    keys = exact.keys[:]
    middle, step = np.load(tmp_path / "int8" / "scales.npy")
    assert len(store) < 1024  # so that scales come from every record
    np.testing.assert_allclose(middle, keys.mean(0), atol=1e-5)
    np.testing.assert_allclose(step, keys.std(0) * 6 / 126.5, rtol=1e-4)
    beyond = np.abs(keys - middle) / step >= 126.5
    assert store.manifest.clipped == beyond.sum()
    assert (np.abs(store.keys[:] - keys) <= step * 0.501)[~beyond].all()
    assert store.manifest.format == 3 and store.summary()["clipped"] == beyond.sum() and "int8" in repr(store)
    assert store.bytes < make("half", max_tokens=900).bytes
    store.verify()


def test_scales_come_from_windows_all_over_a_long_text(lm, tmp_path, monkeypatch):
    from nearlm.store import shards
    from tiny import make_text

    monkeypatch.setattr(shards, "_FEWEST_FITTED", 64)
    seen = []
    real = shards._some_keys
    monkeypatch.setattr(shards, "_some_keys", lambda *given: seen.append(real(*given)) or seen[-1])
    (tmp_path / "long.txt").write_text(make_text(900, seed=4))
    store = build(lm, str(tmp_path / "long.txt"), tmp_path / "store", quiet=True, window=16, key_dtype="int8")
    (sample,) = seen
    assert len(store) / 17 < len(sample) < len(store) / 12
    keys = build(lm, str(tmp_path / "long.txt"), tmp_path / "exact", quiet=True, window=16, key_dtype="float32").keys[:]
    rows = [int(np.abs(keys - one).sum(1).argmin()) for one in sample[15::16]]
    assert min(rows) < len(keys) / 10 and max(rows) > len(keys) * 0.8
    np.testing.assert_allclose(store.codec.middle, sample.mean(0), atol=1e-5)


def test_searches_find_what_the_same_keys_in_float32_have(tmp_path):
    plain, store = skewed_store(tmp_path / "plain"), skewed_store(tmp_path / "coded", coded=True)
    queries = np.asarray(plain.keys[:30], np.float32)
    for each in (plain, store):
        build_index(each, "IVF8,SQ8")
    near = Retriever(store, distances="store", nprobe=8).search(queries, 10)
    true = ((store.keys[:] - queries[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(near.distances, np.take_along_axis(true, near.ids, 1), rtol=1e-4, atol=1e-4)
    exact = np.argsort(((np.asarray(plain.keys[:], np.float32) - queries[:, None]) ** 2).sum(-1), 1)[:, :10]
    same = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(near.ids, exact, strict=True)])
    assert same > 0.9


@pytest.mark.parametrize("scales", [[[0, np.nan], [1, 1]], [[0, 0], [1, 0]], [[0, 0], [np.inf, 1]]])
def test_scales_that_cannot_be_are_refused(tmp_path, scales):
    file = ArrayFile(tmp_path / "scales.npy", np.dtype("float32"), (2, 2))
    file.write(scales)
    with pytest.raises(StoreError, match=r"scales\.npy has scales that cannot be; restore it"):
        KeyCodec.read(file)


def test_a_store_whose_scales_are_missing_or_changed_is_refused(tmp_path):
    store = skewed_store(tmp_path / "store", coded=True)
    scales = tmp_path / "store" / "scales.npy"
    data = bytearray(scales.read_bytes())
    data[-1] ^= 1
    scales.write_bytes(data)
    with pytest.raises(StoreError, match="scales"):
        Datastore.open(store.path)
    scales.unlink()
    with pytest.raises(StoreError, match=r"scales\.npy is missing"):
        Datastore.open(store.path)


def test_other_keys_have_no_scales_and_8_bit_ones_do(tmp_path):
    for name, coded, word in (("plain", False, "int8"), ("coded", True, "float16")):
        store = skewed_store(tmp_path / name, coded=coded)
        manifest = json.loads((store.path / "manifest.json").read_text())
        assert ("scales.npy" in manifest["files"]) == coded
        assert word != manifest["key_dtype"]


def test_what_is_clipped_is_counted_in_codes_alone(tmp_path):
    keys = np.array([[127, -127, 3], [-128 + 2, 127, 0]], np.float16)
    for dtype, count in (("int8", 3), ("float16", 0)):
        file = ArrayFile(tmp_path / f"{dtype}.npy", np.dtype(dtype), keys.shape)
        file.write(keys.astype(dtype))
        assert count_clipped(file) == count
    assert make_store(tmp_path / "store", keys, [1, 2]).manifest.clipped == 0
