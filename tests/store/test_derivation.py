"""A store made from another: what it shares, and that it is done once, goes on, and refuses others."""

import pytest

from calls import reduce_store
from nearlm.base import Job
from nearlm.base.errors import StoreError
from nearlm.store.datastore import Datastore
from synthetic import skewed_store


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
