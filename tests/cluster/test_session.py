"""Addresses, options and errors of Ray."""

from pathlib import Path

import pytest

from nearlm.base import ModelError, OptionError
from nearlm.base.errors import MissingExtraError
from nearlm.cluster import ClusterError, ClusterOptions, SearchOn
from nearlm.cluster.session import is_address, joined, on_a_worker, reason


@pytest.mark.parametrize("text", ["auto", "local", "10.0.0.1:6379", "head:1"])
def test_addresses(text):
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "docs/", "head", "head:", "ray://head:10001", "a b:1", "head:123456"])
def test_what_is_no_address(text):
    assert not is_address(text)
    with pytest.raises(OptionError, match="`ray` is"):
        ClusterOptions(text)


def test_workers_alone_start_a_ray_here():
    assert ClusterOptions(workers=2).wanted and ClusterOptions(workers=2).address == "local"
    assert not ClusterOptions().wanted
    assert ClusterOptions("head:1", 2).address == "head:1"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ClusterOptions(workers=0), "`workers` is 0"),
        (lambda: ClusterOptions(gpus_per_worker=1), "`gpus_per_worker` is for work on Ray"),
        (lambda: SearchOn("local"), "`ray` is 'local', expected HOST:PORT or auto"),
        (lambda: SearchOn(allow_partial=True), "`allow_partial` is for an index that is served"),
    ],
)
def test_options_that_make_no_sense(make, said):
    with pytest.raises(OptionError, match=said):
        make()


def test_no_ray_there(monkeypatch):
    monkeypatch.setattr("ray.init", lambda **_: (_ for _ in ()).throw(ConnectionError("no")))
    with (
        pytest.raises(ClusterError, match=r"no Ray cluster answers at 127\.0\.0\.1:1, or this machine"),
        joined("127.0.0.1:1"),
    ):
        pass
    with pytest.raises(ClusterError, match="no Ray cluster runs on this machine"), joined("auto"):
        pass


class Wrapped(Exception):
    def __init__(self, cause):
        super().__init__("Traceback\n  many lines\nValueError: the last line")
        self.cause = cause


def test_a_workers_error_is_one_line():
    with pytest.raises(ClusterError, match=r"no weights \(worker on .+\)") as raised, on_a_worker():
        raise ModelError("no weights")
    assert reason(Wrapped(raised.value)) is raised.value
    with pytest.raises(ClusterError, match=r"needs an optional dependency.*\(worker on"), on_a_worker():
        raise MissingExtraError("Parquet", "parquet")
    with pytest.raises(ClusterError, match=r"/nosuch: No such file or directory \(worker on"), on_a_worker():
        Path("/nosuch").read_text()
    assert str(reason(Wrapped(None))) == "a worker failed: Wrapped: ValueError: the last line"
    missing = Exception("Traceback\nModuleNotFoundError: No module named 'nearlm'\nmore")
    assert str(reason(missing)).startswith("a worker cannot start (No module named 'nearlm'); install the same")
