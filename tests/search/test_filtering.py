"""Searches around what was forgotten, in any index."""

import numpy as np

from nearlm.search.filtering import search_around


def nearest(keys):
    def search(queries, k):
        distances = np.abs(queries - keys[None, :, 0])
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, order, 1).astype(np.float32), order

    return search


def test_the_k_nearest_of_what_remains_are_found_however_many_are_gone():
    keys = np.arange(1000, dtype=np.float32)[:, None]
    queries = np.array([[0.0], [400.0], [999.0]], np.float32)
    gone = np.zeros(1000, bool)
    gone[250:750] = True
    distances, ids = search_around(nearest(keys), queries, 10, 1000, gone)
    left = np.flatnonzero(~gone)
    for row, query in enumerate(queries[:, 0]):
        order = np.argsort(np.abs(keys[left, 0] - query), kind="stable")[:10]
        assert ids[row].tolist() == left[order].tolist()
        assert distances[row].tolist() == np.abs(keys[left[order], 0] - query).tolist()


def test_where_fewer_remain_the_rest_is_filled_up():
    gone = np.ones(100, bool)
    gone[[3, 50]] = False
    distances, ids = search_around(
        nearest(np.arange(100, dtype=np.float32)[:, None]), np.zeros((2, 1), np.float32), 5, 100, gone
    )
    assert ids.tolist() == [[3, 50, -1, -1, -1]] * 2
    assert np.isinf(distances[:, 2:]).all()


def test_lists_that_hold_less_than_k_end_the_search():
    def few(queries, k):
        return np.zeros((len(queries), k), np.float32), np.where(np.arange(k) < 4, np.arange(k), -1)[None]

    gone = np.zeros(1000, bool)
    gone[1] = True
    assert search_around(few, np.zeros((1, 1), np.float32), 5, 1000, gone)[1].tolist() == [[0, 2, 3, -1, -1]]
