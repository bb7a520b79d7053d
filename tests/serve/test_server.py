"""Where the server listens, and how it ends: as a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from calls import build, build_index
from nearlm.base import OptionError
from nearlm.serve.server import GRACE, check_host, is_loopback, read_key, serve
from tiny import make_text

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_the_loopback_needs_no_key(host):
    assert is_loopback(host)
    check_host(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_elsewhere_needs_one(host):
    with pytest.raises(OptionError, match="api_key_file"):
        check_host(host, None)
    check_host(host, "0123456789abcdef")


@pytest.mark.parametrize("content", ["", "short", "0123456789 abcdef", "0123456789abcdé\n", "0123456789abcdef\nmore"])
def test_bad_keys_are_refused(tmp_path, content):
    (tmp_path / "key").write_text(content)
    with pytest.raises(OptionError, match="no good key"):
        read_key(tmp_path / "key")


def test_a_key_is_one_line(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert read_key(tmp_path / "key") == "0123456789abcdef"
    with pytest.raises(OptionError, match="cannot be read"):
        read_key(tmp_path / "none")


def test_a_port_that_is_taken_is_noticed_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OptionError, match="cannot listen"):
        serve([tmp_path / "no store"], port=taken.getsockname()[1])
    with pytest.raises(OptionError, match="65535"):
        serve([tmp_path], port=70_000)


@pytest.fixture(scope="module")
def process(tmp_path_factory, model_folder, lm):
    """A server as users start it."""
    folder = tmp_path_factory.mktemp("process")
    (folder / "a.txt").write_text(make_text(200))
    store = build(str(model_folder), str(folder / "a.txt"), folder / "mem", window=64, quiet=True)
    build_index(store, "flat", quiet=True)
    command = [sys.executable, "-m", "nearlm", "serve", str(store.path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    lines = []
    while not (found := re.search(r"http://127\.0\.0\.1:\d+", line := started.stderr.readline())):
        lines.append(line)
        assert line, f"the server ended: {lines}"
    yield started, found[0]
    started.kill()


def test_running_requests_get_less_than_ten_seconds():
    assert GRACE + 1 < 10  # and one for the engine's last step


def test_sigterm_finishes_running_requests_and_ends(process):
    started, url = process
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "mem"
    found = {}

    def ask():
        asked = {"prompt": "the licence", "max_tokens": 60, "temperature": 0}
        found["response"] = httpx.post(f"{url}/v1/completions", json=asked, timeout=30)

    thread = threading.Thread(target=ask)
    thread.start()
    while not re.search(r"nearlm_running{.*} [1-9]", httpx.get(f"{url}/metrics").text):
        if not thread.is_alive():  # it was done before anybody looked
            thread = threading.Thread(target=ask)
            thread.start()
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 0
    thread.join()
    assert found["response"].status_code == 200
    assert found["response"].json()["usage"]["completion_tokens"] > 1
    assert "Traceback" not in started.stderr.read()
