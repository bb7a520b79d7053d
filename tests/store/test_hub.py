"""Pushing to the Hugging Face Hub and pulling from it, with its own client and a stand-in for its server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hub_server import Hub
from nearlm.search import build_index
from nearlm.store import Datastore
from synthetic import skewed_store


@pytest.fixture
def hub():
    with Hub() as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Path:
    build_index(skewed_store(tmp_path / "store"), "flat")
    return tmp_path / "store"


@pytest.fixture
def nearlm_with(hub: Hub, tmp_path: Path):
    """Run a command in a process of its own, which knows this Hub and no other."""
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test"}
    cache = {"NEARLM_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}

    def run(*words: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "nearlm", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own, **cache}, timeout=100)

    return run


def same_files(a: Path, b: Path, but: tuple[str, ...] = ()) -> bool:
    kept = lambda folder: {  # noqa: E731
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "shared.json", *but)
    }
    return kept(a) == kept(b)


def test_pushed_and_pulled_it_is_the_same(hub, store, nearlm_with, tmp_path):
    pushed = nearlm_with("push", store, "user/memory", "--private", "--license", "mit")
    assert (pushed.returncode, pushed.stdout) == (0, f"{store} is at hf:user/memory\n"), pushed.stderr
    assert hub.private == {"user/memory": True}
    card = hub.files("user/memory")["README.md"].decode()
    assert 'license: "mit"' in card and "500" in card and "nearlm pull user/memory" in card
    pulled = nearlm_with("pull", "user/memory", "--out", tmp_path / "copy")
    assert pulled.returncode == 0, pulled.stderr
    assert same_files(store, tmp_path / "copy")
    assert not (tmp_path / "copy.pull").exists()
    by_name = nearlm_with("info", "hf:user/memory", "--json")
    assert by_name.returncode == 0 and '"records": 500' in by_name.stdout, by_name.stderr
    hub.commits.clear()  # what was pulled once needs no Hub any more
    assert nearlm_with("info", "hf:user/memory").returncode == 0


def test_an_interrupted_push_sends_nothing_twice_and_one_commit_holds_all(hub, store, nearlm_with):
    hub.fail_after = 3
    broken = nearlm_with("push", store, "user/memory")
    assert broken.returncode == 2 and broken.stderr.splitlines()[-1].startswith("nearlm: cannot push to user/memory")
    assert len(hub.commits["user/memory"]) == 1, "nothing is to be seen before all is there"
    hub.fail_after = 10**9
    assert nearlm_with("push", store, "user/memory").returncode == 0
    assert len(hub.uploads) == len(set(hub.uploads)) > 3


def test_a_second_push_replaces_the_first_and_slim_leaves_out_keys(hub, store, nearlm_with, tmp_path):
    assert nearlm_with("push", store, "user/memory").returncode == 0
    assert nearlm_with("push", store, "user/memory", "--slim").returncode == 0
    assert not any(name.startswith("keys-") for name in hub.files("user/memory"))
    assert nearlm_with("pull", "hf:user/memory", "--out", tmp_path / "slim").returncode == 0
    assert Datastore.open(tmp_path / "slim").slim
    first = f"{2:040x}"
    whole = nearlm_with("pull", "user/memory", "--revision", first, "--out", tmp_path / "whole")
    assert whole.returncode == 0 and same_files(store, tmp_path / "whole"), whole.stderr


def test_changed_bytes_and_strangers_are_refused(hub, store, nearlm_with, tmp_path):
    assert nearlm_with("push", store, "user/memory").returncode == 0
    files = hub.commits["user/memory"][-1]
    files["values-00000.npy"] = files["values-00000.npy"][:-1] + b"\x07"
    broken = nearlm_with("pull", "user/memory", "--out", tmp_path / "copy")
    assert broken.returncode == 2 and "not as it was pushed" in broken.stderr
    assert not (tmp_path / "copy" / "manifest.json").exists()
    hub.commits["other/data"] = [{"README.md": b"a data set"}]
    for name, why in (("other/data", "no store that `nearlm push` made"), ("no/body", "no such repository")):
        refused = nearlm_with("pull", name, "--out", tmp_path / "none")
        assert refused.returncode == 2 and why in refused.stderr and "Traceback" not in refused.stderr


def test_a_folder_of_the_users_own_beside_the_copy_stays(hub, store, nearlm_with, tmp_path):
    assert nearlm_with("push", store, "user/memory").returncode == 0
    own = tmp_path / "copy.pull" / "diary.txt"
    own.parent.mkdir()
    own.write_text("dear diary")
    refused = nearlm_with("pull", "user/memory", "--out", tmp_path / "copy")
    assert refused.returncode == 2 and "diary.txt" in refused.stderr
    assert own.read_text() == "dear diary"
