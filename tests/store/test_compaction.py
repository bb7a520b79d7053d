"""Compaction: what remains closes up, nothing of what is gone is left, and a kill leaves one state or the other."""

import numpy as np
import pytest

from nearlm.base import StoreError, files
from nearlm.store import Datastore
from nearlm.store import compaction as module
from nearlm.store.compaction import compact_store
from nearlm.store.forgetting import Choice, write_tombstones
from synthetic import cut_documents, make_store

LENGTHS = [20, 30, 10, 40]


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    made = make_store(tmp_path / "store", rng.normal(0, 1, (99, 4)), rng.integers(0, 9, 99), shard=30)
    return cut_documents(made, LENGTHS)


def compact(store):
    return compact_store(store.path, lambda old, coming: None, lambda now: None)


@pytest.mark.parametrize("names", ["a", "b", "d", "ac", "bd", "abc"])
def test_a_compacted_store_holds_what_remains(store, names):
    bounds = store.document_bounds
    expected = {name: getattr(store, name)[:] for name in ("keys", "values")}
    tokens = store.tokens[:]
    keep = np.ones(100, bool)
    for name in names:
        number = "abcd".index(name)
        keep[bounds[number] : bounds[number + 1]] = False
        write_tombstones(store.path, Choice(document=name))
    made = compact(store)
    kept = keep[1:]  # record i has position i + 1
    assert made.forgotten is None and made.manifest.forgotten is None
    assert np.array_equal(made.keys[:], expected["keys"][kept])
    assert np.array_equal(made.values[:], expected["values"][kept])
    assert np.array_equal(made.tokens[:], tokens[keep])
    assert np.array_equal(made.tokens[:].take(made.origin[:]), made.values[:])
    left = [name for name in "abcd" if name not in names]
    assert made.document_names() == left
    assert np.diff(made.document_bounds).tolist() == [LENGTHS["abcd".index(name)] for name in left]
    assert made.learned_from(store.checksum, None) and not made.continues(store.checksum, store.state)
    made.verify()
    listed = {path.name for path in made.path.iterdir()} - {".lock", "manifest.json"}
    assert listed == set(made.manifest.files)


def test_no_byte_of_what_is_gone_is_left(store):
    keys = store.keys[19:49].tobytes()
    tokens = store.tokens[20:50].tobytes()
    write_tombstones(store.path, Choice(document="b"))
    assert any(keys[:64] in path.read_bytes() for path in store.path.glob("*.npy"))
    made = compact(store)
    for path in made.path.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        for what in (keys, tokens):
            assert not any(what[at : at + 24] in data for at in range(0, len(what) - 24, 8)), path


def test_twice_or_without_anything_forgotten_it_does_nothing(store):
    before = store.layout.manifest.read_bytes()
    compact(store)
    assert store.layout.manifest.read_bytes() == before
    write_tombstones(store.path, Choice(document="b"))
    first = compact(store)
    assert compact(store).checksum == first.checksum
    write_tombstones(store.path, Choice(document="c"))
    assert compact(store).document_names() == ["a", "d"]


def test_the_folder_of_a_job_that_was_killed_while_it_closed_goes(store):
    write_tombstones(store.path, Choice(document="b"))
    compact(store)
    left = store.layout.compact_job.folder
    left.mkdir()
    compact(store)
    assert not left.exists()


def test_killed_anywhere_it_is_one_state_or_the_other_and_ends_the_same(store, monkeypatch):
    write_tombstones(store.path, Choice(document="b"))
    whole = Datastore.open(store.path).checksum

    class Killed(Exception):
        pass

    def kill(*given):
        raise Killed

    def kill_after(before):
        return lambda now: None if now.checksum == before.checksum else kill()

    opened = Datastore.open(store.path)
    for step in ("_Compaction", "write_manifest", "settle"):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, kill if step != "settle" else kill_after(opened))
            with pytest.raises(Killed):
                compact(store)
        opened = Datastore.open(store.path)
        assert (opened.checksum == whole) == (step != "settle")
        assert opened.document_names() == (list("abcd") if step != "settle" else list("acd"))
    assert Datastore.open(store.path).summary()["unfinished_compaction"]
    made = compact(store)
    assert not made.summary()["unfinished_compaction"]
    assert {path.name for path in made.path.iterdir()} - {".lock", "manifest.json"} == set(made.manifest.files)


def test_an_unfinished_append_is_not_mixed_up(store):
    write_tombstones(store.path, Choice(document="b"))
    store.layout.build_job.begin({})
    with pytest.raises(StoreError, match="unfinished append"):
        compact(store)


def test_a_text_of_its_own_name_loses_the_name(store):
    said = files.read_stamped(store.layout.manifest)
    said["segments"][0]["texts"] = ["a", "b", "rest"]
    files.write_stamped(store.layout.manifest, said)
    write_tombstones(store.path, Choice(document="b"))
    assert compact(store).manifest.segments[0].texts == ["a", module.FORGOTTEN, "rest"]
