"""The way to very many lists: groups of centroids, in any number of queries, on disk, and in an index."""

import shutil

import numpy as np
import pytest

from nearlm.base import StoreError, files
from nearlm.search import Retriever, build_index, training
from nearlm.search.clustering import two_level_centroids
from nearlm.search.coarse import LOOKED_INTO, Coarse, group_count, refine
from nearlm.search.index import faiss_index, open_index
from nearlm.store import Datastore, IndexData
from synthetic import make_store

LISTS = 300


@pytest.fixture(scope="module")
def keys():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(9000, 24)) * np.geomspace(3, 0.2, 24)).astype(np.float16)


@pytest.fixture(scope="module")
def grouped(keys):
    """Centroids, and the group of each."""
    return two_level_centroids(keys.astype(np.float32), LISTS, group_count(LISTS))


@pytest.fixture(scope="module")
def centroids(grouped):
    return grouped[0]


@pytest.fixture(scope="module")
def coarse(grouped):
    return Coarse(*grouped)


@pytest.fixture(scope="module")
def store(keys, tmp_path_factory):
    """A store whose index has more lists than are found one by one."""
    made = make_store(tmp_path_factory.mktemp("coarse") / "store", keys, np.arange(len(keys)) % 50, shard=2500)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "GROUPED_LISTS", 100)
        build_index(made, f"IVF{LISTS},SQ8", nprobe=4)
    return made


def nearest(queries, rows, count):
    """The nearest rows, by the definition."""
    return np.square(queries[:, None] - rows[None]).sum(2).argsort(1, kind="stable")[:, :count]


def test_centroids_lie_group_by_group_about_equally_many(centroids, coarse):
    sizes = np.bincount(coarse.groups)
    assert len(centroids) == len(coarse.groups) == LISTS and (np.diff(coarse.groups) >= 0).all()
    assert len(sizes) <= group_count(LISTS) and sizes.min() >= 1 and sizes.max() < 6 * sizes.mean()


def test_the_nearest_are_found_and_all_of_them_when_all_groups_are_looked_into(centroids, coarse, keys):
    queries = keys[::30].astype(np.float32)
    true = nearest(queries, centroids, 4)
    found = coarse.nearest(queries, 4)
    assert np.mean([len(np.intersect1d(a, b)) / 4 for a, b in zip(found, true, strict=True)]) > 0.8
    every = int(coarse.groups[-1]) + 1
    found = coarse.nearest(queries, every)[:, :4]
    same = [len(np.intersect1d(a, b)) / 4 for a, b in zip(found, true, strict=True)]
    assert np.mean(same) > 0.97  # but for centroids that 8 bits do not tell apart


def test_one_query_gets_what_a_batch_gets_and_no_number_gets_none(coarse, keys):
    queries = keys[:200].astype(np.float32)
    queries[7] = np.nan
    batch = coarse.nearest(queries, 5)
    alone = np.concatenate([coarse.nearest(queries[row : row + 1], 5) for row in range(len(queries))])
    np.testing.assert_array_equal(batch, alone)
    assert (batch[7] == -1).all() and (np.delete(batch, 7, 0) >= 0).all()


def test_queries_may_lie_apart_in_memory(keys):
    wide = np.ascontiguousarray(keys[:, :16], np.float32)
    coarse = Coarse(*two_level_centroids(wide, LISTS, group_count(LISTS)))
    np.testing.assert_array_equal(coarse.nearest(wide[::3], 2), coarse.nearest(wide[::3].copy(), 2))
    assert not wide[::3].flags.c_contiguous


def test_an_index_without_the_groups_that_it_had_is_refused(store, tmp_path):
    moved = shutil.copytree(store.path, tmp_path / "store")
    next(moved.glob("index/default/*/groups.npy")).unlink()
    for unread in (True, False):
        with pytest.raises(StoreError, match=r"groups\.npy is missing; remove"):
            open_index(Datastore.open(moved), unread=unread)


def test_more_lists_than_in_the_nearest_groups_can_be_asked_for(coarse, keys):
    found = coarse.nearest(keys[:40].astype(np.float32), LISTS)
    assert (np.sort(found, axis=1) == np.arange(LISTS)).all() and group_count(LISTS) > LOOKED_INTO


