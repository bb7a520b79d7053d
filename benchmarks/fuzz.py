"""Change the files of stores at random and let every reader have them: each must read or refuse, and nothing else.

    python benchmarks/fuzz.py [--minutes 5] [--seed 0] [--only 'index/*'] [--json]

Files are changed as damage and as malice would: bytes are flipped, cut and added, values of JSON files and numbers of
arrays replaced; most times every checksum is made right again. Readers run in forked processes, each for some hundred
cases, so that a crash or a hang is seen too. What is not a NearLMError is printed with the seed that leads to it again.
The readers are those of tests/readers.py, which the tests use too.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

AT_ONCE = 200  # cases of one process
SECONDS = 20  # of a processor, or six times that of a clock, before a case hangs
HOSTILE = 0.8  # of the cases have checksums that are right
BESIDE = ("model", "valid.txt")  # what a build that is finished needs


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-fuzz-") as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        found = fuzz(Path(name), options.minutes * 60, options.seed, options.only)
    counts = Counter(row["outcome"] for row in found)
    bad = [row for row in found if row["outcome"] not in ("read", "refused")]
    print(json.dumps(dict(counts)) if options.json else f"{len(found):,} cases, {len(bad)} bad; {dict(counts)}")
    sys.exit(1 if bad else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="*", help="pattern of the files to change")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def fuzz(folder: Path, seconds: float, seed: int, only: str) -> list[dict[str, str]]:
    """Let children try cases until the time is over, and gather what they say."""
    in_child(lambda: make(folder))  # so that this process never runs a thread of FAISS, numba or torch
    import nearlm.knnlm  # noqa: F401  (once, so that a child starts at once)

    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in ("cache", "model"))
    due = time.monotonic() + seconds
    found: list[dict[str, str]] = []
    while time.monotonic() < due:
        log = folder / "log"
        log.write_text("")
        code = in_child(partial(attempt_many, folder, folders, len(found), seed, only, due), strict=False)
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        begun = json.loads((folder / "case.json").read_text())
        if code:
            rows.append({**begun, "outcome": "hang" if code in (-signal.SIGALRM, -signal.SIGPROF) else "crash"})
        for row in rows:
            if row["outcome"] not in ("read", "refused"):
                print(row, file=sys.stderr, flush=True)
        found += rows
    return found


def make(folder: Path) -> None:
    import readers

    stores = readers.Stores(folder)
    for store in stores.folders.values():  # sound ones can be read; kernels are compiled
        for read in dict.fromkeys(readers.reader_of(name) for name in readers.files_of(store)):
            with tempfile.TemporaryDirectory(dir=folder) as copy:
                for beside in BESIDE:
                    (Path(copy) / beside).symlink_to(folder / beside)
                if store.name != "store":
                    (Path(copy) / "store").symlink_to(folder / "store")
                work = shutil.copytree(store, Path(copy) / store.name)
                read(work)


def in_child(work, strict: bool = True) -> int:
    """Do something in a forked process; return how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not (strict and code), code
    return code


def attempt_many(folder: Path, folders: list[Path], first: int, seed: int, only: str, due: float) -> None:
    """Try some cases, of which each is a function of the seed and its number."""
    import readers

    warnings.simplefilter("ignore")
    os.fsync = os.fdatasync = lambda descriptor: None  # what is written need not last
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    names = [(store, name) for store in folders for name in readers.files_of(store) if fnmatch(name, only)]
    with open(folder / "log", "w") as log:
        for number in range(first, first + AT_ONCE):
            choice = random.Random(f"{seed} {number}")
            store, name = choice.choice(names)
            row = {"case": f"{seed} {number}", "file": f"{store.name}/{name}"}
            (folder / "case.json").write_text(json.dumps(row))
            log.write(json.dumps({**row, **attempt(folder, store, name, choice)}) + "\n")
            log.flush()
            if time.monotonic() > due:
                return


def attempt(folder: Path, store: Path, name: str, choice: random.Random) -> dict[str, str]:
    import readers

    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(store, work / store.name)
    for beside in ("store", *BESIDE):
        if not (work / beside).exists():
            (work / beside).symlink_to(folder / beside)
    signal.alarm(6 * SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        said = readers.attempt(work / store.name, name, choice, hostile=choice.random() < HOSTILE)
    except BaseException as error:
        where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        return {"outcome": "unexpected", "said": f"{error!r}"[:300], "where": " ".join(where[-4:])}
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"outcome": "read" if said == "read" else "refused"}


if __name__ == "__main__":
    main()
