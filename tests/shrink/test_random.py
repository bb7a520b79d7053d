"""Random pruning against numpy's own choice."""

import numpy as np
import pytest

from calls import prune_store
from synthetic import make_store


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(5)
    keys = rng.normal(0, 1, (230, 5)).astype(np.float16)
    return make_store(tmp_path / "store", keys, rng.integers(0, 9, 230), shard=100)


def test_random_keeps_the_seeded_share(store, tmp_path):
    made = prune_store(store, "random", tmp_path / "1", keep=0.6, seed=4, quiet=True)
    expected = np.sort(np.random.default_rng(4).choice(230, 138, replace=False))
    np.testing.assert_array_equal(made.origin[:] - 1, expected)
    again = prune_store(store, "random", tmp_path / "2", keep=0.6, seed=4, quiet=True)
    assert again.manifest.files == made.manifest.files
    assert prune_store(store, "random", tmp_path / "3", keep=0.6, quiet=True).manifest.files != made.manifest.files
    assert len(prune_store(store, "random", tmp_path / "4", keep=1e-9, quiet=True)) == 1
    assert made.next_record(0) == made.record_at(int(made.origin[0]) + 1)
    assert made.record_at(0) == made.record_at(10**9) == -1