def test_centroids_move_to_the_means_of_their_keys(keys, centroids, coarse):
    keys = keys.astype(np.float32)

    def error(some):
        return np.square(keys - some[nearest(keys, some, 1)[:, 0]]).sum(1).mean()

    moved = refine(keys, centroids, coarse.groups)
    assert moved.shape == centroids.shape and moved.dtype == np.float32
    assert error(moved) < 0.985 * error(centroids)
    apart = np.concatenate([keys - 20, keys + 20])[:, :4].copy()
    far = np.array([[-20] * 4, [20] * 4, [90] * 4], np.float32)  # the last is nearest to nothing, and stays
    means = [apart[: len(keys)].mean(0), apart[len(keys) :].mean(0), far[2]]
    np.testing.assert_allclose(refine(apart, far, np.zeros(3, np.int32)), means, rtol=1e-3)


def test_groups_are_kept_and_read_and_others_are_refused(centroids, coarse, tmp_path):
    class Index:
        nlist = LISTS

        class quantizer:
            reconstruct_n = staticmethod(lambda first, count: centroids[first : first + count])

    data = IndexData(tmp_path)
    assert Coarse.read(data, Index) is None
    coarse.write(data)
    again = Coarse.read(data, Index)
    np.testing.assert_array_equal(again.nearest(centroids, 3), coarse.nearest(centroids, 3))
    for place, value in ((5, 10_000), (0, 1), (-1, 0), (50, -1)):
        groups = coarse.groups.copy()
        groups[place] = value
        files.write_array(data.groups, np.int32, groups.shape, [groups])
        with pytest.raises(StoreError, match="groups in order"):
            Coarse.read(data, Index)
    data.groups.write_bytes(data.groups.read_bytes()[:-4])
    with pytest.raises(StoreError, match="bytes, expected"):
        Coarse.read(data, Index)


def test_an_index_with_groups_finds_the_nearest_of_the_lists_it_looks_at(store, keys):
    index, info = open_index(store)
    assert index.coarse is not None and f"{info.data}/groups.npy" in info.files
    queries = keys[::45].astype(np.float32) + np.float32(0.1)
    probed = index.scan.probe(queries, 4)
    ids = np.asarray(index.scan.lists.ids)
    offsets = np.asarray(index.scan.lists.offsets)
    found_distances, found = index.search(queries, 10)
    agree = []
    for query, lists, some in zip(queries, probed, found, strict=True):
        here = np.concatenate([ids[offsets[number] : offsets[number + 1]] for number in lists])
        true = here[nearest(query[None], keys[here].astype(np.float32), 10)[0]]
        agree.append(len(np.intersect1d(true, some)) / 10)
    assert np.mean(agree) > 0.97  # 8 bits lose a little
    assert (np.diff(found_distances, axis=1) >= 0).all()
    for row in range(5):
        np.testing.assert_array_equal(index.search(queries[row : row + 1], 10)[1][0], found[row])


def test_every_record_lies_in_the_list_that_a_search_for_it_would_look_at_first(store, keys):
    index, _ = open_index(store)
    own = np.empty(len(keys), np.int64)
    own[np.asarray(index.scan.lists.ids)] = np.repeat(np.arange(LISTS), np.diff(index.scan.lists.offsets))
    np.testing.assert_array_equal(own, index.scan.probe(keys.astype(np.float32), 1)[:, 0])


def test_it_is_an_index_of_faiss_too(store, keys):
    plain = faiss_index(store)
    plain.nprobe = LISTS
    queries = keys[:50].astype(np.float32)
    index, _ = open_index(store)
    np.testing.assert_array_equal(plain.search(queries, 3)[1][:, 0], index.search(queries, 3)[1][:, 0])


def test_threads_do_not_change_what_is_found(store, keys):
    import numba

    queries = keys[:300].astype(np.float32)
    before = numba.get_num_threads()
    found = []
    for threads in {1, before}:
        numba.set_num_threads(threads)
        found.append(Retriever(store).search(queries, 20).ids)
    numba.set_num_threads(before)
    np.testing.assert_array_equal(found[0], found[-1])
