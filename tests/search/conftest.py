"""A store to index, and queries near its keys."""

import numpy as np
import pytest

from calls import build
from tiny import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("index")
    for number in range(3):
        (folder / f"train{number}.txt").write_text(make_text(400, seed=number))
    return build(lm, str(folder), folder / "store", window=64, shard_records=700, quiet=True)


@pytest.fixture
def queries(store):
    rng = np.random.default_rng(0)
    return (store.keys.take(rng.integers(0, len(store), 20)) + rng.normal(0, 0.3, (20, 32))).astype(np.float32)
