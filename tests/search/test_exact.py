"""Exact search against brute force."""

import numpy as np

from calls import build_index
from nearlm.search.exact import exact_search
from nearlm.search.retriever import Retriever


def brute_force(store, queries, k):
    keys = store.keys[:].astype(np.float64)
    d = ((queries[:, None].astype(np.float64) - keys) ** 2).sum(-1)
    ids = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(d, ids, 1), ids


def test_flat_search_is_exact(store, queries):
    build_index(store, "flat", name="exact", quiet=True)
    found = Retriever(store, "exact").search(queries, 50)
    d, ids = brute_force(store, queries, 50)
    np.testing.assert_allclose(found.distances, d, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.tokens, store.values[:][found.ids])
    assert np.mean(found.ids == ids) > 0.99  # equal but for ties
    np.testing.assert_allclose(exact_search(store, queries, 50)[0], d, rtol=1e-4, atol=1e-4)
