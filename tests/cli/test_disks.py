"""Every command on a disk that is full, and on a store that may only be read."""

import ctypes
import io
import re
import resource
import shutil
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import is_refusal

from calls import build, build_index
from nearlm import cli
from nearlm.base import files
from nearlm.mixing import Gate, Training, build_infinigram, tune
from nearlm.optimizer import optimization, overhead, trials
from nearlm.optimizer.fit_plan import Ways
from nearlm.paper import reproduction, settings
from nearlm.paper.settings import Setting
from tiny import make_text

WRITE = {  # commands that write, and where
    "build": "build VALID --model MODEL --window 64 --out OUT",
    "append": "build VALID --append --out STORE",
    "index": "index STORE --index other --factory IVF4,SQ8",
    "flat": "index STORE --index other --factory flat",
    "reduce": "reduce STORE --dim 8 --out OUT",
    "random": "prune STORE --method random --keep 0.5 --out OUT",
    "kmeans": "prune STORE --method kmeans --keep 0.5 --out OUT",
    "merge": "prune STORE --method merge --neighbors 3 --out OUT",
    "rank": "prune STORE --method rank --keep 0.5 --k 8 --out OUT",
    "tune": "tune STORE VALID",
    "gate": "gate STORE VALID --epochs 1 --gate other",
    "instant": "build VALID --model MODEL --window 64 --keys none --out OUT",
    "optimize": "optimize STORE VALID --budget 5 --out OUT",
    "overhead": "optimize STORE VALID --overhead 100 --out OUT",
    "ablate": "ablate STORE VALID",
    "sweep": "sweep STORE 8 --over dim --text VALID --out OUT",
    "fit": "fit VALID --model MODEL --window 64 --overhead 100 --out OUT",
    "push": "push STORE OUT",
    "slim": "push STORE OUT --slim",
    "pull": "pull STORE --out OUT",
    "demo": "demo --out OUT",
    "reproduce": "reproduce --setting domain --out OUT",
}
TIMED = ("optimize", "overhead", "sweep", "fit", "demo", "reproduce")  # what they measure or choose depends on times
READ = {  # commands that need no place to write, or another
    "eval": "eval STORE VALID",
    "generate": "generate STORE the --max-new-tokens 3",
    "info": "info STORE --record 3",
    "verify": "verify STORE",
}
LIMITS = (0, 300, 9_000)  # bytes that a file may have


@pytest.fixture(scope="module")
def made(tmp_path_factory, model_folder):
    """A store with a tuned index and a gate, and a text."""
    folder = tmp_path_factory.mktemp("disks")
    (folder / "train.txt").write_text(make_text(200, seed=1))
    (folder / "valid.txt").write_text(make_text(100, seed=2))
    shutil.copytree(model_folder, folder / "model")
    build(str(folder / "model"), str(folder / "train.txt"), folder / "store", window=64, quiet=True)
    build_index(folder / "store", "IVF4,SQ8", quiet=True)
    tune(folder / "store", folder / "valid.txt")
    Gate.train(folder / "store", folder / "valid.txt", training=Training(epochs=1))
    build_infinigram(folder / "store")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy of all that, and an empty cache."""
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(made, tmp_path / "place")


@pytest.fixture(autouse=True)
def _tiny_experiments(made, monkeypatch, quick_paper_index, quick_timing):
    """Let `demo` and `reproduce` run on the tiny model, the latter two parts that a demo does not have; try less."""
    valid = (str(made / "valid.txt"),)
    setting = Setting(
        name="tiny",
        title="A tiny one",
        text="About it.",
        model=str(made / "model"),
        train=(str(made / "train.txt"),),
        valid=valid,
        test=valid,
        timed_tokens=50,
        rounds=1,
        ks=(16,),
        prompt="the licence",
    )
    monkeypatch.setattr(settings, "DEMO", setting)
    monkeypatch.setitem(settings.SETTINGS, "domain", setting)
    monkeypatch.setattr(reproduction, "ALL_PARTS", ("adaptive", "k"))
    monkeypatch.setattr(reproduction, "_NEW_TOKENS", 3)
    monkeypatch.setattr(optimization, "SMALL_DIMS", (8,))
    monkeypatch.setattr(optimization, "SMALL_KEEPS", (0.7,))
    monkeypatch.setattr(trials, "NEIGHBORS_TRIED", (64,))
    monkeypatch.setattr(overhead, "KS", (64,))
    monkeypatch.setattr(overhead, "NPROBES", (8,))
    monkeypatch.setattr(overhead, "KEEPS", (0.7,))
    monkeypatch.setattr("nearlm.optimizer.fit_plan.WAYS", (Ways((8,), (64,)),))
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)


@contextmanager
def full_disk(limit: int):
    """Let no file grow beyond so many bytes: what is written further fails, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def run(command: str, place: Path) -> tuple[int, str, str]:
    """Run a command in this process, whose output takes no place on a disk."""
    places = {"STORE": "store", "VALID": "valid.txt", "MODEL": "model", "OUT": "out"}
    words = [str(place / places[word]) if word in places else word for word in command.split()]
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        pytest.raises(SystemExit) as exit,
    ):
        patch.setattr(sys, "argv", ["nearlm", *words, "-q"])
        cli.main()
    return exit.value.code, out.getvalue(), err.getvalue()


