"""Distances from the stored keys against the equation."""

import numpy as np
import pytest

from nearlm.base import files
from nearlm.base.arrays import ArrayFile, ShardedArray
from nearlm.search import rescoring as rescore
from synthetic import skewed_store


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("in_memory", [True, False])
def test_rescoring_equals_the_equation(tmp_path, monkeypatch, dtype, in_memory):
    rng = np.random.default_rng(0)
    keys = (rng.normal(size=(900, 24)) * 10.0 ** rng.integers(-6, 3, (900, 24))).astype(dtype)
    shards = []
    for number, part in enumerate((keys[:500], keys[500:501], keys[501:])):
        file = ArrayFile(tmp_path / f"{number}.npy", np.dtype(dtype), part.shape)
        files.write_array(file.path, file.dtype, file.shape, [part])
        shards.append(file.open())
    monkeypatch.setattr(rescore, "_fits", lambda count: in_memory)
    queries, ids = rng.normal(size=(150, 24)).astype(np.float32), rng.integers(-1, 900, (150, 40))
    rescorer = rescore.Rescorer(ShardedArray(shards))
    found = rescorer.distances(queries, ids)
    true = ((keys[ids].astype(np.float64) - queries[:, None]) ** 2).sum(-1)
    few = [rescorer.distances(queries[rows], ids[rows]) for rows in (slice(0, 1), slice(1, 8), slice(8, 20))]
    np.testing.assert_array_equal(np.concatenate(few), found[:20])  # whichever kernel computes them
    np.testing.assert_allclose(found, np.where(ids < 0, np.inf, true), rtol=1e-5, atol=1e-6)


def test_8_bit_keys_are_compared_as_what_they_stand_for(tmp_path):
    rng = np.random.default_rng(1)
    store = skewed_store(tmp_path / "store", coded=True)
    queries, ids = rng.normal(3, 1, (40, 12)).astype(np.float32), rng.integers(-1, 500, (40, 30))
    found = rescore.Rescorer(store.keys).distances(queries, ids)
    codes = np.concatenate(store.keys.shards)[ids].astype(np.float64)
    middle, step = np.load(tmp_path / "store" / "scales.npy").astype(np.float64)
    true = ((middle + step * codes - queries[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(found, np.where(ids < 0, np.inf, true), rtol=1e-5, atol=1e-6)


def test_pages_of_an_array_in_memory_are_not_asked_for():
    rescore._advise(np.ones(5), 0, 5)
