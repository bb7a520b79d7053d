"""Every record's neighbours: searched once, kept beside the index, going on after a kill."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from calls import build_index, prune_store
from nearlm.base import jobs
from nearlm.base.errors import StoreError
from nearlm.base.progress import QUIET, Reporter
from nearlm.shrink import neighbors as self_search
from nearlm.shrink.neighbors import verify_neighbors
from nearlm.store import Datastore
from synthetic import forge, put


def test_neighbours_are_searched_once_for_every_smaller_k(places, tmp_path, monkeypatch):
    searched = []
    real = self_search.SelfSearch.block
    monkeypatch.setattr(self_search, "SEARCH_BLOCK", 100)
    monkeypatch.setattr(self_search.SelfSearch, "block", lambda *a: (searched.append(a[1]), real(*a))[1])
    prune_store(places, "merge", tmp_path / "9", neighbors=9, quiet=True)
    assert searched == [0, 100, 200]
    prune_store(places, "merge", tmp_path / "4", neighbors=4, quiet=True)
    assert len(searched) == 3
    prune_store(places, "merge", tmp_path / "12", neighbors=12, quiet=True)
    assert len(searched) == 6
    folder = places.path / "index" / "default"
    about = json.loads((folder / "neighbors.json").read_text())
    assert about["k"] == 12 and np.load(folder / "neighbors.npy").shape == (300, 12)
    build_index(places, "IVF4,Flat", quiet=True)
    prune_store(places, "merge", tmp_path / "other", neighbors=4, quiet=True)
    assert len(searched) == 9, "of another index"
    verify_neighbors(places, "default")
    data = bytearray((folder / "neighbors.npy").read_bytes())
    data[-1] ^= 1
    (folder / "neighbors.npy").write_bytes(data)
    with pytest.raises(StoreError, match=r"neighbors\.npy"):
        verify_neighbors(places, "default")
    with pytest.raises(StoreError, match=r"neighbors\.npy is damaged .*; remove it and neighbors\.json beside it"):
        prune_store(places, "merge", tmp_path / "damaged", neighbors=4, quiet=True)


@pytest.mark.parametrize(("method", "name"), [("merge", "neighbors"), ("rank", "ranks")])
def test_damage_in_what_is_kept_beside_an_index_is_named(places, tmp_path, nearlm, method, name):
    prune_store(places, method, tmp_path / "made", keep=0.5, quiet=True)
    assert nearlm("verify", places.path)[0] == 0
    path = places.path / "index" / "default" / f"{name}.npy"
    whole = path.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=rf"{name}\.npy is (damaged|missing or cut).*remove it and {name}\.json"):
            verify_neighbors(places, "default")
        code, _, said = nearlm("verify", places.path)
        assert code == 2 and f"{name}.npy" in said


def test_who_reads_neighbours_keeps_them_while_more_are_searched(places):
    quiet = Reporter(quiet=True)
    build_index(places, quiet=True)
    few = self_search.saved_neighbors(places, "default", 4, quiet)
    before = np.array(few)
    self_search.saved_neighbors(places, "default", 12, quiet)
    np.testing.assert_array_equal(few, before)


def test_the_search_goes_on_after_a_kill(places, tmp_path, monkeypatch):
    whole = shutil.copytree(places.path, tmp_path / "copy")
    expected = prune_store(whole, "merge", tmp_path / "expected", neighbors=9, quiet=True)
    monkeypatch.setattr(self_search, "SEARCH_BLOCK", 50)
    monkeypatch.setattr("nearlm.base.jobs.CHECKPOINT_SECONDS", 0)
    searched, real = [], self_search.SelfSearch.block

    def killed(search, start, k):
        searched.append(start)
        if len(searched) == 4:
            raise KeyboardInterrupt
        return real(search, start, k)

    monkeypatch.setattr(self_search.SelfSearch, "block", killed)
    with pytest.raises(KeyboardInterrupt):
        prune_store(places, "merge", tmp_path / "made", neighbors=9, quiet=True)
    made = prune_store(places, "merge", tmp_path / "made", neighbors=9, quiet=True)
    assert searched == [0, 50, 100, 150, 150, 200, 250]
    for name in ("keys", "weights", "origin"):
        np.testing.assert_array_equal(getattr(made, name)[:], getattr(expected, name)[:])
    assert not jobs.Job(places.path / "index" / "default", "neighbors").started


def test_what_a_kill_at_the_very_end_left_is_removed(places, tmp_path, monkeypatch):
    store = Datastore.open(Path(shutil.copytree(places.path, tmp_path / "copy")))
    build_index(store, "flat", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(jobs.Job, "close", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            self_search.saved_neighbors(store, "default", 3, QUIET)
    folder = store.layout.index("default").folder / "neighbors.job"
    assert folder.exists()
    self_search.saved_neighbors(store, "default", 3, QUIET)
    assert not folder.exists()


@pytest.mark.parametrize("value", [300, -2, 2**31 - 1])
def test_neighbours_that_are_no_records_are_refused(places, tmp_path, value):
    prune_store(places, "merge", tmp_path / "made", keep=0.5, quiet=True)
    folder = places.path / "index" / "default"
    forge(folder / "neighbors.json", folder / "neighbors.npy", put((3, 1), value))
    with pytest.raises(StoreError, match=r"neighbors\.npy does not hold ids of records"):
        prune_store(places, "merge", tmp_path / "again", keep=0.6, quiet=True)