def contents(folder: Path) -> dict[str, str]:
    """Return the checksums of all files that say the same each time."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "index.json"))
    return {str(path.relative_to(folder)): files.checksum(path) for path in found if path.name != "optimize.json"}


@pytest.mark.parametrize("command", WRITE)
def test_a_full_disk_is_named_and_nothing_is_lost(place, tmp_path, command):
    whole = shutil.copytree(place, tmp_path / "whole")
    if command not in TIMED:
        assert run(WRITE[command], whole)[0] == 0
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    before = contents(place / "store")
    for limit in LIMITS:
        with full_disk(limit):
            result = run(WRITE[command], place)
        if result[0] == 0:
            continue
        assert is_refusal(result), result
        assert re.search(r"/\S+: .*(File too large|No space left)", result[2]), result
        assert "free some space and repeat the command" in result[2]
        assert before.items() <= contents(place / "store").items()
    assert run(WRITE[command], place)[0] == 0
    assert not list(place.rglob("*.part")) + list(place.rglob("*.job"))
    if command not in TIMED:
        assert contents(place) == contents(whole)


@pytest.mark.parametrize("command", READ)
def test_reading_needs_no_place_on_the_disk(place, tmp_path, command):
    said = run(READ[command], place)[1]
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with full_disk(0):
        result = run(READ[command], place)
    if command == "eval":  # it keeps the text's tokens in a temporary folder
        assert is_refusal(result) and "free some space and repeat the command" in result[2]
    else:
        assert (result[0], result[1]) == (0, said)


@contextmanager
def read_only(folder: Path):
    """Take away all rights to write in a folder, and root's power to write nevertheless."""
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(modes[path] & ~0o222)
    with without_power():
        yield
    for path in paths:
        path.chmod(modes[path])


@contextmanager
def without_power():
    """Take the capability to override permissions from this thread, for a while."""
    system = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    before = (ctypes.c_uint32 * 6)()
    assert system.capget(header, before) == 0
    fewer = (ctypes.c_uint32 * 6)(*before)
    fewer[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert system.capset(header, fewer) == 0
    try:
        yield
    finally:
        assert system.capset(header, before) == 0


ELSEWHERE = ("reduce", "random", "kmeans", "merge", "rank", "ablate", "push", "slim", "pull")
OWN = ("append", "index", "flat", "tune", "gate", "optimize", "overhead", "sweep")


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root")
@pytest.mark.parametrize("command", [*READ, *ELSEWHERE])
def test_a_store_that_may_only_be_read_is_read(place, command):
    before = contents(place / "store")
    with read_only(place / "store"):
        code, _, err = run({**READ, **WRITE}[command], place)
    assert (code, err) == (0, "")
    assert contents(place / "store") == before


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root")
@pytest.mark.parametrize("command", [*OWN])
def test_what_is_to_be_kept_in_a_store_that_may_only_be_read_is_refused(place, command):
    before = contents(place / "store")
    with read_only(place / "store"):
        result = run(WRITE[command], place)
    assert is_refusal(result), result
    assert re.search(r"/place/store\S*: Permission denied", result[2]), result
    assert contents(place / "store") == before


@pytest.mark.skipif(sys.platform != "linux", reason="permissions of root")
@pytest.mark.parametrize(("command", "folder"), [("demo", "out"), ("reproduce", "out"), ("reproduce", "store")])
def test_an_experiment_says_what_may_only_be_read(place, monkeypatch, command, folder):
    setting = replace(settings.SETTINGS["domain"], store=str(place / "store"))
    monkeypatch.setitem(settings.SETTINGS, "domain", setting)
    (place / "out").mkdir()
    before = contents(place / "store")
    with read_only(place / folder):
        result = run(WRITE[command], place)
    assert is_refusal(result), result
    assert re.search(rf"/place/{folder}\S*: Permission denied", result[2]), result
    assert contents(place / "store") == before
