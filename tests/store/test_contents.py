"""Numbers that lead outside an array are refused, however well the checksums fit."""

import numpy as np
import pytest

from calls import prune_store
from nearlm.base import StoreError
from nearlm.store import Datastore
from nearlm.store.contents import MOST_TOKENS, check_ids, check_places
from synthetic import forge, put, skewed_store


@pytest.fixture
def store(tmp_path) -> Datastore:
    return skewed_store(tmp_path / "store")


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("values-00001.npy", 7, MOST_TOKENS),
        ("values-00001.npy", 7, -1),
        ("tokens-00000.npy", 3, 2**31 - 1),
        ("origin-00002.npy", 99, 501),
        ("origin-00000.npy", 0, -1),
        ("origin-00000.npy", 5, 400),
        ("docs-00000.npy", (0, 0), 1),
        ("docs-00000.npy", (0, 0), -1),
        ("docs-00000.npy", (0, 1), 1),
    ],
)
def test_a_number_that_leads_outside_is_refused(store, name, where, value, monkeypatch):
    forge(store.layout.manifest, store.path / name, put(where, value))
    for mode in ("first", "always"):
        monkeypatch.setenv("NEARLM_VERIFY", mode)
        with pytest.raises(StoreError, match=f"{name} does not hold "):
            Datastore.open(store.path)


@pytest.mark.parametrize(("name", "value"), [("assign.npy", 250), ("assign.npy", -2), ("weights-00000.npy", 0)])
def test_what_a_pruned_store_adds_is_checked_too(store, tmp_path, name, value):
    pruned = prune_store(store, "merge", tmp_path / "pruned", keep=0.5, quiet=True)
    assert pruned.weighted and len(pruned) == 250
    forge(pruned.layout.manifest, pruned.path / name, put(9, value))
    with pytest.raises(StoreError, match=f"{name} does not hold "):
        Datastore.open(pruned.path)


@pytest.mark.parametrize("where", [0, 2, 5])
def test_blocks_leave_no_gap(tmp_path, monkeypatch, where):
    monkeypatch.setattr("nearlm.store.contents._BLOCK", 3)
    ids = np.arange(6)
    check_ids(ids, tmp_path, 0, 6, "ids")
    check_places(ids, tmp_path, 5, "places")
    ids[where] = 9 if where == 2 else 6 - where
    with pytest.raises(StoreError, match="places"):
        check_places(ids, tmp_path, 9, "places")
