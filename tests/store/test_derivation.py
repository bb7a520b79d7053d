"""A store made from another: what it shares, that it is done once, resumes and refuses others, and its parent."""

import numpy as np
import pytest

from calls import build_index, prune_store, reduce_store
from nearlm.base import Job
from nearlm.base.errors import OptionError, StoreError
from nearlm.search.retriever import Retriever
from nearlm.store import open_parent, parent_records
from nearlm.store.datastore import Datastore
from synthetic import make_store, skewed_store


@pytest.fixture
def store(tmp_path):
    return skewed_store(tmp_path / "store")


def test_files_that_do_not_change_are_shared_or_copied(store, tmp_path, monkeypatch):
    shared = reduce_store(store, 4, tmp_path / "shared", quiet=True)
    assert (shared.path / "values-00000.npy").samefile(store.path / "values-00000.npy")
    monkeypatch.setattr(
        "pathlib.Path.hardlink_to", lambda *_: (_ for _ in ()).throw(OSError(18, "Invalid cross-device link"))
    )
    copied = reduce_store(store, 4, tmp_path / "copied", quiet=True)
    assert not (copied.path / "values-00000.npy").samefile(store.path / "values-00000.npy")
    copied.verify()
    assert copied.manifest.files == shared.manifest.files


def test_a_finished_store_is_found_and_another_is_refused(store, tmp_path, capsys):
    made = reduce_store(store, 4, tmp_path / "made", quiet=True)
    assert reduce_store(store, 4, tmp_path / "made").manifest == made.manifest
    assert "complete already" in capsys.readouterr().err
    with pytest.raises(StoreError, match="finished store; `restart=True` throws away unfinished ones only"):
        reduce_store(store, 4, made.path, restart=True)
    made.verify()
    for again in (lambda: reduce_store(store, 5, made.path), lambda: reduce_store(store, 4, store.path)):
        with pytest.raises(StoreError, match="choose another"):
            again()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="not a store but holds"):
        reduce_store(store, 4, tmp_path / "notes")


def test_an_unfinished_one_goes_on_only_with_the_same_options(store, tmp_path, monkeypatch):
    real = Job.fill
    monkeypatch.setattr(Job, "fill", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        reduce_store(store, 4, tmp_path / "made", quiet=True)
    monkeypatch.setattr(Job, "fill", real)
    with pytest.raises(StoreError, match="repeating its `nearlm reduce` command"):
        Datastore.open(tmp_path / "made")
    with pytest.raises(StoreError, match=r"begun with `reduce --dim 4 .*now `reduce --dim 5"):
        reduce_store(store, 5, tmp_path / "made", quiet=True)
    assert reduce_store(store, 5, tmp_path / "made", restart=True, quiet=True).dim == 5


def test_a_parent_that_is_gone_or_changed_is_named(store, tmp_path):
    made = reduce_store(store, 6, tmp_path / "made", quiet=True)
    build_index(made, "flat", quiet=True)
    with pytest.raises(OptionError, match="no parent"):
        build_index(store, "flat", quiet=True)
        Retriever(store, distances="parent")
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"no longer at .*store"):
        Retriever(made, distances="parent")
    make_store(tmp_path / "store", np.ones((4, 12), np.float16), [1, 2, 3, 4])
    with pytest.raises(StoreError, match="has changed since"):
        Retriever(made, distances="parent")
    assert len(Retriever(made).search(np.ones((1, 12), np.float32), 3).ids) == 1


def test_parent_distances_after_pruning_are_the_parents(store, tmp_path):
    made = prune_store(store, "rank", tmp_path / "made", keep=0.3, quiet=True)
    build_index(made, "SQ4", quiet=True)
    queries = store.keys[:9].astype(np.float32)
    near, own = (Retriever(made, distances=which).search(queries, 12) for which in ("parent", "store"))
    np.testing.assert_array_equal(near.ids, own.ids)
    np.testing.assert_allclose(near.distances, own.distances, rtol=1e-6)


def test_every_record_is_found_in_its_parent(store, tmp_path):
    made = prune_store(store, "random", tmp_path / "made", keep=0.4, quiet=True)
    parent = open_parent(made)
    assert parent.checksum == store.checksum
    ids = parent_records(made, parent)
    for name in ("keys", "values", "origin"):
        np.testing.assert_array_equal(getattr(parent, name).take(ids), getattr(made, name)[:])


def test_centroids_are_nowhere_in_the_parent(store, tmp_path):
    made = prune_store(store, "kmeans", tmp_path / "made", ratio=5.0, quiet=True)
    with pytest.raises(OptionError, match="centroids, which its parent does not hold"):
        parent_records(made, open_parent(made))


def test_a_parent_that_lies_elsewhere_is_opened_aloud(store, tmp_path):
    made = prune_store(store, "random", tmp_path / "deep" / "made", keep=0.4, quiet=True)
    with pytest.warns(UserWarning, match=f"opening the parent at {store.path}, as .*made says"):
        open_parent(made)
