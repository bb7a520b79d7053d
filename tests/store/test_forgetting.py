"""Forgetting documents: what is meant, what is refused, what nobody meets any more, and who still holds it."""

import shutil

import numpy as np
import pytest

from nearlm.base import OptionError, StoreError, files
from nearlm.store import Datastore, derive
from nearlm.store.forgetting import Choice, derived_stores, still_held, write_tombstones
from nearlm.store.manifest import ParentInfo, extends, read_manifest, state_of, write_manifest
from nearlm.store.sharing import push
from synthetic import cut_documents, make_store


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    made = make_store(tmp_path / "store", rng.normal(0, 1, (99, 4)), rng.integers(0, 9, 99), shard=30)
    return cut_documents(made, [20, 30, 10, 40])


def test_a_dry_run_says_what_would_go_and_changes_nothing(store):
    before = store.layout.manifest.read_bytes()
    gone = write_tombstones(store.path, Choice(source="[bc]"), dry_run=True)
    assert (gone.documents, gone.tokens, gone.records) == (["b", "c"], 40, 40)
    assert "would be forgotten" in str(gone)
    assert store.layout.manifest.read_bytes() == before and not list(store.path.glob("forgotten-*"))


@pytest.mark.parametrize("choice", [Choice(document="x"), Choice(source="x*"), Choice(document="a", source="b")])
def test_what_matches_nothing_is_refused(store, choice):
    with pytest.raises(OptionError, match="no document"):
        write_tombstones(store.path, choice)


def test_nothing_may_be_said_wrongly_and_something_must_remain(store):
    with pytest.raises(OptionError, match="nothing says what"):
        Choice()
    with pytest.raises(OptionError, match="no regular expression"):
        Choice(matching="(")
    with pytest.raises(OptionError, match="all documents"):
        write_tombstones(store.path, Choice(source="*"))


def test_a_record_of_a_forgotten_document_leads_to_no_text(store):
    write_tombstones(store.path, Choice(document="b"))
    opened = Datastore.open(store.path)
    record = int(opened.forgotten.record_runs[0, 0])
    for ask in (opened.context_of, opened.trace):
        with pytest.raises(StoreError, match="forgotten"):
            ask(record)
    with pytest.raises(StoreError, match="forgotten"):
        opened.document_of(25)
    assert opened.record_at(25) == -1 and opened.record_at(51) == store.record_at(51)
    assert opened.next_record(18) == -1  # the first token of the next document


def test_what_was_made_from_the_store_stays_of_it_but_the_state_is_another(store):
    before = state_of(store.manifest)
    write_tombstones(store.path, Choice(document="b"))
    first = Datastore.open(store.path)
    write_tombstones(store.path, Choice(document="d"))
    second = Datastore.open(store.path)
    assert len({store.checksum, first.checksum, second.checksum}) == 3
    assert store.held == first.held == second.held == store.checksum
    assert extends(second.manifest, before) and second.continues(store.checksum, None)
    assert second.forgotten.documents.tolist() == [1, 3]
    assert len(list(store.path.glob("forgotten-*.npy"))) == 1


def test_versions_that_would_show_forgotten_documents_refuse_the_store(store):
    write_tombstones(store.path, Choice(document="b"))
    assert files.read_json(store.layout.manifest)["format"] == 4  # older ones read up to 3
    said = files.read_stamped(store.layout.manifest)
    files.write_stamped(store.layout.manifest, {**said, "format": 1})
    with pytest.raises(StoreError, match="edits that cannot be"):
        read_manifest(store.path)


def test_nothing_forgotten_is_passed_on(store, tmp_path):
    write_tombstones(store.path, Choice(document="b"))
    opened = Datastore.open(store.path)
    with pytest.raises(StoreError, match="nearlm compact"):
        push(opened, tmp_path / "pushed")
    with pytest.raises(StoreError, match="nearlm compact"):
        derive(opened, tmp_path / "child", None, None, None)
    assert not (tmp_path / "pushed").exists() and not (tmp_path / "child").exists()


def test_derived_stores_are_named_and_say_what_they_still_hold(store, tmp_path):
    for child, parent in (("child", "store"), ("grandchild", "child"), ("stranger", "elsewhere")):
        shutil.copytree(store.path, tmp_path / child)
        old = read_manifest(tmp_path / child)
        of = read_manifest(tmp_path / parent).checksum if (tmp_path / parent).exists() else ""
        write_manifest(tmp_path / child, files_of(old, ParentInfo(parent, f"../{parent}", of)))
    assert derived_stores(store) == ["child", "grandchild"]
    gone = write_tombstones(store.path, Choice(document="b"))
    assert gone.derived == ["child", "grandchild"] and "child, grandchild" in str(gone)
    assert still_held(Datastore.open(store.path)) == []
    assert still_held(Datastore.open(tmp_path / "child")) == ["b"]
    assert still_held(Datastore.open(tmp_path / "grandchild")) == []  # as its own parent is
    with pytest.raises(StoreError, match="was made from"):
        write_tombstones(tmp_path / "child", Choice(document="b"))


def files_of(manifest, parent):
    from dataclasses import replace

    return replace(manifest, parent=parent)
