"""Indexes and retrieval against brute force; indexing that goes on after a kill and after an append."""

import itertools
import json
import re

import faiss
import numpy as np
import pytest

from calls import build, build_index
from conftest import make_text
from nearlm.base import files
from nearlm.base.arrays import ArrayFile, ShardedArray
from nearlm.base.errors import OptionError, StoreError
from nearlm.search import index_building as indexing
from nearlm.search import kinds as index_module
from nearlm.search import rescoring as rescore
from nearlm.search.exact import exact_search
from nearlm.search.index import faiss_index, open_index, verify_index
from nearlm.search.kinds import IndexSpec, choose_index, paper_code_bytes, paper_nlist
from nearlm.search.linear import principal_axes
from nearlm.search.retriever import Retriever
from nearlm.store.datastore import Datastore


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("index")
    for number in range(3):
        (folder / f"train{number}.txt").write_text(make_text(400, seed=number))
    return build(lm, str(folder), folder / "store", window=64, shard_records=700, quiet=True)


@pytest.fixture
def queries(store):
    rng = np.random.default_rng(0)
    return (store.keys.take(rng.integers(0, len(store), 20)) + rng.normal(0, 0.3, (20, 32))).astype(np.float32)


def brute_force(store, queries, k):
    keys = store.keys[:].astype(np.float64)
    d = ((queries[:, None].astype(np.float64) - keys) ** 2).sum(-1)
    ids = np.argsort(d, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(d, ids, 1), ids


def test_flat_search_is_exact(store, queries):
    build_index(store, "flat", name="exact", quiet=True)
    found = Retriever(store, "exact").search(queries, 50)
    d, ids = brute_force(store, queries, 50)
    np.testing.assert_allclose(found.distances, d, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.tokens, store.values[:][found.ids])
    assert np.mean(found.ids == ids) > 0.99  # equal but for ties
    np.testing.assert_allclose(exact_search(store, queries, 50)[0], d, rtol=1e-4, atol=1e-4)


def test_fewer_records_than_k_and_an_empty_list_are_padded(tmp_path, lm):
    (tmp_path / "t.txt").write_text("the licence")
    small = build(lm, str(tmp_path / "t.txt"), tmp_path / "s", quiet=True)
    build_index(small, quiet=True)
    found = Retriever(small).search(np.zeros((2, 32), np.float32), 1024)
    assert found.ids.shape == (2, len(small)) and set(found.ids[0]) == set(range(len(small)))
    (tmp_path / "one.txt").write_text("x")
    one = build(lm, str(tmp_path / "one.txt"), tmp_path / "s1", separator="none", quiet=True)
    build_index(one, quiet=True)
    assert len(one) == 1 and Retriever(one).search(np.ones((1, 32), np.float32)).tokens.tolist() == [[one.values[0]]]


def test_missing_neighbours_have_token_minus_one(store):
    build_index(store, "IVF64,Flat", name="lists", nprobe=1, quiet=True)
    found = Retriever(store, "lists").search(store.keys[:5].astype(np.float32), len(store))
    missing = found.ids < 0
    assert missing.any()
    assert (found.tokens[missing] == -1).all() and np.isinf(found.distances[missing]).all()
    assert (found.tokens[~missing] >= 0).all()


def test_store_distances_are_the_true_ones_in_order(store, queries):
    build_index(store, "IVF16,PQ8x4", name="coarse", nprobe=16, quiet=True)
    rough = Retriever(store, "coarse").search(queries, 60)
    found = Retriever(store, "coarse", distances="store").search(queries, 60)
    keys = store.keys[:].astype(np.float64)
    for row in range(len(queries)):
        assert set(found.ids[row]) == set(rough.ids[row])
        true = ((keys[found.ids[row]] - queries[row]) ** 2).sum(1)
        np.testing.assert_allclose(found.distances[row], true, rtol=1e-5, atol=1e-5)
    assert (np.diff(found.distances, axis=1) >= 0).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("in_memory", [True, False])
def test_rescoring_equals_the_equation(tmp_path, monkeypatch, dtype, in_memory):
    rng = np.random.default_rng(0)
    keys = (rng.normal(size=(900, 24)) * 10.0 ** rng.integers(-6, 3, (900, 24))).astype(dtype)
    shards = []
    for number, part in enumerate((keys[:500], keys[500:501], keys[501:])):
        file = ArrayFile(tmp_path / f"{number}.npy", np.dtype(dtype), part.shape)
        files.write_array(file.path, file.dtype, file.shape, [part])
        shards.append(file.open())
    monkeypatch.setattr(rescore, "_fits", lambda count: in_memory)
    queries, ids = rng.normal(size=(150, 24)).astype(np.float32), rng.integers(-1, 900, (150, 40))
    found = rescore.Rescorer(ShardedArray(shards)).distances(queries, ids)
    true = ((keys[ids].astype(np.float64) - queries[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(found, np.where(ids < 0, np.inf, true), rtol=1e-5, atol=1e-6)


def test_nprobe_reaches_the_lists_below_a_transform(store, queries, monkeypatch):
    build_index(store, "PCAR16,IVF32,SQ8", name="below", quiet=True)
    few, all_ = Retriever(store, "below", nprobe=1), Retriever(store, "below", nprobe=32)
    assert faiss.extract_index_ivf(few.index.faiss).nprobe == 1
    many = (all_.search(queries, 100).ids >= 0).sum()
    assert (few.search(queries, 100).ids >= 0).sum() < many == queries.shape[0] * 100
    with pytest.raises(OptionError, match="has no lists"):
        build_index(store, "flat", name="exact", quiet=True)
        Retriever(store, "exact", nprobe=3)


def test_the_automatic_index_scans_whitened_keys(store, queries, monkeypatch):
    monkeypatch.setattr(index_module, "_SMALL", 0)
    described = build_index(store, "auto", name="auto", nprobe=1000, quiet=True)
    assert described.recall > 0.97 and described.distance_error < 0.01
    retriever = Retriever(store, "auto")
    keys, x = retriever.index.transformed(store.keys[:]), retriever.index.transformed(queries)
    d = ((x[:, None] - keys) ** 2).sum(-1)
    most = retriever.search(queries, 60)
    np.testing.assert_allclose(most.distances, np.sort(d, axis=1)[:, :60], rtol=0.05)
    np.testing.assert_array_equal(retriever.search(queries, 30).ids, most.ids[:, :30])
    unordered = retriever.search(queries, 60, ordered=False)
    np.testing.assert_array_equal(np.sort(unordered.ids), np.sort(most.ids))


@pytest.mark.parametrize("kind", ["auto", "IVF16,PQ8x4", "flat"])
def test_an_index_can_be_had_as_plain_faiss(store, queries, monkeypatch, kind):
    monkeypatch.setattr(index_module, "_SMALL", 0)
    build_index(store, kind, name="plain", nprobe=None if kind == "flat" else 64, quiet=True)
    index = faiss_index(store, "plain")
    assert index.ntotal == len(store)
    distances, ids = index.search(queries, 20)
    found = Retriever(store, "plain").search(queries, 20)
    np.testing.assert_allclose(distances, found.distances, rtol=1e-3, atol=1e-2)
    assert np.mean(ids == found.ids) > 0.95


@pytest.mark.parametrize("power", [0.0, -0.25, -0.5])
def test_principal_axes_scale_by_variance_and_keep_its_total(power):
    rng = np.random.default_rng(0)
    keys = (rng.normal(size=(4000, 12)) * np.geomspace(8, 0.5, 12) + 3).astype(np.float32)
    out = principal_axes(keys, 6, power).apply(keys).astype(np.float64)
    values, vectors = np.linalg.eigh(np.cov(keys.T.astype(np.float64)))
    values, vectors = values[::-1][:6], vectors[:, ::-1][:, :6]
    expected = (keys - keys.mean(0)) @ vectors * values**power
    expected *= np.sqrt(values.sum() / expected.var(0).sum())
    np.testing.assert_allclose(np.abs(out), np.abs(expected), rtol=1e-2, atol=2e-2)


def test_principal_axes_of_keys_without_variance_are_finite():
    keys = np.zeros((100, 8), np.float32)
    keys[:, 0] = np.arange(100)
    assert np.isfinite(principal_axes(keys, 8, -0.5).apply(keys)).all()
    assert np.isfinite(principal_axes(keys * 0, 8, -0.5).apply(keys)).all()


def test_the_papers_index_is_as_facts_define_it():
    assert [paper_nlist(n) for n in (852_105, 1, 103_000_000)] == [1024, 1, 4096]
    assert [paper_code_bytes(d) for d in (576, 1024, 1536, 50)] == [64, 64, 64, 50]
    assert choose_index("paper", 852_105, 576) == IndexSpec("IVF1024,PQ64", 32)
    assert choose_index("flat", 10, 576) == IndexSpec("Flat")
    with pytest.raises(OptionError, match="no FAISS factory"):
        choose_index("nonsense", 10, 576)
    with pytest.raises(OptionError, match="nprobe"):
        choose_index("paper", 10, 576, 0)
    for kind in ("flat", "auto", "SQ8"):
        with pytest.raises(OptionError, match="leave it out"):
            choose_index(kind, 10, 576, 8)


def test_fewer_records_mean_shorter_lists():
    def nlist(records):
        return int(re.search(r"IVF(\d+)", choose_index("auto", records, 576).factory)[1])

    assert nlist(852_105) == 1024
    per_list = [n / nlist(n) for n in range(20_000, 10**7, 50_000)]
    assert all(later > 0.95 * earlier for earlier, later in itertools.pairwise(per_list))


def test_index_json_says_what_was_measured(store):
    described = build_index(store, "IVF16,SQ8", name="measured", nprobe=16, quiet=True)
    assert described.recall > 0.9 and described.distance_error < 0.1
    assert described.queries_per_second > 0 and 32 < described.bytes_per_record < 100
    assert build_index(store, "IVF16,SQ8", name="measured", nprobe=16, quiet=True) == described
    verify_index(store, "measured")
    path = next((store.path / "index" / "measured").glob("data-*/codes.npy"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"codes\.npy"):
        verify_index(store, "measured")
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match="cut"):
        open_index(store, "measured")


def test_indexing_goes_on_after_a_kill(store, monkeypatch):
    whole = build_index(store, "IVF16,SQ8", name="whole", quiet=True)
    monkeypatch.setattr(indexing, "BLOCK", 100)
    monkeypatch.setattr(indexing, "CHECKPOINT_SECONDS", 0.0)
    trained, real_add, adds = [], indexing.SearchIndex.add, []
    monkeypatch.setattr(indexing, "train_index", lambda *a, real=indexing.train_index: (trained.append(1), real(*a)))

    def add(self, keys):
        if len(adds) in (3, 9):
            adds.append(0)
            raise KeyboardInterrupt
        adds.append(len(keys))
        real_add(self, keys)

    monkeypatch.setattr(indexing.SearchIndex, "add", add)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_index(store, "IVF16,SQ8", name="killed", quiet=True)
        with pytest.raises(StoreError, match="no index"):
            open_index(store, "killed")
    killed = build_index(store, "IVF16,SQ8", name="killed", quiet=True)
    assert sum(adds) == len(store) and len(trained) == 1
    for name in ("records", "recall", "distance_error", "spec"):
        assert getattr(killed, name) == getattr(whole, name)


def test_after_an_append_only_the_new_records_are_added(tmp_path, lm, monkeypatch):
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(make_text(300, seed=number))
    store = build(lm, str(tmp_path / "0.txt"), tmp_path / "s", window=64, quiet=True)
    build_index(store, "IVF16,SQ8", quiet=True)
    old = len(store)
    store = build(None, str(tmp_path / "1.txt"), tmp_path / "s", append=True, quiet=True)
    with pytest.raises(StoreError, match="earlier state"):
        open_index(store)
    added, real_add = [], indexing.SearchIndex.add
    monkeypatch.setattr(indexing.SearchIndex, "add", lambda self, keys: (added.append(len(keys)), real_add(self, keys)))
    described = build_index(store, quiet=True)
    assert sum(added) == len(store) - old and described.records == len(store)
    assert len(list((store.path / "index" / "default").glob("data-*"))) == 1
    near = Retriever(store, nprobe=16).search(store.keys[-1:].astype(np.float32), 1)
    assert near.tokens[0, 0] == store.values[-1]


def test_unknown_names_are_refused_with_those_there_are(store):
    build_index(store, "flat", name="exact", quiet=True)
    with pytest.raises(StoreError, match="exact"):
        open_index(Datastore.open(store.path), "none")
    with pytest.raises(OptionError, match="plain name"):
        open_index(store, "../x")
    with pytest.raises(OptionError, match="--distances"):
        Retriever(store, "exact", distances="parent?")
    assert json.loads((store.path / "index" / "exact" / "index.json").read_text())["factory"] == "flat"


def test_gpu_faiss_is_used_when_it_is_there(store, queries, monkeypatch):
    build_index(store, "IVF16,Flat", name="gpu", nprobe=16, quiet=True)
    expected = Retriever(store, "gpu").search(queries, 10)
    moved = []

    class OnGpu:
        """What a GPU index offers to us: search and a count, but no inverted lists to look into."""

        def __init__(self, index):
            self.index, self.ntotal = index, index.ntotal

        def search(self, x, k):
            return self.index.search(x, k)

    def move(index):
        moved.append(index)
        return OnGpu(index)

    class Space:
        def set_index_parameter(self, index, name, value):
            faiss.extract_index_ivf(index.index).nprobe = value

    real = faiss.try_extract_index_ivf
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", move, raising=False)
    monkeypatch.setattr(faiss, "GpuParameterSpace", Space, raising=False)
    monkeypatch.setattr(faiss, "try_extract_index_ivf", lambda i: None if isinstance(i, OnGpu) else real(i))
    retriever = Retriever(store, "gpu", nprobe=16)
    assert moved and isinstance(retriever.index.faiss, OnGpu)
    np.testing.assert_array_equal(retriever.search(queries, 10).ids, expected.ids)
    monkeypatch.setattr(
        faiss, "index_cpu_to_all_gpus", lambda index: (_ for _ in ()).throw(RuntimeError("no such kind"))
    )
    assert not isinstance(Retriever(store, "gpu").index.faiss, OnGpu)


def test_another_kind_under_the_same_name_drops_what_was_tuned_for_the_old_one(store):
    build_index(store, "IVF16,SQ8", name="again", quiet=True)
    settings = store.path / "index" / "again" / "settings.json"
    files.write_stamped(settings, {})
    assert build_index(store, name="again", quiet=True).spec.factory == "IVF16,SQ8" and settings.exists()
    assert build_index(store, "flat", name="again", quiet=True).spec.factory == "Flat" and not settings.exists()
    assert Retriever(store, "again").search(store.keys[:1].astype(np.float32), 1).ids.tolist() == [[0]]
