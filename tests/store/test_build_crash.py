"""A build that is stopped anywhere goes on, and ends byte-identical to one that was not.

First calls that change something on disk are made the last one, in this process: of every kind of change to every
kind of file the first, one in the middle and the last. Then real processes are killed; `benchmarks/crash.py` does so
at any moment and for as long as one likes.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calls import build
from nearlm.base import files, jobs
from nearlm.base.errors import StoreError
from nearlm.store.datastore import Datastore
from nearlm.text import tokens as tokenise
from tiny import make_text

CHANGING = ("append", "write_at", "sync", "replace", "allocate", "truncate", "remove")
TORN = ("append", "write_at", "remove")


class Killed(BaseException):
    """Stands for the end of the process."""


class Doom:
    """Lets the n-th change on disk, or its first half if torn, be the last thing that happens; 0 is never."""

    def __init__(self, at: int, torn: bool = False):
        self.at, self.torn = at, torn
        self.calls: list[str] = []
        self.files: list[str] = []  # what each of the calls changes, without numbers
        self.idle: set[int] = set()  # which calls change nothing that a killed process leaves

    def wrap(self, name: str, real: Callable) -> Callable:
        def call(*arguments):
            self.calls.append(name)
            self.files.append(_file(arguments[0]))
            if name in ("sync", "link") or (name == "remove" and not arguments[0].exists()):
                self.idle.add(len(self.calls))
            if self.at and len(self.calls) >= self.at:
                if self.torn and len(self.calls) == self.at:
                    _half(name, real, *arguments)
                raise Killed  # and whatever would tidy up afterwards does not come to it either
            return real(*arguments)

        return call


def _file(changed: Any) -> str:
    """Name a kind of file, with the folder that it is in."""
    path = Path(getattr(changed, "name", "") if hasattr(changed, "write") else changed)
    return re.sub(r"[0-9]+", "N", f"{path.parent.name}/{path.name}")


def _half(name: str, real: Callable, *arguments) -> None:
    """Do half of a change."""
    if name == "remove":
        inside = sorted(arguments[0].iterdir()) if arguments[0].is_dir() else []
        for path in inside[: len(inside) // 2]:
            real(path)
    elif name in TORN:
        file, data, *offset = arguments
        data = memoryview(data).cast("B")
        real(file, data[: len(data) // 2], *offset)
        file.flush()


@contextlib.contextmanager
def doomed(at: int, torn: bool = False) -> Iterator[Doom]:
    """Run something with its end appointed; every batch is a checkpoint."""
    doom = Doom(at, torn)
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (jobs, tokenise):
            patch.setattr(module, "CHECKPOINT_SECONDS", 0)
            patch.setattr(module, "time", clock)
        patch.setattr(tokenise, "_BATCH_CHARACTERS", 60)
        for name in CHANGING:
            patch.setattr(files, name, doom.wrap(name, getattr(files, name)))
        with contextlib.suppress(Killed):
            yield doom


def tree(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """Two texts of a few short rows, one of them empty."""
    folder = tmp_path_factory.mktemp("rows")
    for name, lengths in (("rows.jsonl", (12, 0, 5, 9)), ("more.jsonl", (7, 11))):
        texts = [make_text(words, seed) if words else "" for seed, words in enumerate(lengths)]
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def run_build(lm, rows: Path, out: Path, **keys) -> Datastore:
    return build(lm, str(rows / "rows.jsonl"), out, quiet=True, window=8, batch_tokens=16, shard_records=44, **keys)


def run_append(lm, rows: Path, out: Path) -> Datastore:
    return build(lm, str(rows / "more.jsonl"), out, quiet=True, append=True, batch_tokens=16, shard_records=44)


@pytest.fixture(scope="module")
def whole(lm, rows, tmp_path_factory) -> SimpleNamespace:
    """What uninterrupted runs give, and how many changes they make on disk."""
    folder = tmp_path_factory.mktemp("whole")
    with doomed(0) as first:
        run_build(lm, rows, folder / "built")
    shutil.copytree(folder / "built", folder / "appended")
    with doomed(0) as second:
        run_append(lm, rows, folder / "appended")
    assert len(Datastore.open(folder / "appended").manifest.shards) >= 3
    return SimpleNamespace(
        folder=folder,
        built=tree(folder / "built"),
        appended=tree(folder / "appended"),
        build=first,
        append=second,
    )


def points(whole: Doom, among: tuple[float, ...] = (0, 0.5, 1)) -> list[tuple[int, bool]]:
    """The first, the middle and the last change of each kind, not begun; and writes and removals half done.

    Of the writes into an array, which are noted one by one, all are not begun once. With `NEARLM_EVERY_POINT=1` every
    change is the last one once, which takes some minutes.
    What is left out leaves on disk what another point leaves: calls that change nothing, and new files not begun to be
    written (half written is the same to a reader, who takes no `.part`). Files that are linked are of one kind.
    """
    numbered = list(enumerate(whole.calls, start=1))
    if os.environ.get("NEARLM_EVERY_POINT"):
        return [(n, False) for n, _ in numbered] + [(n, True) for n, name in numbered if name in TORN]
    kinds: dict[tuple[str, str], list[int]] = {}
    written = {file for name, file in zip(whole.calls, whole.files, strict=True) if name == "append"}
    for (number, name), file in zip(numbered, whole.files, strict=True):
        if number not in whole.idle:
            linked = name == "replace" and file not in written and "tokenizer" not in file
            kinds.setdefault((name, "" if linked else file), []).append(number)
    some = {kind: {found[round(part * (len(found) - 1))] for part in among} for kind, found in kinds.items()}
    begun = {n for (name, file), chosen in some.items() if (name, file[-5:]) != ("append", ".part") for n in chosen}
    begun |= {n for (name, _), found in kinds.items() if name == "write_at" for n in found}
    torn = {n for (name, _), chosen in some.items() if name in TORN for n in chosen}
    return [(n, False) for n in sorted(begun)] + [(n, True) for n in sorted(torn)]


def test_small_runs_make_every_kind_of_change(whole):
    assert set(whole.build.calls) >= set(CHANGING) - {"truncate"}
    assert whole.build.calls.count("write_at") > 8
    assert set(whole.append.calls) >= set(CHANGING) - {"truncate"}


def test_a_build_goes_on_from_every_point(lm, rows, whole, tmp_path):
    for at, torn in points(whole.build):
        out = tmp_path / "store"
        with doomed(at, torn) as doom:
            run_build(lm, rows, out)
        assert len(doom.calls) >= at, "it was not stopped"
        if not (out / "manifest.json").exists():
            with pytest.raises(StoreError):
                Datastore.open(out)
        with doomed(0):
            run_build(lm, rows, out)
        assert tree(out) == whole.built, f"stopped at change {at} ({doom.calls[at - 1]}, torn: {torn})"
        shutil.rmtree(out)


def test_a_build_of_8_bit_keys_and_its_append_go_on_from_any_point(lm, rows, tmp_path):
    """Scales are kept once, whole, and never fitted again; keys that are added later have the same."""
    whole, out = tmp_path / "whole", tmp_path / "store"
    with doomed(0) as first:
        run_build(lm, rows, whole, key_dtype="int8")
    with doomed(0) as second:
        run_append(lm, rows, whole)
    scales = [point for point in points(first) if "scales" in first.files[point[0] - 1]]
    assert len(scales) >= 3
    for at, torn in scales + points(first)[::17] + points(second)[::17]:
        with doomed(at, torn):
            run_build(lm, rows, out, key_dtype="int8")
        with doomed(0):
            run_build(lm, rows, out, key_dtype="int8")
        with doomed(at, torn):
            run_append(lm, rows, out)
        with doomed(0):
            run_append(lm, rows, out)
        assert tree(out) == tree(whole), f"stopped at change {at} (torn: {torn})"
        shutil.rmtree(out)
    with doomed(0):
        run_build(lm, rows, out, key_dtype="int8", keys="none")
        assert not (out / "scales.npy").exists() and Datastore.open(out).manifest.format == 3
        run_append(lm, rows, out)
        before = Datastore.open(out).state
        run_build(lm, rows, out, key_dtype="int8")
    made, want = tree(out), tree(whole)
    assert json.loads(made.pop("manifest.json")) == json.loads(want.pop("manifest.json"))
    assert made == want
    assert Datastore.open(out).continues("another", before)


def test_an_append_goes_on_from_every_point_and_the_old_store_stays_readable(lm, rows, whole, tmp_path):
    old = {name: data for name, data in whole.built.items() if name not in ("manifest.json", ".lock")}
    for at, torn in points(whole.append, (0, 1)):
        out = tmp_path / "store"
        shutil.copytree(whole.folder / "built", out)
        with doomed(at, torn):
            run_append(lm, rows, out)
        where = f"stopped at change {at} ({whole.append.calls[at - 1]}, torn: {torn})"
        store = Datastore.open(out)
        store.verify()
        manifest = (out / "manifest.json").read_bytes()
        assert manifest in (whole.built["manifest.json"], whole.appended["manifest.json"]), where
        assert {name: (out / name).read_bytes() for name in old} == old, where
        with doomed(0):
            run_append(lm, rows, out)
        assert tree(out) == whole.appended, where
        shutil.rmtree(out)


def test_a_build_without_keys_goes_on_from_every_point(lm, rows, tmp_path):
    """It reads the text as a build with keys does, so that one change of each kind will do."""
    with doomed(0) as whole:
        run_build(lm, rows, tmp_path / "whole", keys="none")
    for at, torn in points(whole, (1,)):
        out = tmp_path / "store"
        with doomed(at, torn):
            run_build(lm, rows, out, keys="none")
        with doomed(0):
            run_build(lm, rows, out, keys="none")
        assert tree(out) == tree(tmp_path / "whole"), f"stopped at change {at} ({whole.calls[at - 1]}, torn: {torn})"
        shutil.rmtree(out)


def test_adding_keys_goes_on_from_every_point_and_the_text_stays_usable(lm, rows, whole, tmp_path):
    """It ends in the files of a build and an append with keys from the start; the manifest says the same."""
    bare = tmp_path / "bare"
    with doomed(0):
        run_build(lm, rows, bare, keys="none")
        run_append(lm, rows, bare)
        shutil.copytree(bare, tmp_path / "filled")
    with doomed(0) as filling:
        run_build(lm, rows, tmp_path / "filled")
    filled = tree(tmp_path / "filled")
    other = {name for name in filled if name != "manifest.json"}
    assert {name: filled[name] for name in other} == {name: whole.appended[name] for name in other}
    assert json.loads(filled["manifest.json"]) == json.loads(whole.appended["manifest.json"])
    checksums = {Datastore.open(path).checksum for path in (bare, tmp_path / "filled")}
    for at, torn in points(filling, (0, 1)):
        out = Path(shutil.copytree(bare, tmp_path / "store"))
        with doomed(at, torn):
            run_build(lm, rows, out)
        where = f"stopped at change {at} ({filling.calls[at - 1]}, torn: {torn})"
        store = Datastore.open(out)
        store.verify()
        assert store.checksum in checksums, where
        with doomed(0):
            run_build(lm, rows, out)
        assert tree(out) == filled, where
        shutil.rmtree(out)


def test_a_build_goes_on_after_many_stops(lm, rows, whole, tmp_path):
    """Stop every run after a few changes: also the changes that only a resumed run makes are the last ones once."""
    choice, kinds = random.Random(0), set()
    for number in range(8):
        out, stops = tmp_path / f"store{number}", 0
        while True:
            with doomed(choice.randint(6, 40), choice.random() < 0.5) as doom:
                run_build(lm, rows, out)
                break
            kinds.add(doom.calls[-1])
            stops += 1
            assert stops < 300, "it does not get on"
        assert stops >= 3
        with doomed(0):
            run_build(lm, rows, out)
        assert tree(out) == whole.built
    assert kinds >= {"append", "sync", "replace"}


def test_every_change_of_a_resumed_run_may_be_its_last(lm, rows, whole, tmp_path):
    """The second of two stops comes at every change that a resumed run makes before its first new batch."""
    middle = [n for n, name in enumerate(whole.build.calls, start=1) if name == "write_at"]
    for first in (middle[0], middle[1], middle[len(middle) // 2]):
        with doomed(first):
            run_build(lm, rows, tmp_path / "stopped")
        for second in range(1, 14):
            out = Path(shutil.copytree(tmp_path / "stopped", tmp_path / "store"))
            with doomed(second, torn=second % 2 == 0):
                run_build(lm, rows, out)
            with doomed(0):
                run_build(lm, rows, out)
            assert tree(out) == whole.built, f"stopped at change {first}, then {second}"
            shutil.rmtree(out)
        shutil.rmtree(tmp_path / "stopped")


# Real processes. One of them imports torch once and forks one child a run, so that a run takes no seconds to start.

RUNNER = """
import json, os, random, runpy, signal, sys, threading, time
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from nearlm.base import jobs
from nearlm.store import builder
from nearlm.base import files
from nearlm.text import tokens as tokenise

