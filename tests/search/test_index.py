"""The index on disk: opened, measured, refused when damaged, and had as plain FAISS."""

import json
import os
import shutil

import faiss
import numpy as np
import pytest

from calls import build, build_index
from nearlm.base import files
from nearlm.base.errors import OptionError, StoreError
from nearlm.base.records import FileInfo
from nearlm.search import kinds as index_module
from nearlm.search.index import faiss_index, open_index, read_settings, verify_index, write_settings
from nearlm.search.retriever import Retriever
from nearlm.store import Datastore, Tuned, faiss_files, write_tuned
from synthetic import forge, put, skewed_store


@pytest.mark.parametrize("kind", ["auto", "IVF16,SQ4", "IVF16_HNSW8,SQ8", "IVF16,PQ8x4", "flat"])
def test_an_index_can_be_had_as_plain_faiss(store, queries, monkeypatch, kind):
    monkeypatch.setattr(index_module, "_FEW", 0)
    build_index(store, kind, name="plain", nprobe=None if kind == "flat" else 64, quiet=True)
    index = faiss_index(store, "plain")
    assert index.ntotal == len(store)
    distances, ids = index.search(queries, 20)
    found = Retriever(store, "plain").search(queries, 20)
    rounded = kind in ("auto", "IVF16,SQ4")  # queries, to 8 bits for 4-bit codes
    np.testing.assert_allclose(distances, found.distances, rtol=1e-3, atol=0.3 if rounded else 0.01)
    assert np.mean(ids == found.ids) > (0.8 if rounded else 0.95)


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
    for refuses in (verify_index, open_index):
        with pytest.raises(StoreError, match=r"codes\.npy is damaged"):
            refuses(store, "measured")
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match="cut"):
        open_index(store, "measured")


def test_unknown_names_are_refused_with_those_there_are(store):
    build_index(store, "flat", name="exact", quiet=True)
    with pytest.raises(StoreError, match="exact"):
        open_index(Datastore.open(store.path), "none")
    with pytest.raises(OptionError, match="plain name"):
        open_index(store, "../x")
    with pytest.raises(OptionError, match="`distances`"):
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


@pytest.fixture
def indexed(store, tmp_path):
    """A copy of the store with an index of lists, and what `index.json` says of it."""
    copy = Datastore.open(shutil.copytree(store.path, tmp_path / "copy"))
    build_index(copy, "IVF16,Flat", quiet=True)
    return copy, copy.layout.index("default").description


@pytest.mark.parametrize("data", ["..", "../../..", "/tmp", "data-1/../..", "data-1\n", ""])
def test_data_outside_of_the_index_are_refused(indexed, data: str):
    store, description = indexed
    files.write_stamped(description, {**files.read_json(description), "data": data})
    for use in (open_index, verify_index):
        with pytest.raises(StoreError, match=r"names a folder .*, expected data-…; remove it and index again"):
            use(store, "default")


@pytest.mark.parametrize(
    "name", ["../../manifest.json", "/etc/hosts", "data-000000001234/index.faiss", "settings.json"]
)
def test_files_that_an_index_cannot_have_are_refused(indexed, name: str):
    store, description = indexed
    known = files.read_json(description)
    files.write_stamped(description, {**known, "files": {**known["files"], name: {"bytes": 1, "sha256": ""}}})
    for use in (open_index, verify_index):
        with pytest.raises(StoreError, match=r"index\.json names a file .*, which it cannot have"):
            use(store, "default")


def test_files_that_an_index_does_not_list_are_refused(indexed):
    store, description = indexed
    known = files.read_json(description)
    for name in known["files"]:
        listed = {other: file for other, file in known["files"].items() if other != name}
        files.write_stamped(description, {**known, "files": listed})
        for use in (open_index, verify_index):
            with pytest.raises(StoreError, match=rf"does not list {name}, which is there; remove .* and make"):
                use(store, "default")


