"""Centroids of many lists, in two levels."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.clustering import _share, two_level_centroids


def test_two_levels_are_nearly_as_close_as_one():
    rng = np.random.default_rng(0)
    keys = (rng.normal(size=(50, 8))[rng.integers(0, 50, 6000)] * 4 + rng.normal(size=(6000, 8))).astype(np.float32)
    means, groups = two_level_centroids(keys, 100, 10)
    assert means.shape == (100, 8) and len(groups) == 100 and groups.max() < 10

    def error(centroids):
        return ((keys[:, None] - centroids) ** 2).sum(-1).min(1).mean()

    some = keys[rng.choice(6000, 100, replace=False)]
    for _ in range(10):  # plain k-means
        nearest = ((keys[:, None] - some) ** 2).sum(-1).argmin(1)
        some = np.stack([keys[nearest == i].mean(0) if (nearest == i).any() else some[i] for i in range(100)])
    assert error(means) < 1.1 * error(some)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.floats(0.01, 1))
def test_shares_add_up_and_go_by_size(sizes, part):
    sizes = np.array([*sizes, 5])
    count = max(1, int(part * sizes.sum()))
    shares = _share(sizes, count)
    assert shares.sum() == count and (shares >= 0).all() and (shares <= sizes).all()
    exact = sizes * count / sizes.sum()
    assert (np.abs(shares - np.minimum(exact, sizes)) < 1 + 1e-9).all()


def test_as_many_centroids_as_keys_are_the_keys():
    keys = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.testing.assert_array_equal(np.sort(two_level_centroids(keys, 6, 2)[0], axis=0), keys)
