"""Target-aware k-means against Lloyd's algorithm in numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import build_index, prune_store
from nearlm.base.errors import OptionError
from nearlm.search.retriever import Retriever
from nearlm.shrink import kmeans
from nearlm.shrink.kmeans import ITERATIONS, cluster, frequent_runs, plan_parts
from synthetic import make_store


def lloyd(keys, start, weights):
    """Assign and average as often as FAISS does, then once more; return labels, means and nearest members."""
    x, centres = keys.astype(np.float64), keys[start].astype(np.float64)
    for _ in range(ITERATIONS + 1):
        labels = ((x[:, None] - centres) ** 2).sum(-1).argmin(1)
        for c in range(len(centres)):
            members = labels == c
            assert members.any(), "the case is not fit for a comparison: FAISS would split a cluster"
            centres[c] = np.average(x[members], axis=0, weights=weights[members])
    off = ((x - centres[labels]) ** 2).sum(1)
    nearest = [np.flatnonzero(labels == c)[off[labels == c].argmin()] for c in range(len(centres))]
    return labels, centres, nearest


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("weighted", [False, True])
def test_a_group_is_clustered_as_lloyd_would(seed, weighted):
    rng = np.random.default_rng(seed)
    keys = rng.normal(0, 1, (60, 4)).astype(np.float32)
    weights = rng.integers(1, 9, 60).astype(np.int32) if weighted else None
    labels, centres, nearest = cluster(keys, 4, np.random.default_rng(7), weights)
    start = np.sort(np.random.default_rng(7).choice(60, 4, replace=False))
    expected = lloyd(keys, start, np.ones(60) if weights is None else weights)
    np.testing.assert_array_equal(labels, expected[0])
    np.testing.assert_allclose(centres, expected[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(nearest, expected[2])


@pytest.fixture
def store(tmp_path):
    """Token 1 has 100 records, token 2 has 41, token 3 has 7, token 4 one, others two each."""
    rng = np.random.default_rng(2)
    values = np.repeat([1, 2, 3, 4, 5, 6], [100, 41, 7, 1, 2, 2])
    rng.shuffle(values)
    return make_store(tmp_path / "store", rng.normal(0, 1, (len(values), 4)).astype(np.float16), values, shard=60)


def group(store, token):
    return np.flatnonzero(store.values[:] == token)


def test_frequent_tokens_become_their_clusters_and_others_stay(store, tmp_path):
    made = prune_store(store, "kmeans", tmp_path / "made", top_tokens=3, quiet=True)
    counts = {int(t): int((made.values[:] == t).sum()) for t in np.unique(made.values[:])}
    assert counts == {1: 5, 2: 2, 3: 1, 4: 1, 5: 2, 6: 2}
    for token in (1, 2, 3):
        members = group(store, token)
        labels = made.assign[members + 1]
        for record in group(made, token):
            mine = members[labels == record]
            keys = store.keys.take(mine).astype(np.float64)
            assert made.weights[record] == len(mine) == len(made.positions_of(record))
            np.testing.assert_allclose(made.keys[int(record)], keys.mean(0), rtol=1e-3, atol=1e-3)
            nearest = mine[((keys - keys.mean(0)) ** 2).sum(1).argmin()]
            assert made.origin[record] == nearest + 1
    for token in (4, 5, 6):
        np.testing.assert_array_equal(made.keys.take(group(made, token)), store.keys.take(group(store, token)))
        assert (made.weights.take(group(made, token)) == 1).all()
    assert (np.diff(made.origin[:]) > 0).all()
    with pytest.raises(OptionError, match="centroids"):
        build_index(made, "flat", quiet=True)
        Retriever(made, distances="parent")
    pruned = prune_store(made, "random", tmp_path / "pruned", keep=0.5, quiet=True)
    build_index(pruned, "flat", quiet=True)
    assert Retriever(pruned, distances="parent").search(np.zeros((1, 4), np.float32), 3).ids.shape == (1, 3)


def test_clusters_come_from_lloyd_with_the_seeded_start(store, tmp_path):
    made = prune_store(store, "kmeans", tmp_path / "made", top_tokens=1, ratio=25, seed=9, quiet=True)
    members = group(store, 1)
    start = np.sort(np.random.default_rng([9, 0]).choice(100, 4, replace=False))
    labels, centres, nearest = lloyd(store.keys.take(members).astype(np.float32), start, np.ones(100))
    order = np.argsort(members[nearest])
    np.testing.assert_allclose(made.keys.take(group(made, 1)), centres[order], rtol=1e-3, atol=1e-3)
    assert made.weights.take(group(made, 1)).tolist() == np.bincount(labels)[order].tolist()


@pytest.mark.parametrize("keep", [1.0, 0.8, 0.3, 0.1])
def test_keep_is_reached_closely_from_below(store, tmp_path, keep):
    made = prune_store(store, "kmeans", tmp_path / "made", keep=keep, quiet=True)
    assert keep * 153 - 4 <= len(made) <= keep * 153 + 0.5
    assert made.weights[:].sum() == 153


def test_a_share_out_of_reach_names_the_least(store, tmp_path):
    with pytest.raises(OptionError, match=r"leaves 7 of 153 records.*least that can be reached is `keep=0\.0458"):
        prune_store(store, "kmeans", tmp_path / "made", keep=0.01, top_tokens=4, quiet=True)


def test_duplicates_leave_no_empty_cluster_behind(tmp_path):
    keys = np.repeat(np.eye(3, dtype=np.float16), [30, 20, 10], axis=0)
    store = make_store(tmp_path / "store", keys, np.zeros(60, int))
    made = prune_store(store, "kmeans", tmp_path / "made", ratio=3, quiet=True)
    assert 3 <= len(made) <= 20 and made.weights[:].sum() == 60 and (made.weights[:] > 0).all()
    np.testing.assert_array_equal(np.unique(made.keys[:], axis=0), np.unique(keys, axis=0))


def test_a_weighted_store_is_clustered_by_weight(store, tmp_path):
    merged = prune_store(store, "merge", tmp_path / "merged", neighbors=20, quiet=True)
    assert merged.weights[:].max() > 2
    made = prune_store(merged, "kmeans", tmp_path / "made", ratio=1000, quiet=True)
    for token in range(1, 7):
        record, members = group(made, token), group(merged, token)
        assert len(record) == 1 and made.weights[int(record[0])] == merged.weights.take(members).sum()
        mean = np.average(merged.keys.take(members).astype(np.float64), axis=0, weights=merged.weights.take(members))
        np.testing.assert_allclose(made.keys[int(record[0])], mean, rtol=2e-3, atol=2e-3)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 8), st.floats(1, 40), st.integers(2, 30))
def test_parts_cover_the_frequent_groups_once(values, top, ratio, largest):
    ordered = np.sort(np.array(values, np.int32))
    runs = frequent_runs(ordered, top)
    tokens, counts = np.unique(ordered, return_counts=True)
    expected = sorted(tokens[np.lexsort((tokens, -counts))][:top].tolist())
    assert ordered[runs[:, 0]].tolist() == expected
    assert all((ordered[a:b] == ordered[a]).all() and b - a == (ordered == ordered[a]).sum() for a, b in runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kmeans, "LARGEST", largest)
        parts = plan_parts(runs, ratio)
    assert all(part.size <= largest and 1 <= part.clusters < part.size for part in parts)
    assert [part.first for part in parts] == np.cumsum([0, *(part.clusters for part in parts)])[:-1].tolist()
    assert all(a.stop <= b.start for a, b in itertools.pairwise(parts))


def test_a_group_gets_its_share_of_clusters_and_one_at_least():
    stops = np.cumsum([1, 9, 10, 29, 30, 400])
    parts = plan_parts(np.stack([stops - [1, 9, 10, 29, 30, 400], stops], axis=1), 20)
    assert [(part.size, part.clusters) for part in parts] == [(9, 1), (10, 1), (29, 1), (30, 2), (400, 20)]


def test_groups_too_large_for_memory_are_cut(store, tmp_path, monkeypatch):
    monkeypatch.setattr(kmeans, "LARGEST", 30)
    made = prune_store(store, "kmeans", tmp_path / "made", ratio=10, quiet=True)
    assert made.weights.take(group(made, 1)).sum() == 100 and 8 <= len(group(made, 1)) <= 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.5}, "at least 1 record"),
        ({"ratio": float("inf")}, "at least 1 record"),
        ({"ratio": 5.0, "keep": 0.5}, "not both"),
        ({"top_tokens": 0}, "`top_tokens` is 0"),
        ({"neighbors": 3}, "`neighbors` has no effect"),
    ],
)
def test_nonsense_is_refused(store, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        prune_store(store, "kmeans", tmp_path / "made", **options)
