"""Atomic writes, checksums, allocation and the lock."""

import ast
import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.base import files
from nearlm.base.errors import StoreError

STEPS = ("append", "sync", "replace")


class Boom(BaseException):
    pass


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_write_leaves_the_old_content(step, tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def boom(*_):
        raise Boom

    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(files, step, boom)
        files.write_bytes(path, b"a new content")
    assert path.read_bytes() == b"old"
    files.write_bytes(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_torn_write_leaves_the_old_content(tmp_path: Path, monkeypatch):
    path = tmp_path / "file"
    files.write_bytes(path, b"old")

    def torn(file, data):
        file.write(data[: len(data) // 2])
        raise Boom

    with monkeypatch.context() as patch, pytest.raises(Boom):
        patch.setattr(files, "append", torn)
        files.write_bytes(path, b"a new content")
    assert path.read_bytes() == b"old"


def test_json_reads_back_also_what_is_no_utf8(tmp_path: Path):
    value = {"name": "naïve \udcff 東京", "list": [1, None, 2.5], "nested": {"b": 1, "a": 2}}
    files.write_json(tmp_path / "value.json", value)
    assert files.read_json(tmp_path / "value.json") == value
    assert (tmp_path / "value.json").read_bytes() == files.json_bytes(value)
    assert files.canonical_hash(value) == files.canonical_hash(dict(reversed(value.items())))
    assert files.canonical_hash(value) != files.canonical_hash({**value, "list": [1, None, 2.6]})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b'{"a": "\xff"}', b"\x00\x01"])
def test_damaged_json_is_refused_by_name(content: bytes, tmp_path: Path):
    (tmp_path / "value.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"value\.json"):
        files.read_json(tmp_path / "value.json")


@given(
    st.sampled_from(["float16", "float32", "int32", "int64", "uint8", "bool"]),
    st.one_of(st.tuples(), st.lists(st.integers(0, 2**62), min_size=1, max_size=3).map(tuple)),
)
def test_a_header_always_has_128_bytes_and_numpy_reads_it(dtype: str, shape: tuple[int, ...]):
    header = files.npy_header(dtype, shape)
    assert len(header) == files.NPY_HEADER == 128
    stream = io.BytesIO(header)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == (shape, False, np.dtype(dtype))
    assert stream.tell() == 128


def test_numpy_loads_header_and_data(tmp_path: Path):
    array = np.arange(15, dtype=np.float16).reshape(5, 3)
    (tmp_path / "a.npy").write_bytes(files.npy_header(array.dtype, array.shape) + array.tobytes())
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), array)


def test_allocated_files_have_their_size_and_are_filled_in_any_order(tmp_path: Path):
    path = tmp_path / "a.npy"
    files.allocate(path, b"HEAD", 20)
    assert path.read_bytes() == b"HEAD" + bytes(16)
    with open(path, "r+b") as file:
        files.write_at(file, b"zz", 18)
        files.write_at(file, np.array([7], np.int32).data, 4)
        files.sync(file)
    assert path.read_bytes() == b"HEAD" + bytes([7]) + bytes(13) + b"zz"
    files.truncate(path, 4)
    assert path.read_bytes() == b"HEAD"


def test_a_file_without_data_is_allocated_too(tmp_path: Path):
    files.allocate(tmp_path / "a.npy", b"HEAD", 4)
    assert (tmp_path / "a.npy").read_bytes() == b"HEAD"


def test_allocate_works_where_space_cannot_be_reserved(tmp_path: Path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files.os, "posix_fallocate", unsupported)
    files.allocate(tmp_path / "a", b"HEAD", 9)
    assert (tmp_path / "a").read_bytes() == b"HEAD" + bytes(5)


def test_allocate_passes_on_that_the_disk_is_full(tmp_path: Path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        files.allocate(tmp_path / "a", b"HEAD", 9)


def test_write_at_goes_on_after_a_short_write(tmp_path: Path, monkeypatch):
    real = files.os.pwrite
    monkeypatch.setattr(files.os, "pwrite", lambda fd, data, offset: real(fd, data[:3], offset))
    with open(tmp_path / "a", "w+b") as file:
        files.write_at(file, b"0123456789", 2)
    assert (tmp_path / "a").read_bytes() == b"\0\x000123456789"


@pytest.fixture
def windows(monkeypatch):
    """Take away what Windows does not have; a folder cannot be opened there."""
    for name in ("pwrite", "fdatasync", "posix_fallocate"):
        monkeypatch.delattr(files.os, name, raising=False)
    real = os.open

    def no_folders(path, *options):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *options)

    monkeypatch.setattr(files.os, "open", no_folders)
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "name": "nt"}))  # pathlib must not see it


