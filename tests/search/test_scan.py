"""Scanning inverted lists in batches against FAISS, which scans them query by query, and against brute force."""

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.scan import Lists, ListScan, can_scan, without_lists, write_lists
from nearlm.store import IndexData


def make_index(records, dim, nlist, seed=0, by_residual=True):
    rng = np.random.default_rng(seed)
    keys = (rng.normal(size=(records, dim)) * np.geomspace(3, 0.2, dim)).astype(np.float32)
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatL2(dim), dim, nlist, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_L2, by_residual
    )
    index.train(keys)
    index.add(keys)
    return index, (keys[rng.integers(0, records, 40)] + rng.normal(0, 0.1, (40, dim))).astype(np.float32)


def scan_of(index, folder):
    write_lists(index, IndexData(folder))
    codec = without_lists(index)
    return ListScan(codec, Lists.open(IndexData(folder), codec)), codec


@pytest.mark.parametrize("by_residual", [True, False])
@pytest.mark.parametrize(
    ("dim", "nlist", "nprobe", "k"), [(32, 16, 4, 50), (7, 3, 3, 1000), (20, 8, 1, 10), (16, 64, 99, 5)]
)
def test_a_scan_finds_what_faiss_finds(tmp_path, by_residual, dim, nlist, nprobe, k):
    index, queries = make_index(3000, dim, nlist, by_residual=by_residual)
    index.nprobe = min(nprobe, nlist)
    scan, _ = scan_of(index, tmp_path)
    expected, true_ids = index.search(queries, k)
    distances, ids = scan.search(queries, k, nprobe)
    missing = true_ids < 0
    np.testing.assert_array_equal(ids < 0, missing)
    assert np.isinf(distances[missing]).all()
    np.testing.assert_allclose(distances[~missing], expected[~missing], rtol=1e-4, atol=1e-3)
    assert np.mean([len(set(a) & set(b)) / len(set(a)) for a, b in zip(ids, true_ids, strict=True)]) > 0.99


def test_distances_are_those_of_the_decoded_keys(tmp_path):
    index, queries = make_index(500, 24, 4)
    scan, _ = scan_of(index, tmp_path)
    index.make_direct_map()
    keys = np.stack([index.reconstruct(i) for i in range(500)]).astype(np.float64)
    distances, ids = scan.search(queries, 500, 4)
    assert all(set(row) == set(range(500)) for row in ids)
    true = ((queries[:, None] - keys[ids]) ** 2).sum(-1)
    np.testing.assert_allclose(distances, true, rtol=1e-4, atol=1e-3)
    assert (np.diff(distances, axis=1) >= 0).all()


@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 5), st.booleans())
def test_the_nearest_are_kept_whatever_the_ties(count, k, levels, ordered):
    from nearlm.search.scan import _select

    rng = np.random.default_rng(count * 1000 + k)
    values = (
        rng.integers(0, levels + 1, count * 40).astype(np.float32) if levels else rng.random(count * 40, np.float32)
    )
    begins, probed = np.array([[0, 7, len(values)]]), np.array([[1, 0]])
    offsets = np.array([0, len(values) - 7, len(values)])
    ids_in_lists = np.arange(len(values))[::-1].copy()
    distances, ids = np.full((1, k), np.inf, np.float32), np.full((1, k), -1)
    _select(values, probed, offsets, ids_in_lists, begins, ordered, distances, ids)
    kept = min(k, len(values))
    np.testing.assert_array_equal(np.sort(distances[0, :kept]), np.sort(values)[:kept])
    assert len(set(ids[0, :kept])) == kept and (ids[0, kept:] == -1).all()
    by_id = np.empty_like(values)
    by_id[ids_in_lists] = np.concatenate((values[7:], values[:7]))
    np.testing.assert_array_equal(by_id[ids[0, :kept]], distances[0, :kept])
    assert not ordered or (np.diff(distances[0, :kept]) >= 0).all()


def test_lists_go_back_into_faiss_as_they_were(tmp_path):
    index, queries = make_index(1000, 16, 8)
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


def test_only_8_bit_lists_with_l2_can_be_scanned():
    assert can_scan(faiss.index_factory(16, "IVF4,SQ8"))
    for factory in ("IVF4,SQ4", "IVF4,PQ4", "Flat", "PCA8,IVF4,SQ8", "SQ8"):
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
    assert sorted(loaded["ids"]) == list(range(300))


@given(
    st.integers(50, 3000), st.integers(1, 60), st.lists(st.sampled_from([np.inf, -np.inf, np.nan, 3e38]), max_size=40)
)
def test_infinite_distances_and_those_that_are_no_numbers_are_no_nearest(count, k, odd):
    """As an index or a query may hold them; they once led the selection outside its bins."""
    from nearlm.search.scan import _select

    rng = np.random.default_rng(count * 100 + k)
    values = rng.random(count, np.float32)
    values[rng.integers(0, count, len(odd))] = odd
    begins, probed, offsets = np.array([[0, count]]), np.array([[0]]), np.array([0, count])
    distances, ids = np.full((1, k), np.inf, np.float32), np.full((1, k), -1)
    _select(values, probed, offsets, np.arange(count), begins, True, distances, ids)
    numbers = np.sort(values[~np.isnan(values)])[:k]
    np.testing.assert_array_equal(distances[0, : len(numbers)], np.maximum(numbers, 0))
    found = ids[0][ids[0] >= 0]
    assert len(set(found)) == len(found) == len(numbers)
