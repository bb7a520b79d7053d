"""Records leave an index without its being trained again: distances stay, and no byte of theirs is left."""

import numpy as np
import pytest

from nearlm.base import files
from nearlm.search import Retriever, build_index, read_index_info, training
from nearlm.search.index import open_index
from nearlm.search.removal import drop_kept, prepare_without, settle_index
from nearlm.store import Datastore
from nearlm.store.compaction import compact_store
from nearlm.store.forgetting import Choice, write_tombstones
from nearlm.store.prepared import settle
from synthetic import cut_documents, make_store

KINDS = {"IVF8,SQ8": 8, "IVF12,SQ8": 12, "IVF8,SQ4": 8, "flat": None, "IVF4,Flat": 4, "IVF4,PQ4x4": 4, "HNSW8": None}


@pytest.fixture(params=KINDS)
def edited(request, tmp_path, monkeypatch):
    """A store with an index of some kind that has forgotten one of its documents, and the keys that remain."""
    monkeypatch.setattr(training, "GROUPED_LISTS", 10)
    rng = np.random.default_rng(0)
    keys = rng.normal(0, 1, (900, 12)).astype(np.float16)
    values = rng.integers(0, 50, 900)
    store = cut_documents(make_store(tmp_path / "store", keys, values, shard=250), [200, 301, 400])
    build_index(store, request.param, nprobe=KINDS[request.param])
    write_tombstones(store.path, Choice(document="b"))
    gone = (np.arange(1, 901) >= 200) & (np.arange(1, 901) < 501)
    return Datastore.open(store.path), gone


def exact(keys, queries, k):
    distances = ((queries[:, None] - keys[None].astype(np.float32)) ** 2).sum(-1)
    return np.sort(distances, axis=1)[:, :k]


def compacted(store, gone):
    def prepare(old, coming):
        prepare_without(old, coming, "default", gone)

    return compact_store(store.path, prepare, lambda now: settle_index(now, "default"))


def test_what_is_forgotten_is_not_found_and_exactly_k_others_are(edited):
    store, gone = edited
    queries = store.keys[200:260].astype(np.float32)  # at the forgotten ones
    for k in (1, 7, 300):
        for some in (queries, queries[:3]):
            found = Retriever(store).search(some, k)
            assert found.ids.shape == (len(some), k)
            assert not gone[found.ids[found.ids >= 0]].any()
            if "HNSW" not in str(Retriever(store).info):
                assert (found.ids >= 0).all()
    assert Retriever(store).max_k == Retriever(store).used_k(5000) == (~gone).sum()


def test_flat_and_exact_rescoring_find_the_nearest_of_what_remains(edited):
    store, gone = edited
    if read_index_info(store, "default").factory != "flat":
        pytest.skip("only this index is exact")
    queries = store.keys[200:260].astype(np.float32)
    found = Retriever(store, distances="store").search(queries, 9)
    assert np.allclose(found.distances, exact(store.keys[:][~gone], queries, 9), rtol=1e-3)


def test_a_compacted_index_gives_the_same_distances_and_keeps_its_hash(edited):
    store, gone = edited
    queries = store.keys[100:160].astype(np.float32)
    before = Retriever(store)
    expected = before.search(queries, 20)
    made = compacted(store, gone)
    after = Retriever(made)
    found = after.search(queries, 20)
    assert len(made) == after.index.records == (~gone).sum()
    assert np.array_equal(found.tokens, np.where(found.ids >= 0, made.values.take(np.maximum(found.ids, 0)), -1))
    if "HNSW" in before.info.factory:  # trained again
        return
    assert after.info.hash == before.info.hash
    assert (after.index.coarse is None) == (before.index.coarse is None) == (before.info.spec.factory != "IVF12,SQ8")
    assert np.array_equal(found.distances, expected.distances)
    numbers = np.cumsum(~gone) - 1
    assert np.array_equal(np.sort(found.ids), np.sort(numbers[expected.ids]))


def test_the_old_index_serves_until_the_manifest_is_renamed(edited):
    store, gone = edited
    seen = []

    def prepare(old, coming):
        prepare_without(old, coming, "default", gone)
        assert len(Retriever(Datastore.open(old.path)).store) == 900
        assert open_index(coming)[1].records == len(coming)
        seen.append(True)

    made = compact_store(store.path, prepare, lambda now: None)
    assert seen and Retriever(made).index.records == (~gone).sum()


def test_after_a_killed_compaction_the_data_have_the_name_that_they_would_have_had(edited):
    store, gone = edited

    def prepare(old, coming):
        prepare_without(old, coming, "default", gone)
        settle(old)  # as the next run does after a kill
        prepare_without(old, coming, "default", gone)

    made = compact_store(store.path, prepare, lambda now: None)
    assert Retriever(made).info.data == f"data-{len(made):012d}"


def test_what_merging_and_ranking_kept_goes(edited):
    store, _ = edited
    place = store.layout.index("default")
    for path in (place.neighbors, place.neighbors_description, place.ranks, place.ranks_description):
        files.write_bytes(path, b"kept")
    drop_kept(place)
    assert not list(place.folder.glob("neighbors*")) and not list(place.folder.glob("ranks*"))
