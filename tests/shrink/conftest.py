"""Stores to make smaller."""

import numpy as np
import pytest

from synthetic import make_store


@pytest.fixture
def places(tmp_path):
    """A store of few places and few tokens: much to merge."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3, (300, 3)) + rng.normal(0, 0.05, (300, 3))
    return make_store(tmp_path / "places", keys.astype(np.float16), rng.integers(0, 5, 300), shard=120)
