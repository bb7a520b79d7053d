"""A search of a few queries finds what a batch finds, to the bit, and what brute force finds."""

import faiss
import numpy as np
import pytest
from test_scan import FOUR, make_index, scan_of

from nearlm.base.arrays import FEW


def one_by_one(scan, queries, *search, **options):
    found = [scan.search(queries[row : row + 1], *search, **options) for row in range(len(queries))]
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("dim", "nlist", "nprobe", "k", "kind"),
    [
        (32, 16, 4, 50, {}),
        (7, 3, 3, 1000, {}),
        (20, 6, 9, 10, {}),
        (192, 4, 2, 50, {"code": FOUR, "widest": 0.2}),
        (192, 4, 2, 50, {"code": FOUR, "widest": 9}),
    ],
)
def test_alone_in_threes_and_in_a_batch_a_query_finds_the_same(tmp_path, dim, nlist, nprobe, k, kind, ordered):
    index, queries = make_index(3000, dim, nlist, **kind)
    assert len(queries) > FEW
    scan, _ = scan_of(index, tmp_path)
    together = scan.search(queries, k, nprobe, ordered=ordered)
    threes = [scan.search(queries[row : row + 3], k, nprobe, ordered=ordered) for row in range(0, len(queries), 3)]
    for found in (
        one_by_one(scan, queries, k, nprobe, ordered=ordered),
        map(np.concatenate, zip(*threes, strict=True)),
    ):
        for mine, theirs in zip(found, together, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_the_nearest_of_all_lists_are_found_by_their_decoded_keys(tmp_path):
    index, queries = make_index(2000, 24, 4)
    scan, _ = scan_of(index, tmp_path)
    index.make_direct_map()
    keys = np.stack([index.reconstruct(i) for i in range(2000)]).astype(np.float64)
    true = np.sort(((queries[:, None] - keys) ** 2).sum(-1), 1)[:, :40]
    distances, ids = one_by_one(scan, queries, 40, 4)
    np.testing.assert_allclose(distances, true, rtol=1e-4, atol=0.01)
    np.testing.assert_allclose(((queries[:, None] - keys[ids]) ** 2).sum(-1), true, rtol=1e-3, atol=0.02)


def test_a_limit_that_was_too_low_is_given_up(tmp_path):
    """All that the sample holds is near, nothing else is."""
    index, _ = make_index(1, 8, 1)
    far = np.full((320, 8), 50, np.float32)
    far[::16] = 0
    index.reset()
    index.add(far)
    scan, _ = scan_of(index, tmp_path)
    _, ids = scan.search(np.zeros((1, 8), np.float32), 120, 1)
    assert (ids >= 0).all() and len(set(ids[0])) == 120


def test_lists_that_a_graph_finds(tmp_path):
    rng = np.random.default_rng(0)
    keys = rng.normal(size=(4000, 16)).astype(np.float32)
    index = faiss.index_factory(16, "IVF32_HNSW8,SQ8")
    index.train(keys)
    index.add(keys)
    scan, _ = scan_of(index, tmp_path)
    assert scan.means is None
    for mine, theirs in zip(one_by_one(scan, keys[:40], 20, 4), scan.search(keys[:40], 20, 4), strict=True):
        np.testing.assert_array_equal(mine, theirs)
