"""What the cache holds, and clearing it: kinds by their sizes, stores one by one, never what is in use."""

import pytest

from nearlm.base import OptionError, files
from nearlm.base.upkeep import KINDS, clear_cache, list_cache, tree_bytes


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(folder, size: int) -> None:
    folder.mkdir(parents=True)
    (folder / "data.npy").write_bytes(bytes(size))


def test_an_empty_or_missing_cache_holds_nothing(cache):
    assert [(one.kind, one.entries, one.bytes) for one in list_cache()] == [(kind, 0, 0) for kind in KINDS]


def test_sizes_by_kind_and_strangers(cache):
    put(cache / "traces" / "lm-1", 100)
    put(cache / "traces" / "lm-2", 20)
    put(cache / "stores" / "mine", 7)
    put(cache / "notes", 3)
    found = {one.kind: (one.entries, one.bytes) for one in list_cache()}
    assert found["traces"] == (2, 120) and found["stores"] == (1, 7) and found["notes"] == (1, 3)
    assert found["models"] == (0, 0)


def test_a_kind_is_cleared_but_for_what_is_in_use(cache):
    put(cache / "traces" / "lm-1", 100)
    put(cache / "traces" / "lm-2", 20)
    put(cache / "models" / "m", 5)
    with files.lock(cache / "traces" / "lm-2"):
        assert clear_cache("traces") == 100
    assert not (cache / "traces" / "lm-1").exists() and (cache / "traces" / "lm-2" / "data.npy").exists()
    assert (cache / "models" / "m").exists()


def test_stores_go_one_by_one_and_nothing_outside(cache, tmp_path):
    put(cache / "stores" / "mine", 7)
    put(cache / "stores" / "other", 8)
    put(tmp_path / "outside", 9)
    (cache / "traces").mkdir()
    (cache / "traces" / "link").symlink_to(tmp_path / "outside")
    assert clear_cache("cache:mine") == 7
    clear_cache("traces")
    assert not (cache / "stores" / "mine").exists() and (cache / "stores" / "other").exists()
    assert (tmp_path / "outside" / "data.npy").exists() and not (cache / "traces" / "link").is_symlink()
    for what in ("stores", "notes", "cache:mine", "cache:../traces", "", ".."):
        with pytest.raises(OptionError):
            clear_cache(what)
    assert tree_bytes(cache / "stores") == 8
