"""The folder that a store is written into: strangers, full disks, and paths that can be moved."""

import errno
import shutil

import pytest
from oracle import everything

from nearlm.base import Job, Reporter, files
from nearlm.base.errors import StoreError
from nearlm.store.writing import announce_needs, portable_path, refuse_foreign, writing


@pytest.mark.parametrize("step", ["append", "write_at", "sync", "replace", "allocate"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_error_and_the_same_command_goes_on(step, code, make, monkeypatch, tmp_path):
    real, calls = getattr(files, step), 0

    def full(*arguments):
        nonlocal calls
        calls += 1
        if calls > (0 if step == "allocate" else 8):
            raise OSError(code, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"No space left.*free some space and repeat"):
        patch.setattr(files, step, full)
        make(batch_tokens=64)
    make(batch_tokens=64)
    make("whole", batch_tokens=64)
    assert everything(tmp_path / "store") == everything(tmp_path / "whole")


def test_only_an_empty_folder_a_store_or_a_begun_job_may_be_written_to(tmp_path):
    folder = tmp_path / "out"
    job = Job(folder, "build")
    refuse_foreign(folder, job)
    folder.mkdir()
    (folder / ".lock").touch()
    refuse_foreign(folder, job)
    (folder / "mine.txt").touch()
    with pytest.raises(StoreError, match=r"is not a store but holds 'mine.txt'"):
        refuse_foreign(folder, job)
    job.begin({})
    refuse_foreign(folder, job)
    job.close()
    (folder / "manifest.json").touch()
    refuse_foreign(folder, job)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        refuse_foreign(tmp_path / "file", job)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_what_the_disk_refuses_is_one_of_our_errors(tmp_path, code):
    job = Job(tmp_path / "out", "build")
    with pytest.raises(StoreError, match=r"cannot write to .*out"), writing(tmp_path / "out", job):
        raise OSError(code, "no", str(tmp_path / "out" / "keys"))


def test_errors_about_other_places_pass(tmp_path):
    job = Job(tmp_path / "out", "build")
    with pytest.raises(PermissionError), writing(tmp_path / "out", job):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "text.txt"))
    with pytest.raises(FileNotFoundError), writing(tmp_path / "out", job):
        raise FileNotFoundError(errno.ENOENT, "no", str(tmp_path / "out" / "keys"))


def test_needs_are_said_and_refused_unless_they_may_be_less(tmp_path, monkeypatch, capsys):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StoreError, match=r"needs 5\.0 kB, its disk has 1\.0 kB free; free some"):
        announce_needs([], 5000, 10, Reporter(), tmp_path, "free some")
    announce_needs([], 5000, 10, Reporter(), tmp_path, "free some", at_most=True)
    assert "needs at most 5.0 kB of disk" in capsys.readouterr().err
    (tmp_path / "made").write_bytes(bytes(8192))
    announce_needs([tmp_path / "made"], 5000, 10, Reporter(quiet=True), tmp_path, "free some")


def test_a_path_is_seen_from_the_store(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert portable_path(tmp_path / "models" / "m", tmp_path / "stores" / "s") == "../../models/m"
    assert portable_path(tmp_path / "link" / "m", tmp_path / "s") == "../m"