@pytest.mark.parametrize("mode", ["first", "always", "never"])
def test_faiss_files_are_looked_into_unless_they_are_known(store, tmp_path, monkeypatch, mode):
    """Known are those that were looked into before, and whose bytes are the same; with `never` nothing is known."""
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("NEARLM_VERIFY", mode)
    copy = Datastore.open(shutil.copytree(store.path, tmp_path / "copy"))
    build_index(copy, "IVF16,SQ8", quiet=True)
    data = next(copy.layout.index("default").folder.glob("data-*"))
    for path in data.iterdir():
        os.utime(path, (1, 1))  # old enough to be remembered
    looked: list[str] = []
    watched = faiss_files._watched
    monkeypatch.setattr(faiss_files, "_watched", lambda file: (looked.append(file.name), watched(file))[1])
    counts = []
    for time in (1, 1, 1, 2):
        os.utime(data / "index.faiss", (time, time))
        looked.clear()
        open_index(copy)
        counts.append(len(looked))
    assert counts == {"first": [1, 0, 0, 1], "always": [1, 1, 1, 1], "never": [1, 1, 1, 1]}[mode]


def test_lists_in_somebody_elses_file_are_neither_searched_nor_added_to(indexed, tmp_path, lm):
    store, description = indexed
    known = files.read_json(description)
    path = description.parent / known["data"] / "index.faiss"
    index = faiss.read_index(str(path))
    lists = faiss.OnDiskInvertedLists(16, index.code_size, str(tmp_path / "victim"))
    lists.merge_from_1(index.invlists)
    index.replace_invlists(lists)
    faiss.write_index(index, str(path))
    listed = {**known["files"], f"{known['data']}/index.faiss": vars(FileInfo.of(path))}
    files.write_stamped(description, {**known, "files": listed})
    before = (tmp_path / "victim").read_bytes()
    with pytest.raises(StoreError, match="its lists lie in another file"):
        open_index(store)
    (tmp_path / "more.txt").write_text("one more text to add to it " * 20)
    build(lm, str(tmp_path / "more.txt"), store.path, append=True, quiet=True)
    with pytest.raises(StoreError, match="its lists lie in another file"):
        build_index(store.path, quiet=True)
    assert (tmp_path / "victim").read_bytes() == before


@pytest.mark.parametrize(
    "spec",
    [
        {"factory": "IVF17,Flat", "nprobe": 8},
        {"factory": "IVF16,SQ8", "nprobe": 8},
        {"factory": "IVF99999999999999999999999,Flat", "nprobe": 8},
        {"factory": "IMI2x24,Flat", "nprobe": 8},
        {"factory": "Flat", "nprobe": 8},
        {"factory": "Flat"},
        {"factory": "nonsense", "nprobe": 8},
        {"factory": "IVF16,Flat", "nprobe": 8, "pca": 16},
    ],
)
def test_an_index_of_another_kind_than_it_says_is_refused(indexed, spec: dict):
    store, description = indexed
    files.write_stamped(description, {**files.read_json(description), "spec": spec})
    with pytest.raises(StoreError, match=r"\.faiss is not .*; remove .* and make the index again"):
        open_index(store)


@pytest.mark.parametrize("spec", [{"nprobe": -1}, {"nprobe": 0}, {"nprobe": 1 << 63}, {"nprobe": 8, "pca": -4}])
def test_a_kind_with_numbers_that_cannot_be_is_refused(indexed, spec: dict):
    store, description = indexed
    files.write_stamped(description, {**files.read_json(description), "spec": {"factory": "IVF16,Flat", **spec}})
    with pytest.raises(StoreError, match=r"index\.json is not as .*, expected at least 1"):
        open_index(store)


def test_a_kind_that_is_changed_later_is_looked_at_again(indexed, tmp_path, monkeypatch):
    store, description = indexed
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "own"))
    for path in description.parent.rglob("data-*/*"):
        os.utime(path, (1, 1))  # old enough to be remembered
    open_index(store)
    known = files.read_json(description)
    files.write_stamped(description, {**known, "spec": {"factory": "IVF16,SQ8", "nprobe": 8}})
    with pytest.raises(StoreError, match=r"index\.faiss is not IVF16,SQ8"):
        open_index(store)


