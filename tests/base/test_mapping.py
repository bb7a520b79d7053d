"""Mapped files cost no descriptors, and live as long as the arrays over them."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calls import build
from nearlm.base.arrays import ArrayFile
from nearlm.base.mapping import map_file, mapped_file
from tiny import make_text

pytestmark = pytest.mark.skipif(os.name == "nt", reason="arrays are numpy's memmaps there")


def test_a_map_is_read_only_and_outlives_its_file(tmp_path: Path):
    path = tmp_path / "bytes"
    path.write_bytes(b"abc")
    view = map_file(path)[1:]
    path.unlink()
    gc.collect()
    assert view.tobytes() == b"bc"
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_map_goes_away_with_its_last_array(tmp_path: Path):
    path = tmp_path / "some-bytes"
    path.write_bytes(b"abc")
    whole = map_file(path)
    view = whole[1:].view(np.int8)
    del whole
    gc.collect()
    assert mapped_file(view) is not None
    if sys.platform == "linux":
        assert path.name in Path("/proc/self/maps").read_text()
        del view
        gc.collect()
        assert path.name not in Path("/proc/self/maps").read_text()


def test_only_a_view_of_a_file_has_one(tmp_path: Path):
    assert mapped_file(np.ones(3)) is None
    assert mapped_file(np.ones(3)[1:]) is None


def test_what_cannot_be_mapped_is_named(tmp_path: Path):
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match="empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="missing"):
        map_file(tmp_path / "missing")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors cannot be counted")
def test_arrays_keep_no_descriptors(tmp_path: Path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = []
    for number in range(10):
        file = ArrayFile(tmp_path / f"{number}.npy", np.dtype("int32"), (3,))
        file.write([number, 1, 2])
        kept.append(file.open())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [array[0] for array in kept] == list(range(10))


_WITH_FEW_DESCRIPTORS = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import nearlm
store, more, text = sys.argv[1:]
opened = nearlm.Datastore.open(store)
assert len(opened.manifest.shards) > 70
opened.verify()
nearlm.build_index(opened)
nearlm.build(opened.model_spec(), more, store, nearlm.BuildOptions(shard_records=16), append=True)
nearlm.build_index(store)
print(nearlm.evaluate(nearlm.KNNLM.load(store, None, nearlm.SearchSettings(distances="store")), text).perplexity)
"""


def test_a_store_of_many_files_needs_few_descriptors(tmp_path: Path, model_folder: Path):
    for name, words in {"text": 1300, "more": 100, "valid": 60}.items():
        (tmp_path / f"{name}.txt").write_text(make_text(words, seed=words))
    build(str(model_folder), str(tmp_path / "text.txt"), tmp_path / "store", window=16, shard_records=16, quiet=True)
    arguments = [tmp_path / "store", tmp_path / "more.txt", tmp_path / "valid.txt"]
    ran = subprocess.run([sys.executable, "-c", _WITH_FEW_DESCRIPTORS, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) > 1
