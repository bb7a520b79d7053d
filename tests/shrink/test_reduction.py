"""Reduction against PCA in numpy: variance, distances, composition; and what a reduced store takes over."""

import faiss
import numpy as np
import pytest

from calls import build, build_index, prune_store, reduce_store
from nearlm.base.errors import OptionError, StoreError
from nearlm.search.linear import matrix
from nearlm.search.retriever import Retriever
from nearlm.shrink import reduction as reduce
from nearlm.shrink.reduction import moments, train_pca
from nearlm.store.datastore import Datastore
from nearlm.store.model_files import load_lm
from synthetic import make_store, skewed_store
from tiny import make_text


@pytest.fixture
def store(tmp_path):
    return skewed_store(tmp_path / "store")


def distances(a):
    a = a.astype(np.float64)
    return ((a[:, None] - a) ** 2).sum(-1)


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_reduction_is_pca_as_numpy_computes_it(store, tmp_path, dim):
    made = reduce_store(store, dim, tmp_path / "made", quiet=True)
    keys = store.keys[:].astype(np.float64)
    centred = keys - keys.mean(0)
    _, s, vt = np.linalg.svd(centred, full_matrices=False)
    expected = distances(centred @ vt[:dim].T)
    assert made.dim == dim and made.query_dim == 12 and made.keys.dtype == np.float16
    np.testing.assert_allclose(distances(made.project(keys)), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(made.keys[:], made.project(keys), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(np.mean(made.project(keys), axis=0), 0, atol=1e-4)
    kept = made.manifest.transforms[-1].result["variance_kept"]
    assert kept == pytest.approx((s[:dim] ** 2).sum() / (s**2).sum(), abs=1e-5)


def test_8_bit_keys_are_reduced_to_8_bit_keys_with_scales_of_their_own(tmp_path):
    store = skewed_store(tmp_path / "store", coded=True)
    made = reduce_store(store, 5, tmp_path / "made", quiet=True)
    assert made.manifest.key_dtype == "int8" and made.keys.shards[0].dtype == np.int8 and made.keys.shape == (500, 5)
    assert made.manifest.format == store.manifest.format == 3
    whole = made.project(store.keys[:])
    _, step = np.load(tmp_path / "made" / "scales.npy")
    np.testing.assert_allclose(step, whole.std(0) * 6 / 126.5, rtol=1e-4)
    assert (np.abs(made.keys[:] - whole) <= step * 0.5001 + 1e-5).all() and made.manifest.clipped == 0
    again = prune_store(made, "random", tmp_path / "again", keep=0.5, quiet=True)  # a step takes the scales over
    np.testing.assert_array_equal(again.keys[:], made.keys.take(again.origin[:] - 1))
    again.verify()


def test_the_transform_is_faiss_own_pca_with_its_rotation(store):
    keys = store.keys[:].astype(np.float32)
    theirs = faiss.PCAMatrix(12, 5, 0, True)
    theirs.train(keys)
    ours, _ = train_pca(moments(iter([keys[:100], keys[100:]])), 5)
    A, B = matrix(theirs)[0], matrix(ours)[0]
    np.testing.assert_allclose(distances(theirs.apply(keys)), distances(ours.apply(keys)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(A.T @ A, B.T @ B, atol=1e-4)  # the same subspace
    spread = ours.apply(keys).var(0)
    plain = faiss.PCAMatrix(12, 5)
    plain.train(keys)
    assert np.var(plain.apply(keys), axis=0).max() > spread.max()  # the rotation spreads the variance


def test_moments_survive_a_large_mean():
    rng = np.random.default_rng(1)
    x = rng.normal(1000, 0.1, (5000, 6)).astype(np.float32)
    found = moments(iter(np.array_split(x, 7)))
    np.testing.assert_allclose(found.covariance, np.cov(x.T.astype(np.float64), bias=True), atol=1e-6)
    np.testing.assert_allclose(found.mean, x.mean(0, dtype=np.float64), atol=1e-4)


def test_reducing_a_reduced_store_composes(store, tmp_path):
    once = reduce_store(store, 8, tmp_path / "once", quiet=True)
    twice = reduce_store(once, 3, tmp_path / "twice", quiet=True)
    keys = store.keys[:].astype(np.float32)
    assert (twice.dim, twice.query_dim) == (3, 12)
    np.testing.assert_allclose(twice.project(keys), twice.keys[:], atol=0.02)
    straight = reduce_store(store, 3, tmp_path / "straight", quiet=True)
    np.testing.assert_allclose(distances(twice.project(keys)), distances(straight.project(keys)), rtol=0.02, atol=0.05)
    assert [step.options["dim"] for step in twice.manifest.transforms] == [8, 3]
    assert twice.transform.d_in == 12 and twice.transform.d_out == 3


def test_a_sample_is_what_the_pca_is_trained_on(store, tmp_path, monkeypatch):
    seen = []
    real = reduce.moments
    monkeypatch.setattr(reduce, "moments", lambda blocks: real(seen.append(block) or block for block in blocks))
    monkeypatch.setattr(reduce, "BLOCK", 30)
    made = reduce_store(store, 4, tmp_path / "made", sample=100, quiet=True)
    assert sum(map(len, seen)) == 100 and made.manifest.transforms[-1].options["sample"] == 100


def test_weights_and_provenance_are_carried_over(store, tmp_path):
    merged = prune_store(store, "merge", tmp_path / "merged", neighbors=30, quiet=True)
    made = reduce_store(merged, 6, tmp_path / "made", quiet=True)
    assert made.weighted and made.weights[:].max() > 1
    for name in ("values", "origin", "weights"):
        np.testing.assert_array_equal(getattr(made, name)[:], getattr(merged, name)[:])
    np.testing.assert_array_equal(made.assign, merged.assign)
    other_way = prune_store(reduce_store(store, 6, tmp_path / "r", quiet=True), "random", tmp_path / "p", keep=0.3)
    np.testing.assert_allclose(
        other_way.project(store.keys.take(other_way.origin[:] - 1).astype(np.float32)), other_way.keys[:], atol=0.02
    )
    for derived in (made, other_way):
        derived.verify()
        assert derived.manifest.parent.path in ("../merged", "../r")


def test_retrieval_takes_the_models_own_queries(store, tmp_path):
    made = reduce_store(store, 6, tmp_path / "made", quiet=True)
    build_index(made, "flat", quiet=True)
    queries = store.keys[:20].astype(np.float32)
    near = Retriever(made).search(queries, 5)
    true = ((made.project(queries)[:, None].astype(np.float64) - made.keys[:].astype(np.float64)) ** 2).sum(-1)
    np.testing.assert_allclose(near.distances, np.sort(true, 1)[:, :5], rtol=1e-3, atol=1e-3)
    exact = Retriever(made, distances="store").search(queries, 5)
    np.testing.assert_allclose(exact.distances, np.sort(true, 1)[:, :5], rtol=1e-4, atol=1e-4)
    in_parent = Retriever(made, distances="parent").search(queries, 5)
    wide = ((queries[:, None].astype(np.float64) - store.keys[:].astype(np.float64)) ** 2).sum(-1)
    np.testing.assert_allclose(in_parent.distances, np.take_along_axis(wide, in_parent.ids, 1), rtol=1e-4, atol=1e-4)
    assert (np.diff(in_parent.distances, axis=1) >= 0).all()
    with pytest.raises(StoreError, match=r"expected \[n, 12\]"):
        Retriever(made).search(queries[:, :6], 5)


def test_the_model_still_fits_and_text_is_refused(tmp_path, lm):
    (tmp_path / "a.txt").write_text(make_text(200))
    built = build(lm, str(tmp_path / "a.txt"), tmp_path / "deep" / "store", window=32, quiet=True)
    made = reduce_store(built, 8, tmp_path / "made", quiet=True)
    assert load_lm(Datastore.open(made.path)).dim == 32  # its relative path was made anew
    assert made.context_of(7) == built.context_of(7)
    for options in ({"append": True}, {}):
        with pytest.raises(StoreError, match="made from the store 'store'"):
            build(lm, str(tmp_path / "a.txt"), made.path, window=32, quiet=True, **options)


def test_too_large_keys_are_refused(tmp_path):
    keys = np.full((50, 4), 60000, np.float16) * np.sign(np.random.default_rng(0).normal(size=(50, 1)))
    store = make_store(tmp_path / "store", keys.astype(np.float16), np.zeros(50, int))
    with pytest.raises(StoreError, match="`key_dtype='float32'`"):
        reduce_store(store, 1, tmp_path / "made", quiet=True)


@pytest.mark.parametrize("dim", [0, -3, 13])
def test_an_impossible_width_is_refused(store, tmp_path, dim):
    with pytest.raises(OptionError, match="expected 1 to 12"):
        reduce_store(store, dim, tmp_path / "made")
    assert not (tmp_path / "made").exists()
