"""Selection of the nearest against sorting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.nearest import guess_limits, nearest_lists, select
from nearlm.search.visits import Kept, Visits


def select_from(values, cut, k, ordered):
    """Select from the candidates of one query, which lie in two lists: the second list is probed first."""
    offsets = np.array([0, len(values) - cut, len(values)])
    visits = Visits.plan(np.array([[1, 0]]), offsets)
    kept = Kept(
        values, np.concatenate((np.arange(cut), np.arange(len(values) - cut))).astype(np.int32), np.zeros(2, np.int32)
    )
    kept.counts[:] = cut, len(values) - cut
    ids_in_lists = np.arange(len(values))[::-1].copy()
    distances = np.full((1, k), np.inf, np.float32)
    ids = np.full((1, k), -1)
    missed = select(kept, np.full(1, np.inf, np.float32), visits, offsets, ids_in_lists, ordered, distances, ids)
    by_id = np.empty_like(values)
    by_id[ids_in_lists] = np.concatenate((values[cut:], values[:cut]))
    return distances[0], ids[0], by_id, missed[0]


@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 5), st.booleans())
def test_the_nearest_are_kept_whatever_the_ties(count, k, levels, ordered):
    rng = np.random.default_rng(count * 1000 + k)
    values = rng.random(count * 40, np.float32)
    if levels:
        values = rng.integers(0, levels + 1, count * 40).astype(np.float32)
    distances, ids, by_id, missed = select_from(values, 7, k, ordered)
    kept = min(k, len(values))
    assert not missed
    np.testing.assert_array_equal(np.sort(distances[:kept]), np.sort(values)[:kept])
    assert len(set(ids[:kept])) == kept and (ids[kept:] == -1).all()
    np.testing.assert_array_equal(by_id[ids[:kept]], distances[:kept])
    assert not ordered or (np.diff(distances[:kept]) >= 0).all()


@given(st.integers(50, 3000), st.integers(1, 60), st.lists(st.sampled_from([np.inf, -np.inf, 3e38]), max_size=40))
def test_infinite_distances_are_no_nearest(count, k, odd):
    """As an index or a query may hold them; they once led the selection outside its bins."""
    rng = np.random.default_rng(count * 100 + k)
    values = rng.random(count, np.float32)
    values[rng.integers(0, count, len(odd))] = odd
    distances, ids, _, _ = select_from(values, 7, k, True)
    np.testing.assert_array_equal(distances, np.maximum(np.sort(values)[:k], 0))
    assert len(set(ids)) == k


def test_a_query_with_too_few_within_its_limit_is_named():
    kept = Kept(np.ones(30, np.float32), np.arange(30, dtype=np.int32), np.array([4, 20], np.int32))
    offsets = np.array([0, 10, 30])
    visits = Visits.plan(np.array([[0], [1]]), offsets)
    distances = np.full((2, 5), np.inf, np.float32)
    ids = np.full((2, 5), -1)
    limits = np.full(2, 2, np.float32)
    assert select(kept, limits, visits, offsets, np.arange(30), True, distances, ids).tolist() == [True, False]
    assert (ids[0] == -1).all() and (ids[1] >= 10).all()
    limits[:] = np.inf  # what is no number is never kept, so that there are no more
    assert not select(kept, limits, visits, offsets, np.arange(30), True, distances, ids).any()
    assert ids[0].tolist() == [0, 1, 2, 3, -1]


@given(st.integers(100, 20_000), st.integers(1, 1500), st.integers(0, 99))
def test_a_guessed_limit_holds_a_few_more_than_k(total, k, seed):
    """Of the sample that a limit is guessed from every 16th candidate is one."""
    values = np.random.default_rng(seed).random(total, np.float32)
    offsets = np.array([0, total])
    visits = Visits.plan(np.array([[0]]), offsets)
    sampled = visits.sample(offsets, 16)
    limit = guess_limits(values[::16].copy(), sampled, visits, k)[0]
    within = (values <= limit).sum()
    assert within >= min(k, total) * 0.9  # if a guess is too low, all are looked at
    assert np.isinf(limit) or within <= k + 8 * np.sqrt(16 * k) + 300


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_the_nearest_lists_are_found(lists, nprobe, seed):
    rng = np.random.default_rng(seed)
    products = rng.integers(0, 20, (3, lists)).astype(np.float32)
    squares = rng.integers(0, 20, lists).astype(np.float32)
    nprobe = min(nprobe, lists)
    expected = np.argsort(squares - 2 * products, axis=1, kind="stable")[:, :nprobe]
    np.testing.assert_array_equal(nearest_lists(products, squares, nprobe), expected)
    products[1] = np.nan
    assert (nearest_lists(products, squares, nprobe)[1] == -1).all()
