"""Builds on a real Ray: the same bytes as without it, whoever dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from nearlm.base import OptionError, StoreError
from nearlm.cluster import ClusterError, ClusterOptions
from nearlm.cluster.building import build_on_ray, loadable, plan_places
from nearlm.cluster.crew import Places
from nearlm.model import ModelSpec
from nearlm.store import BuildOptions, Layout
from nearlm.store.builder import build
from tiny import make_text

OPTIONS = BuildOptions(window=32, shard_records=2000, batch_tokens=256)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(make_text(12_000))
    return path


@pytest.fixture(scope="module")
def expected(model_folder, text):
    """The files of a build without Ray."""
    return contents(build(str(model_folder), str(text), text.parent / "expected", OPTIONS, threads=1).path)


def contents(folder):
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def when_begun(folder, act):
    """Do something in a thread as soon as some shard is noted to be under way."""

    def watch() -> None:
        while not list(Layout(folder).build_job.folder.glob("shard-*.json")):
            time.sleep(0.01)
        act()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    return watcher


def test_a_build_whose_node_dies_has_the_same_bytes(
    model_folder, text, tmp_path, ray_here, address, lose_a_node, expected
):
    out = tmp_path / "store"
    watcher = when_begun(out, lose_a_node)
    cluster = ClusterOptions(address, workers=2)
    build_on_ray(str(model_folder), str(text), out, OPTIONS, cluster, threads=1)
    watcher.join(60)
    assert contents(out) == expected


def test_a_driver_that_is_killed_is_resumed_and_two_are_refused(model_folder, text, tmp_path, address, expected):
    out = tmp_path / "store"
    small = ["--window", "32", "--shard-records", "2000", "--batch-tokens", "256", "--threads", "1"]
    command = [sys.executable, "-m", "nearlm", "build", str(text), "--model", str(model_folder), "--out", str(out)]
    driver = subprocess.Popen([*command, *small, "--ray", address, "--workers", "1"], stderr=subprocess.DEVNULL)
    seen = []

    def act() -> None:
        with pytest.raises(StoreError, match="another nearlm process is writing to"):
            build_on_ray(str(model_folder), str(text), out, OPTIONS, ClusterOptions(address))
        seen.append("refused")
        os.kill(driver.pid, signal.SIGKILL)

    watcher = when_begun(out, act)
    assert driver.wait(100) == -signal.SIGKILL
    watcher.join(10)
    assert seen == ["refused"]
    assert not Layout(out).is_store
    build(str(model_folder), str(text), out, OPTIONS)
    assert contents(out) == expected


def test_a_worker_without_the_model_is_one_line(text, tmp_path, ray_here, address):
    with pytest.raises(ClusterError) as raised:
        build_on_ray("/nosuch/model", str(text), tmp_path / "store", OPTIONS, ClusterOptions(address, workers=1))
    assert str(raised.value).startswith("'/nosuch/model' does not exist; expected a model folder")
    assert "\n" not in str(raised.value) and "(worker on " in str(raised.value)


def test_a_model_that_is_loaded_cannot_be_sent(lm, text, tmp_path):
    with pytest.raises(OptionError, match="on Ray every worker loads the model itself; name it with `model`"):
        build_on_ray(lm, str(text), tmp_path / "store", OPTIONS, ClusterOptions("local"))


def cluster_of(*nodes):
    return SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": dict(node)} for node in nodes])


@pytest.mark.parametrize(
    ("nodes", "options", "threads", "expected"),
    [
        ([{"CPU": 8}, {"CPU": 6}], ClusterOptions("h:1"), None, (2, 6, 0)),
        ([{"CPU": 8}, {"CPU": 8}], ClusterOptions("h:1", workers=4), None, (4, 4, 0)),
        ([{"CPU": 8}, {"CPU": 8}], ClusterOptions("h:1", workers=4), 1, (4, 1, 0)),
        ([{"CPU": 2}], ClusterOptions("h:1", workers=2), 2, (2, 1, 0)),  # more threads than there are CPUs
        ([{"CPU": 16, "GPU": 4}, {"CPU": 16, "GPU": 4}], ClusterOptions("h:1"), None, (8, 4, 1)),
        ([{"CPU": 16, "GPU": 4}], ClusterOptions("h:1", gpus_per_worker=2), None, (2, 8, 2)),
        ([{"GPU": 1}], ClusterOptions("h:1", gpus_per_worker=0), None, (1, 1, 0)),
    ],
)
def test_places_of_workers(nodes, options, threads, expected):
    assert tuple(plan_places(cluster_of(*nodes), options, threads)) == expected


def test_a_worker_without_gpus_does_not_take_those_of_others():
    assert loadable(ModelSpec("m"), Places(1, 1, 0)).device == "cpu"
    assert loadable(ModelSpec("m"), Places(1, 1, 1)).device == "auto"
    assert loadable(ModelSpec("m", device="cuda"), Places(1, 1, 0)).device == "cuda"


def test_gpus_that_are_not_here_are_refused():
    with pytest.raises(OptionError, match="`gpus_per_worker` is 1, but this machine has 0 GPUs"):
        plan_places(cluster_of({"CPU": 2}), ClusterOptions(workers=2, gpus_per_worker=1), None)
