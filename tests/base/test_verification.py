"""Files are read whole before their first use on a machine, and again only when they have changed."""

import os
from pathlib import Path

import pytest

from nearlm.base import FileInfo, OptionError, StoreError, check_before_use, check_that, files
from nearlm.base.verification import verify_mode


@pytest.fixture
def listed(tmp_path, monkeypatch) -> dict[str, FileInfo]:
    """Two files that have not changed for a while, and a cache of their own."""
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NEARLM_VERIFY", raising=False)
    for name in ("a", "b"):
        write(tmp_path / name, name.encode() * 9)
    return FileInfo.by_name([tmp_path / "a", tmp_path / "b"])


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The names of the files that are read whole."""
    names: list[str] = []
    real = files.checksum
    monkeypatch.setattr(files, "checksum", lambda path: (names.append(path.name), real(path))[1])
    return names


def write(path: Path, data: bytes, age: int = 100) -> None:
    path.write_bytes(data)
    then = path.stat().st_mtime_ns - age * 10**9
    os.utime(path, ns=(then, then))


def test_files_are_read_before_their_first_use_only(tmp_path, listed, read):
    check_before_use(tmp_path, listed, "")
    assert sorted(read) == ["a", "b"]
    check_before_use(tmp_path, listed, "")
    assert sorted(read) == ["a", "b"]
    write(tmp_path / "b", b"b" * 9, age=50)
    check_before_use(tmp_path, listed, "")
    assert sorted(read) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_damaged_file_is_named_before_and_after_its_first_use(tmp_path, listed, name):
    for _ in range(2):
        write(tmp_path / name, b"x" * 9, age=50)
        with pytest.raises(StoreError, match=rf"{name} is damaged .*; make it again"):
            check_before_use(tmp_path, listed, "make it again")
        write(tmp_path / name, name.encode() * 9)
        check_before_use(tmp_path, listed, "")


def test_a_file_of_the_same_time_but_another_checksum_is_read(tmp_path, listed):
    check_before_use(tmp_path, listed, "")
    with pytest.raises(StoreError, match="b is damaged"):
        check_before_use(tmp_path, listed | {"b": FileInfo(9, "0" * 64)}, "")


def test_always_and_never(tmp_path, listed, read, monkeypatch):
    monkeypatch.setenv("NEARLM_VERIFY", "always")
    for _ in range(2):
        check_before_use(tmp_path, listed, "")
    assert len(read) == 4
    monkeypatch.setenv("NEARLM_VERIFY", "never")
    write(tmp_path / "b", b"x" * 9)
    check_before_use(tmp_path, listed, "", lambda: pytest.fail("contents were looked at"))
    assert len(read) == 4
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(StoreError, match="cut"):
        check_before_use(tmp_path, listed, "")
    monkeypatch.setenv("NEARLM_VERIFY", "sometimes")
    with pytest.raises(OptionError, match="NEARLM_VERIFY is 'sometimes', expected one of first, always, never"):
        verify_mode()


def test_contents_are_remembered_with_the_bytes(tmp_path, listed):
    def refuse() -> None:
        check_that(False, tmp_path / "a", "ids of records")

    for _ in range(2):
        with pytest.raises(StoreError, match="a does not hold ids of records"):
            check_before_use(tmp_path, listed, "", refuse)
    looked: list[int] = []
    for _ in range(2):
        check_before_use(tmp_path, listed, "", lambda: looked.append(1))
    assert looked == [1]


def test_a_file_that_was_just_written_is_read_again(tmp_path, listed, read):
    write(tmp_path / "b", b"b" * 9, age=0)
    for _ in range(2):
        check_before_use(tmp_path, listed, "")
    assert len(read) == 4


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, listed, read, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        check_before_use(tmp_path, listed, "")
    assert len(read) == 4
