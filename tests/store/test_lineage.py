"""The parent of a store: opened where it was, and its records found there."""

import numpy as np
import pytest

from calls import build_index, prune_store, reduce_store
from nearlm.base.errors import OptionError, StoreError
from nearlm.search.retriever import Retriever
from nearlm.store import open_parent, parent_records
from synthetic import make_store, skewed_store


@pytest.fixture
def store(tmp_path):
    return skewed_store(tmp_path / "store")


def test_a_parent_that_is_gone_or_changed_is_named(store, tmp_path):
    made = reduce_store(store, 6, tmp_path / "made", quiet=True)
    build_index(made, "flat", quiet=True)
    with pytest.raises(OptionError, match="no parent"):
        build_index(store, "flat", quiet=True)
        Retriever(store, distances="parent")
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"no longer at .*store"):
        Retriever(made, distances="parent")
    make_store(tmp_path / "store", np.ones((4, 12), np.float16), [1, 2, 3, 4])
    with pytest.raises(StoreError, match="has changed since"):
        Retriever(made, distances="parent")
    assert len(Retriever(made).search(np.ones((1, 12), np.float32), 3).ids) == 1


def test_parent_distances_after_pruning_are_the_parents(store, tmp_path):
    made = prune_store(store, "rank", tmp_path / "made", keep=0.3, quiet=True)
    build_index(made, "SQ4", quiet=True)
    queries = store.keys[:9].astype(np.float32)
    near, own = (Retriever(made, distances=which).search(queries, 12) for which in ("parent", "store"))
    np.testing.assert_array_equal(near.ids, own.ids)
    np.testing.assert_allclose(near.distances, own.distances, rtol=1e-6)


def test_every_record_is_found_in_its_parent(store, tmp_path):
    made = prune_store(store, "random", tmp_path / "made", keep=0.4, quiet=True)
    parent = open_parent(made)
    assert parent.checksum == store.checksum
    ids = parent_records(made, parent)
    for name in ("keys", "values", "origin"):
        np.testing.assert_array_equal(getattr(parent, name).take(ids), getattr(made, name)[:])


def test_centroids_are_nowhere_in_the_parent(store, tmp_path):
    made = prune_store(store, "kmeans", tmp_path / "made", ratio=5.0, quiet=True)
    with pytest.raises(OptionError, match="centroids, which its parent does not hold"):
        parent_records(made, open_parent(made))