def test_files_are_written_on_windows(tmp_path: Path, windows):
    files.write_json(tmp_path / "a.json", {"a": 1})
    assert files.read_json(tmp_path / "a.json") == {"a": 1}
    files.allocate(tmp_path / "a", b"HEAD", 12)
    with open(tmp_path / "a", "r+b") as file:
        file.seek(0, 2)
        files.append(file, b"end")
        files.write_at(file, np.array([7], np.int32).data, 4)
        files.append(file, b".")
        files.sync(file)
    assert (tmp_path / "a").read_bytes() == b"HEAD" + bytes([7]) + bytes(7) + b"end."
    files.truncate(tmp_path / "a", 4)
    files.link(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"HEAD"
    with files.lock(tmp_path):
        files.remove(tmp_path / "b")


def test_nothing_is_imported_that_only_posix_has():
    absent = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    for path in Path(files.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & absent, f"{path} imports {names & absent}"


def test_remove_takes_files_folders_and_nothing(tmp_path: Path):
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    files.remove(tmp_path / "link")
    assert (tmp_path / "folder" / "deep").is_dir()
    for name in ("folder", "file", "absent"):
        files.remove(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_checksum_is_sha256(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.checksum(tmp_path / "a") == expected


def test_the_lock_excludes_a_second_handle_and_is_free_again_after(tmp_path: Path):
    with files.lock(tmp_path), pytest.raises(StoreError, match="another nearlm process"), files.lock(tmp_path):
        pass
    with files.lock(tmp_path):
        pass
    with contextlib.suppress(Boom), files.lock(tmp_path):
        raise Boom
    with files.lock(tmp_path):
        pass


def test_the_lock_excludes_another_process_and_dies_with_it(tmp_path: Path):
    hold = f"""
import sys
sys.path.insert(0, {str(Path(files.__file__).parents[2])!r})
from pathlib import Path
from nearlm.base import files
with files.lock(Path({str(tmp_path)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=r"another nearlm process is writing"), files.lock(tmp_path):
            pass
        other.kill()
        other.wait()
        with files.lock(tmp_path):
            pass


def test_links_out_of_a_folder_and_what_is_no_file_are_refused(tmp_path: Path):
    store = tmp_path / "store"
    (store / "index").mkdir(parents=True)
    (store / "file").touch()
    (store / "index" / "again").symlink_to("../file")
    (tmp_path / "named").symlink_to(store)
    files.check_links(store)
    files.check_links(tmp_path / "named")  # the user's own link
    (store / "index" / "away").symlink_to(tmp_path)
    with pytest.raises(StoreError, match=r"index/away is a link that leads out of"):
        files.check_links(store)
    (store / "index" / "away").unlink()
    os.mkfifo(store / "index" / "pipe")
    with pytest.raises(StoreError, match=r"index/pipe is a pipe, socket or device, expected a file"):
        files.check_links(store)


@pytest.mark.parametrize("depth", [300, 990, 100_000])
def test_json_that_is_nested_too_deeply_is_damaged(depth: int, tmp_path: Path):
    path = tmp_path / "deep.json"
    path.write_text('{"a":' * depth + "1" + "}" * depth)
    with pytest.raises(StoreError, match=r"deep\.json (is nested too deeply|does not match its own checksum)"):
        files.read_stamped(path)


def test_json_that_is_no_file_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(StoreError, match=r"pipe\.json is no file"):
        files.read_json(tmp_path / "pipe.json")