def test_an_index_of_fewer_records_than_the_store_is_refused(indexed):
    store, description = indexed
    known = files.read_json(description)
    files.write_stamped(description, {**known, "records": known["records"] - 1})
    with pytest.raises(StoreError, match=r"index 'default' has .* records"):
        open_index(store)


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("offsets", slice(None, None), 0),
        ("offsets", 3, 10**6),
        ("offsets", 0, 5),
        ("offsets", 3, -1),
        ("ids", 9, 10**6),
        ("ids", 9, -1),
    ],
)
def test_an_index_that_leads_outside_is_refused(store, name, where, value):
    build_index(store, "IVF16,SQ8", name="forged", nprobe=16, quiet=True)
    place = store.layout.index("forged")
    (array,) = place.folder.glob(f"data-*/{name}.npy")
    before = array.read_bytes(), place.description.read_bytes()
    forge(place.description, array, put(where, value))
    with pytest.raises(StoreError, match=rf"{name}\.npy does not hold|ids\.npy has"):
        open_index(store, "forged")
    array.write_bytes(before[0])
    place.description.write_bytes(before[1])


def test_tokens_that_no_vocabulary_has_are_refused(store):
    build_index(store, "flat", name="forged", quiet=True)
    place = store.layout.index("forged")
    (path,) = place.folder.glob("data-*/values.npy")
    wide = np.load(path).astype(np.int32)
    wide[9] = 2**31 - 1
    np.save(path, wide)
    known = files.read_json(place.description)
    listed = {**known["files"], f"{known['data']}/values.npy": vars(FileInfo.of(path))}
    files.write_stamped(place.description, {**known, "files": listed})
    with pytest.raises(StoreError, match=r"values\.npy does not hold tokens"):
        open_index(store, "forged")


def test_an_index_as_older_versions_wrote_it_is_read(store, queries):
    """They had ids of eight bytes, and tokens of four."""
    build_index(store, "IVF16,SQ8", name="old", nprobe=16, quiet=True)
    expected = Retriever(store, "old").search(queries, 30)
    place = store.layout.index("old")
    known = files.read_json(place.description)
    listed = dict(known["files"])
    for name, dtype in (("ids", np.int64), ("values", np.int32)):
        (path,) = place.folder.glob(f"data-*/{name}.npy")
        narrow = np.load(path)
        assert narrow.dtype.itemsize < np.dtype(dtype).itemsize
        np.save(path, narrow.astype(dtype))
        listed[f"{known['data']}/{name}.npy"] = vars(FileInfo.of(path))
    files.write_stamped(place.description, {**known, "files": listed})
    found = Retriever(store, "old").search(queries, 30)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.fixture
def tuned(tmp_path):
    """A store of its own with an index, and settings that were tuned for it."""
    made = skewed_store(tmp_path / "store")
    info = build_index(made, "IVF8,SQ8", nprobe=4, quiet=True)
    write_settings(made, Tuned(index="default", lam=0.4, knn_temperature=2.0, k=16, nprobe=4, index_hash=info.hash))
    return made


def test_settings_belong_to_their_index(tuned):
    assert read_settings(tuned, "default").lam == 0.4
    kept = tuned.layout.index("default").settings.read_bytes()
    build_index(tuned, "flat", quiet=True)
    assert read_settings(tuned, "default") is None
    tuned.layout.index("default").settings.write_bytes(kept)  # as if `tune` had not noticed
    for refuses in (read_settings, verify_index):
        with pytest.raises(StoreError, match=r"settings\.json was tuned for another index .*; tune it: nearlm tune"):
            refuses(tuned, "default")


def test_an_index_that_is_remade_while_it_is_tuned_does_not_get_the_settings(tuned):
    slow = read_settings(tuned, "default")
    build_index(tuned, "IVF8,SQ8", nprobe=2, quiet=True)
    with pytest.raises(StoreError, match=r"index 'default' of .* was remade while it was tuned; tune it: nearlm tune"):
        write_settings(tuned, slow)
    assert read_settings(tuned, "default") is None


def test_settings_that_do_not_name_their_index_are_read_as_they_are(tuned):
    write_tuned(tuned.layout, Tuned(index="default", lam=0.7))
    assert read_settings(tuned, "default").lam == 0.7
