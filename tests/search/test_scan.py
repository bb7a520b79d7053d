"""Scanning inverted lists in batches against FAISS, which scans them query by query, and against brute force."""

import faiss
import numba
import numpy as np
import pytest

from nearlm.search.scan import Lists, ListScan, can_scan, without_lists, write_lists
from nearlm.store import IndexData

EIGHT, FOUR = faiss.ScalarQuantizer.QT_8bit, faiss.ScalarQuantizer.QT_4bit


def make_index(records, dim, nlist, seed=0, by_residual=True, code=EIGHT, widest=3):
    rng = np.random.default_rng(seed)
    keys = (rng.normal(size=(records, dim)) * np.geomspace(widest, 0.2, dim)).astype(np.float32)
    index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(dim), dim, nlist, code, faiss.METRIC_L2, by_residual)
    index.train(keys)
    index.add(keys)
    return index, (keys[rng.integers(0, records, 40)] + rng.normal(0, 0.1, (40, dim))).astype(np.float32)


def slack(scan, queries):
    """How far distances may be from those of queries that are not rounded: six standard errors."""
    weights = (queries[:, None] - scan.centroids - scan.centre) * scan.scale
    code = 16 if scan.lists.packed else 256
    rounding = np.abs(weights).max() / scan.coding.most * (code**2 / 36 * queries.shape[1]) ** 0.5
    return {"rtol": 1e-4, "atol": 0.01 + 6 * rounding}


def scan_of(index, folder):
    write_lists(index, IndexData(folder))
    codec = without_lists(index)
    return ListScan(codec, Lists.open(IndexData(folder), codec)), codec


@pytest.mark.parametrize(("by_residual", "code"), [(True, EIGHT), (False, EIGHT), (True, FOUR)])
@pytest.mark.parametrize(
    ("dim", "nlist", "nprobe", "k"),
    [(32, 16, 4, 50), (7, 3, 3, 1000), (20, 8, 1, 10), (16, 64, 99, 5), (192, 4, 2, 100)],
)
def test_a_scan_finds_what_faiss_finds(tmp_path, by_residual, code, dim, nlist, nprobe, k):
    index, queries = make_index(3000, dim, nlist, by_residual=by_residual, code=code)
    index.nprobe = min(nprobe, nlist)
    scan, _ = scan_of(index, tmp_path)
    assert scan.means is not None  # plain centroids are not looked for by FAISS
    expected, true_ids = index.search(queries, k)
    distances, ids = scan.search(queries, k, nprobe)
    missing = true_ids < 0
    np.testing.assert_array_equal(ids < 0, missing)
    assert np.isinf(distances[missing]).all()
    np.testing.assert_allclose(distances[~missing], expected[~missing], **slack(scan, queries))
    same = np.mean([len(set(a) & set(b)) / len(set(a)) for a, b in zip(ids, true_ids, strict=True)])
    assert same > 0.98