def arm(kind, after, seed):
    left = [after]
    def wrap(real):
        def call(*arguments):
            left[0] -= 1
            if left[0] == 0:
                delay = random.Random(seed).random() * 0.003
                threading.Timer(delay, os.kill, (os.getpid(), kind)).start()
            if left[0] < -10:  # on a busy machine the signal may come late: wait for it
                time.sleep(60)
            return real(*arguments)
        return call
    for name in ("append", "write_at", "sync", "replace"):
        setattr(files, name, wrap(getattr(files, name)))

def child(job):
    os.dup2(os.open(job["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs.CHECKPOINT_SECONDS = tokenise.CHECKPOINT_SECONDS = 0
    if job["signal"]:
        arm(job["signal"], job["after"], job["seed"])
    sys.argv = ["nearlm", *job["arguments"]]
    try:
        runpy.run_module("nearlm", run_name="__main__")
    except SystemExit as end:
        os._exit(end.code or 0)
    os._exit(0)

print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        child(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Runner:
    """Runs `nearlm` in forked processes that may get a signal after so many changes on disk."""

    def __init__(self, process: subprocess.Popen, stderr: Path):
        self.process, self.stderr = process, stderr

    def __call__(self, arguments: list[str], kind: int = 0, after: int = 0, seed: int = 0) -> int:
        job = {"arguments": arguments, "signal": kind, "after": after, "seed": seed, "stderr": str(self.stderr)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def runner(tmp_path) -> Iterator[Runner]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Runner(process, tmp_path / "stderr")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


def has_keys(folder) -> bool:
    """Tell whether a store is more than the text that can be used first."""
    return (folder / "manifest.json").exists() and len(Datastore.open(folder)) > 0


def test_real_kills_and_an_interrupt_change_no_byte(runner, model_folder, text_folder, tmp_path):
    def command(out: str) -> list[str]:
        options = {"model": model_folder, "text": text_folder, "out": tmp_path / out}
        options |= {"window": 16, "batch-tokens": 16, "shard-records": 500}
        return ["build", *(item for name, value in options.items() for item in (f"--{name}", str(value)))]

    assert runner(command("whole")) == 0, runner.stderr.read_text()
    noted, choice = [], random.Random(1)
    for number in range(3):
        after = choice.randint(40, 70)
        assert runner(command("store"), signal.SIGKILL, after, seed=number) == -signal.SIGKILL
        assert not has_keys(tmp_path / "store"), "it was too fast to be killed"
        states = sorted((tmp_path / "store" / "build.job").glob("shard-*.json"))
        noted.append(sum(files.read_json(state)["batches"] for state in states))
    assert noted == sorted(noted)
    assert noted[-1] > noted[0], "it does not get on"

    assert runner(command("store"), signal.SIGINT, 30) == 130
    said = [line for line in runner.stderr.read_text().splitlines() if line]
    assert said[-1] == "nearlm: interrupted; the same command resumes where it stopped"
    assert not [line for line in said if "Traceback" in line]
    assert not has_keys(tmp_path / "store")

    assert runner(command("store")) == 0, runner.stderr.read_text()
    assert "resuming the unfinished build" in runner.stderr.read_text()
    assert tree(tmp_path / "store") == tree(tmp_path / "whole")
    Datastore.open(tmp_path / "store").verify()
