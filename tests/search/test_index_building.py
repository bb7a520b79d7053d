"""Indexing that goes on after a kill and after an append."""

import numpy as np
import pytest

from calls import build, build_index, prune_store
from nearlm.base import files
from nearlm.base.errors import StoreError
from nearlm.search import index_building as indexing
from nearlm.search.index import open_index, read_settings
from nearlm.search.retriever import Retriever
from nearlm.store import Tuned, write_tuned
from synthetic import skewed_store
from tiny import make_text


def test_indexing_goes_on_after_a_kill(store, monkeypatch):
    whole = build_index(store, "IVF16,SQ8", name="whole", quiet=True)
    monkeypatch.setattr(indexing, "BLOCK", 100)
    monkeypatch.setattr(indexing, "INDEX_SAVE_SECONDS", 0.0)
    trained, real_add, adds = [], indexing.SearchIndex.add, []
    monkeypatch.setattr(indexing, "train_index", lambda *a, real=indexing.train_index: (trained.append(1), real(*a))[1])

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


def test_another_kind_under_the_same_name_drops_what_was_tuned_for_the_old_one(store):
    build_index(store, "IVF16,SQ8", name="again", quiet=True)
    settings = store.path / "index" / "again" / "settings.json"
    files.write_stamped(settings, {})
    assert build_index(store, name="again", quiet=True).spec.factory == "IVF16,SQ8" and settings.exists()
    assert build_index(store, "flat", name="again", quiet=True).spec.factory == "Flat" and not settings.exists()
    assert Retriever(store, "again").search(store.keys[:1].astype(np.float32), 1).ids.tolist() == [[0]]


def test_an_index_that_cannot_be_read_is_not_made_again_as_another_kind(tmp_path, capsys):
    made = skewed_store(tmp_path / "store")
    info = build_index(made, "IVF8,SQ8", nprobe=4, quiet=True)
    place = made.layout.index("default")
    write_tuned(made.layout, Tuned(index="default", lam=0.4, index_hash=info.hash))
    place.description.write_bytes(place.description.read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"index\.json .* say of which kind: `factory='auto'`"):
        build_index(made, quiet=True)
    assert build_index(made, "IVF8,SQ8", nprobe=4, quiet=True).hash == info.hash
    assert place.settings.exists(), "the same kind of the same keys"
    place.description.write_bytes(place.description.read_bytes()[:-9])
    build_index(made, "flat")
    assert not place.settings.exists()
    assert "λ, T and k of index 'default' were tuned for another and are removed; tune it" in capsys.readouterr().err


def test_an_index_without_its_description_is_not_made_again_as_another_kind(tmp_path):
    made = skewed_store(tmp_path / "store")
    info = build_index(made, "IVF8,SQ8", nprobe=4, quiet=True)
    made.layout.index("default").description.unlink()
    with pytest.raises(StoreError, match=r"index\.json is missing.* say of which kind: `factory='auto'`"):
        prune_store(made, "merge", tmp_path / "out", neighbors=3, quiet=True)
    assert build_index(made, "IVF8,SQ8", nprobe=4, quiet=True).hash == info.hash


def test_what_an_unfinished_index_left_never_stands_without_its_job(store, monkeypatch):
    """An index is begun as one kind, stopped, begun as another, stopped where that forgets the first, and made."""
    monkeypatch.setattr(indexing, "measure", stop)
    with pytest.raises(KeyboardInterrupt):
        build_index(store, "IVF16,SQ8", name="stopped", quiet=True)
    monkeypatch.setattr(indexing.Job, "begin", lambda job, plan: stop(files.remove(job.folder)))
    with pytest.raises(KeyboardInterrupt):
        build_index(store, "flat", name="stopped", quiet=True)
    monkeypatch.undo()
    assert build_index(store, name="stopped", quiet=True).records == len(store)


def stop(*_):
    raise KeyboardInterrupt


def test_what_was_tuned_stays_when_an_index_grows(lm, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(make_text(300, seed=len(name)))
    made = build(lm, str(tmp_path / "one.txt"), tmp_path / "store", window=64, quiet=True)
    info = build_index(made, "IVF8,SQ8", nprobe=4, quiet=True)
    write_tuned(made.layout, Tuned(index="default", lam=0.4, index_hash=info.hash))
    grown = build(lm, str(tmp_path / "two.txt"), tmp_path / "store", append=True, quiet=True)
    assert build_index(grown, quiet=True).hash == info.hash
    assert read_settings(grown, "default").lam == 0.4
    assert build_index(grown, nprobe=2, quiet=True).hash != info.hash
    assert read_settings(grown, "default") is None