@pytest.mark.parametrize("code", [EIGHT, FOUR])
def test_distances_are_those_of_the_decoded_keys(tmp_path, code):
    index, queries = make_index(500, 24, 4, code=code)
    scan, _ = scan_of(index, tmp_path)
    index.make_direct_map()
    keys = np.stack([index.reconstruct(i) for i in range(500)]).astype(np.float64)
    distances, ids = scan.search(queries, 500, 4)
    assert all(set(row) == set(range(500)) for row in ids)
    true = ((queries[:, None] - keys[ids]) ** 2).sum(-1)
    np.testing.assert_allclose(distances, true, **slack(scan, queries))
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize(("dim", "code"), [(16, EIGHT), (16, FOUR), (7, FOUR)])
def test_lists_go_back_into_faiss_as_they_were(tmp_path, dim, code):
    index, queries = make_index(1000, dim, 8, code=code)
    scan, codec = scan_of(index, tmp_path)
    assert codec.ntotal == 0
    scan.lists.put_into(codec)
    codec.nprobe = index.nprobe = 8
    for mine, theirs in zip(codec.search(queries, 20), index.search(queries, 20), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    more = queries[:5]
    codec.add(more)
    assert codec.ntotal == 1005 and (codec.search(more, 1)[1] >= 1000).any()


def test_empty_lists_and_no_queries(tmp_path):
    index, queries = make_index(20, 8, 16)
    index.reset()
    index.add(queries[:3].copy())
    scan, _ = scan_of(index, tmp_path)
    distances, ids = scan.search(queries, 5, 2)
    assert set(np.unique(ids)) <= {-1, 0, 1, 2}
    assert np.isinf(distances[ids < 0]).all()
    assert scan.search(queries[:0], 5, 2)[0].shape == (0, 5)


def test_only_8_and_4_bit_lists_with_l2_can_be_scanned():
    assert can_scan(faiss.index_factory(16, "IVF4,SQ8")) and can_scan(faiss.index_factory(16, "IVF4,SQ4"))
    for factory in ("IVF4,SQ6", "IVF4,PQ4", "Flat", "PCA8,IVF4,SQ8", "SQ8"):
        assert not can_scan(faiss.index_factory(16, factory))
    assert not can_scan(faiss.index_factory(16, "IVF4,SQ8", faiss.METRIC_INNER_PRODUCT))


def test_queries_that_are_no_numbers_have_no_neighbours(tmp_path):
    index, queries = make_index(500, 8, 4)
    scan, _ = scan_of(index, tmp_path)
    nothing = np.full((1, 8), np.nan, np.float32)
    distances, ids = scan.search(nothing, 5, 2)
    assert (ids == -1).all() and np.isinf(distances).all()
    mixed = scan.search(np.concatenate([queries[:2], nothing, queries[2:4]]), 5, 2)[1]
    assert (mixed[2] == -1).all()
    np.testing.assert_array_equal(mixed[[0, 1, 3, 4]], scan.search(queries[:4], 5, 2)[1])


def test_many_candidates_are_searched_in_parts(tmp_path, monkeypatch):
    index, queries = make_index(2000, 8, 4)
    scan, _ = scan_of(index, tmp_path)
    whole = scan.search(queries, 20, 4)
    monkeypatch.setattr("nearlm.search.scan._CANDIDATES", 5000)
    for mine, theirs in zip(scan.search(queries, 20, 4), whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_lists_are_plain_arrays(tmp_path):
    index, _ = make_index(300, 8, 4)
    write_lists(index, IndexData(tmp_path))
    loaded = {path.stem: np.load(path, allow_pickle=False) for path in tmp_path.glob("*.npy")}
    assert {name: array.shape for name, array in loaded.items()} == {
        "offsets": (5,),
        "ids": (300,),
        "codes": (300, 8),
        "bias": (300,),
    }
    assert sorted(loaded["ids"]) == list(range(300)) and loaded["ids"].dtype == np.int32


def test_lists_with_wide_ids_as_they_were_written_once_are_read(tmp_path):
    index, queries = make_index(300, 8, 4)
    scan, codec = scan_of(index, tmp_path)
    expected = scan.search(queries, 5, 4)
    np.save(tmp_path / "ids.npy", np.load(tmp_path / "ids.npy").astype(np.int64))
    old = Lists.open(IndexData(tmp_path), codec)
    assert old.ids.dtype == np.int64
    for mine, theirs in zip(ListScan(codec, old).search(queries, 5, 4), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("code", "dim", "spread"), [(EIGHT, 24, 3), (FOUR, 24, 3), (FOUR, 192, 0.2), (FOUR, 192, 9)])
def test_results_depend_neither_on_the_batch_nor_on_threads(tmp_path, code, dim, spread):
    index, queries = make_index(3000, dim, 4, code=code, widest=spread)
    scan, _ = scan_of(index, tmp_path)
    distances, ids = scan.search(queries, 100, 4)
    for count in (1, 3, 17):
        parts = [scan.search(queries[start : start + count], 100, 4) for start in range(0, len(queries), count)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), distances)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), ids)
    usual = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        np.testing.assert_array_equal(scan.search(queries, 100, 4)[1], ids)
    finally:
        numba.set_num_threads(usual)


def test_a_guess_that_was_too_low_is_made_good(tmp_path, monkeypatch):
    index, queries = make_index(3000, 24, 2)
    scan, _ = scan_of(index, tmp_path)
    expected = scan.search(queries, 50, 2)
    low = lambda sample, sampled, visits, k: np.where(np.arange(len(visits.probed)) % 2, 0, np.inf).astype(np.float32)  # noqa: E731
    monkeypatch.setattr("nearlm.search.scan.guess_limits", low)
    for mine, theirs in zip(scan.search(queries, 50, 2), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_lists_behind_another_quantiser_are_found_by_faiss(tmp_path):
    keys = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    index = faiss.index_factory(16, "IVF32_HNSW8,SQ8")
    index.train(keys)
    index.add(keys)
    index.nprobe = 6
    scan, _ = scan_of(index, tmp_path)
    expected = index.search(keys[:20], 10)[1]
    assert np.mean(scan.search(keys[:20], 10, 6)[1] == expected) > 0.95
