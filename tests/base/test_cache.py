"""The cache folder, stores that have names in it, and its lock."""

from pathlib import Path

import pytest

from nearlm.base import FetchError, OptionError, StoreError, cache_dir, cache_lock, files, store_folder


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NEARLM_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("NEARLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "nearlm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "nearlm"


def test_a_store_is_a_folder_or_a_name_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_folder("some/where") == Path("some/where")
    assert store_folder(tmp_path) == tmp_path
    assert store_folder("~/mine") == tmp_path / "mine"
    assert store_folder("~nosuchuser/mine") == Path("~nosuchuser/mine")
    assert store_folder("cache:mine") == cache_dir() / "stores" / "mine"


@pytest.mark.parametrize("name", ["cache:..", "", "cache:", "cache:a/b", "cache:../b", "cache:/b"])
def test_a_name_that_leads_out_of_the_cache_is_refused(name):
    with pytest.raises(OptionError, match="cache:NAME"):
        store_folder(name)


def test_the_lock_makes_its_folder_and_keeps_others_out(tmp_path):
    folder = tmp_path / "deep" / "down"
    with cache_lock(folder), pytest.raises(StoreError, match="another nearlm process"), files.lock(folder):
        pass
    with files.lock(folder):
        pass


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match="set NEARLM_CACHE"), cache_lock(tmp_path / "file" / "below"):
        pass
