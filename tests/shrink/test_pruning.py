"""Random pruning against numpy's own choice, and the weights of a pruned store in p_kNN."""

import numpy as np
import pytest

from calls import build, build_index, load_knnlm, prune_store
from nearlm.mixing.equations import log_p_knn
from nearlm.search.retriever import Retriever
from nearlm.store import KeyCodec
from synthetic import make_store
from tiny import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("smaller")
    (folder / "train.txt").write_text(make_text(400, seed=1))
    (folder / "valid.txt").write_text(make_text(60, seed=2))
    build(str(model_folder), str(folder / "train.txt"), folder / "store", window=64, quiet=True)
    return folder / "store"


def test_p_knn_of_a_merged_store_is_weighted(nearlm, store, tmp_path):
    nearlm("prune", store, "--method", "merge", "--neighbors", 12, "--out", tmp_path / "made", "-q")
    nearlm("index", tmp_path / "made", "-q")
    knnlm = load_knnlm(tmp_path / "made", lam=0.5, knn_temperature=3.0, k=64)
    made, text = knnlm.store, "the licence grants rights to any person"
    (batch,) = knnlm._score_batches(knnlm._document(text))
    scores, near = batch.scores, batch.near
    assert near.weights.max() > 1
    np.testing.assert_array_equal(near.weights, made.weights.take(near.ids))
    for row, target in enumerate(scores.tokens):
        mass = near.weights[row] * np.exp(-near.distances[row].astype(np.float64) / 3.0)
        hit = mass[near.tokens[row] == target].sum() / mass.sum()
        assert np.exp(scores.log_knn[row]) == pytest.approx(hit, rel=1e-6)
    unweighted = log_p_knn(near.distances, near.tokens, scores.tokens, 3.0)
    seen = np.isfinite(unweighted)
    assert np.abs(unweighted[seen] - scores.log_knn[seen]).max() > 1e-3


@pytest.mark.parametrize("options", [{"method": "merge", "neighbors": 60}, {"method": "kmeans", "ratio": 60}])
def test_standing_for_equal_keys_changes_no_probability(tmp_path, options):
    """A record that stands for three at the same place counts as the three did."""
    rng = np.random.default_rng(3)
    places, which = rng.normal(0, 1, (12, 4)).astype(np.float16), rng.integers(0, 12, 60)
    whole = make_store(tmp_path / "whole", places[which], which)
    made = prune_store(whole, out=tmp_path / "made", quiet=True, **options)
    assert len(made) == len(set(which)) < 60
    queries, targets, found = rng.normal(0, 1, (10, 4)).astype(np.float32), which[:10].astype(np.int32), []
    for store in (whole, made):
        build_index(store, "flat", quiet=True)
        near = Retriever(store).search(queries, 60)
        found.append(log_p_knn(near.distances, near.tokens, targets, 2.0, near.weights))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


@pytest.mark.parametrize("method", ["random", "merge", "rank", "kmeans"])
def test_8_bit_keys_stay_to_the_bit_or_become_means(tmp_path, method):
    rng = np.random.default_rng(7)
    keys, values = rng.normal(0, 1, (300, 6)).astype(np.float32), rng.integers(0, 9, 300)
    keys[0] = 50
    store = make_store(tmp_path / "store", keys, values, shard=120, codec=KeyCodec.fit(keys[1:]))
    options = {"merge": {"neighbors": 60}}.get(method, {"keep": 0.5})
    made = prune_store(store, method, tmp_path / "made", quiet=True, **options)
    assert made.manifest.key_dtype == "int8" and len(made) < 300
    codes, before = np.concatenate(made.keys.shards), np.concatenate(store.keys.shards)
    if method == "kmeans":
        for row in range(len(made)):
            mean = store.keys[:][made.assign[1:] == row].mean(0)
            np.testing.assert_allclose(made.keys[row], mean, atol=made.codec.step.max() * 0.51)
    else:
        np.testing.assert_array_equal(codes, before[made.origin[:] - 1])
    assert made.manifest.clipped == np.count_nonzero(np.abs(codes) == 127) and store.manifest.clipped == 6
    made.verify()


def test_random_keeps_the_seeded_share(tmp_path):
    rng = np.random.default_rng(5)
    keys = rng.normal(0, 1, (230, 5)).astype(np.float16)
    store = make_store(tmp_path / "store", keys, rng.integers(0, 9, 230), shard=100)
    made = prune_store(store, "random", tmp_path / "1", keep=0.6, seed=4, quiet=True)
    expected = np.sort(np.random.default_rng(4).choice(230, 138, replace=False))
    np.testing.assert_array_equal(made.origin[:] - 1, expected)
    again = prune_store(store, "random", tmp_path / "2", keep=0.6, seed=4, quiet=True)
    assert again.manifest.files == made.manifest.files
    assert prune_store(store, "random", tmp_path / "3", keep=0.6, quiet=True).manifest.files != made.manifest.files
    assert len(prune_store(store, "random", tmp_path / "4", keep=1e-9, quiet=True)) == 1
    assert made.next_record(0) == made.record_at(int(made.origin[0]) + 1)
    assert made.record_at(0) == made.record_at(10**9) == -1
