"""Rank-based pruning against plain numpy."""

import numpy as np
import pytest

from calls import prune_store
from nearlm.base.errors import OptionError, StoreError
from nearlm.shrink import neighbors as self_search
from nearlm.shrink import ranking as rank
from synthetic import make_store


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(5)
    keys = rng.normal(0, 1, (230, 5)).astype(np.float16)
    return make_store(tmp_path / "store", keys, rng.integers(0, 9, 230), shard=100)


def scores(store, k, count_self):
    """Add up 1/rank over each record's true neighbours, its own entry left out unless it counts."""
    keys, g = store.keys[:].astype(np.float64), np.zeros(len(store))
    ids = np.argsort(((keys[:, None] - keys) ** 2).sum(-1), axis=1, kind="stable")[:, :k]
    for i, row in enumerate(ids):
        listed = row if count_self else row[row != i]
        g[listed] += 1 / np.arange(1, len(listed) + 1)
    return g


@pytest.mark.parametrize("count_self", [False, True])
@pytest.mark.parametrize("k", [3, 40, 1024])
def test_the_records_with_the_highest_scores_stay(store, tmp_path, k, count_self):
    made = prune_store(store, "rank", tmp_path / "made", keep=0.4, k=k, count_self=count_self, quiet=True)
    g = scores(store, k, count_self)
    expected = np.sort(np.argsort(-g, kind="stable")[:92])
    np.testing.assert_array_equal(made.origin[:] - 1, expected)
    np.testing.assert_array_equal(made.keys[:], store.keys.take(expected))
    assert not made.weighted
    dropped = np.setdiff1d(np.arange(230), expected)
    assert (made.assign[dropped + 1] == -1).all()
    np.testing.assert_array_equal(made.assign[expected + 1], np.arange(92))


def test_scores_go_on_after_a_kill(store, tmp_path, monkeypatch):
    whole = prune_store(store, "rank", tmp_path / "whole", keep=0.5, k=20, quiet=True)
    (store.path / "index" / "default" / "ranks.json").unlink()
    monkeypatch.setattr(self_search, "SEARCH_BLOCK", 40)
    monkeypatch.setattr(rank, "RANKS_SAVE_SECONDS", 0)
    searched, real = [], self_search.SelfSearch.block

    def killed(search, start, k):
        searched.append(start)
        if len(searched) in (3, 5):
            raise KeyboardInterrupt
        return real(search, start, k)

    monkeypatch.setattr(self_search.SelfSearch, "block", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            prune_store(store, "rank", tmp_path / "made", keep=0.5, k=20, quiet=True)
    made = prune_store(store, "rank", tmp_path / "made", keep=0.5, k=20, quiet=True)
    assert searched == [0, 40, 80, 80, 120, 120, 160, 200]
    assert made.manifest.files == whole.manifest.files
    assert not list(made.path.glob("**/rank-*.npy"))


def test_scores_serve_other_shares_but_not_other_searches(store, tmp_path, monkeypatch):
    searched, real = [], self_search.SelfSearch.block
    monkeypatch.setattr(self_search.SelfSearch, "block", lambda *given: searched.append(1) or real(*given))

    def pruned(name, **options):
        searched.clear()
        return prune_store(store, "rank", tmp_path / name, quiet=True, **{"k": 20, **options})

    alone = pruned("a", keep=0.3)
    assert searched
    pruned("b", keep=0.7)
    assert not searched
    assert pruned("c", keep=0.3, count_self=True) and searched
    assert pruned("d", keep=0.3, k=30) and searched
    assert pruned("e", keep=0.3).manifest.files == alone.manifest.files and searched
    path = store.path / "index" / "default" / "ranks.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert pruned("f", keep=0.3).manifest.files == alone.manifest.files and searched


def test_survivors_keep_their_weights(store, tmp_path):
    merged = prune_store(store, "merge", tmp_path / "merged", neighbors=60, quiet=True)
    for method in ("random", "rank"):
        made = prune_store(merged, method, tmp_path / method, keep=0.7, quiet=True)
        ids = np.searchsorted(merged.origin[:], made.origin[:])
        np.testing.assert_array_equal(made.weights[:], merged.weights[:][ids])
        assert made.weights[:].max() > 1
        counts = np.bincount(made.assign[made.assign >= 0], minlength=len(made))
        np.testing.assert_array_equal(counts, made.weights[:])


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("random", {}, "needs `keep`"),
        ("rank", {}, "needs `keep`"),
        ("random", {"keep": 1.5}, "at most 1"),
        ("rank", {"keep": 0.5, "k": 1}, "`k` is 1"),
        ("random", {"keep": 0.5, "count_self": True}, "`count_self` has no effect with `method='random'`"),
        ("rank", {"keep": 0.5, "seed": 1}, "`seed` has no effect"),
        ("best", {}, "expected one of random, kmeans, merge, rank"),
    ],
)
def test_nonsense_is_refused(store, tmp_path, method, options, message):
    with pytest.raises(OptionError, match=message):
        prune_store(store, method, tmp_path / "made", **options)


def test_no_text_goes_into_a_pruned_store_and_no_other_pruning(store, tmp_path):
    made = prune_store(store, "random", tmp_path / "made", keep=0.5, quiet=True)
    with pytest.raises(StoreError, match="made in another way"):
        prune_store(store, "random", made.path, keep=0.4)
