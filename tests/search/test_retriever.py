"""Retrieval: padding, missing neighbours, true distances."""

import numpy as np

from calls import build, build_index
from nearlm.search.retriever import Retriever


def test_fewer_records_than_k_and_an_empty_list_are_padded(tmp_path, lm):
    (tmp_path / "t.txt").write_text("the licence")
    small = build(lm, str(tmp_path / "t.txt"), tmp_path / "s", quiet=True)
    build_index(small, quiet=True)
    found = Retriever(small).search(np.zeros((2, 32), np.float32), 1024)
    assert found.ids.shape == (2, len(small)) and set(found.ids[0]) == set(range(len(small)))
    (tmp_path / "one.txt").write_text("x")
    one = build(lm, str(tmp_path / "one.txt"), tmp_path / "s1", separator="none", quiet=True)
    build_index(one, quiet=True)
    assert len(one) == 1 and Retriever(one).search(np.ones((1, 32), np.float32)).tokens.tolist() == [[one.values[0]]]


def test_missing_neighbours_have_token_minus_one(store):
    build_index(store, "IVF64,Flat", name="lists", nprobe=1, quiet=True)
    found = Retriever(store, "lists").search(store.keys[:5].astype(np.float32), len(store))
    missing = found.ids < 0
    assert missing.any()
    assert (found.tokens[missing] == -1).all() and np.isinf(found.distances[missing]).all()
    assert (found.tokens[~missing] >= 0).all()


def test_store_distances_are_the_true_ones_in_order(store, queries):
    build_index(store, "IVF16,PQ8x4", name="coarse", nprobe=16, quiet=True)
    rough = Retriever(store, "coarse").search(queries, 60)
    found = Retriever(store, "coarse", distances="store").search(queries, 60)
    keys = store.keys[:].astype(np.float64)
    for row in range(len(queries)):
        assert set(found.ids[row]) == set(rough.ids[row])
        true = ((keys[found.ids[row]] - queries[row]) ** 2).sum(1)
        np.testing.assert_allclose(found.distances[row], true, rtol=1e-5, atol=1e-5)
    assert (np.diff(found.distances, axis=1) >= 0).all()
