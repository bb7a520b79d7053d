"""Shards as they travel to workers."""

import numpy as np
import pytest

from nearlm import __version__
from nearlm.base import files
from nearlm.cluster import ClusterError
from nearlm.cluster.crew import Loading, Shard, Worker
from nearlm.model import ModelSpec
from nearlm.store import BuildOptions, Layout
from nearlm.store.shards import Run, plan_writers
from nearlm.text import plan_windows


@pytest.fixture
def writers(lm, tmp_path):
    """Two shards of a stream of two documents, in a job that was begun."""
    tokens = np.random.default_rng(0).integers(0, 300, 90).astype(np.int32)
    windows = plan_windows(np.array([0, 31, 90]), 16, 8)
    options = BuildOptions(window=16, stride=8, shard_records=45, batch_tokens=64, key_dtype="float16")
    layout = Layout(tmp_path)
    layout.build_job.begin({"plan": 1})
    return plan_writers(layout, 3, lm, [Run(tokens, windows, 1000)], options)


def test_a_shard_that_travelled_gives_the_same_files(writers, lm, tmp_path):
    job = writers[1].layout.build_job
    expected = writers[1].fill(job, lambda count: None)
    for name in expected:
        files.remove(tmp_path / name)
    job.note("shard-00004", {})
    sent = Shard.of(writers[1], {"plan": 1})
    assert len(sent.tokens) < 90
    assert sent.fill(lm) == expected
    assert {path.name for path in tmp_path.glob("*.npy")} == set(expected)


def test_a_folder_that_is_not_the_drivers_is_not_written_to(writers, lm, tmp_path):
    sent = Shard.of(writers[0], {"plan": 2})
    with pytest.raises(
        ClusterError, match="does not hold the build that was begun; its folder must be on a file system"
    ):
        sent.fill(lm)
    assert not list(tmp_path.glob("*.npy"))


@pytest.mark.parametrize(
    ("loading", "said"),
    [
        (Loading(ModelSpec("/nosuch/model"), "ffn", 1), r"'/nosuch/model' does not exist.*\(worker on "),
        (
            Loading(ModelSpec("x"), "ffn", 1, "0.0"),
            rf"nearlm is {__version__} here and 0\.0 at the driver \(worker on ",
        ),
    ],
)
def test_what_a_worker_lacks_is_said_with_its_machine(loading, said):
    with pytest.raises(ClusterError, match=said):
        Worker(loading).describe()
