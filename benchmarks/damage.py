"""Damage stores in every way and see what verify, info, eval, generate, merge, push and others do with them.

    python benchmarks/damage.py [--cases 1000] [--minutes M] [--seed 0] [--table docs/damage.md] [--json]

Damaged: bytes of one file are flipped, zeroed, cut off or added, or the file is removed or replaced by a folder, a FIFO
or a link. Every command must refuse the store or give what it gave before.
Hostile: a number in an array or a value in a JSON file is changed and every checksum is made right again, or a name
leads outside. A command may then give anything but a crash, a hang, an unexpected error or a change outside the store.
Each case runs in a process of its own, forked from one that has loaded a tiny model. (On Linux, for /proc.)
"""

import argparse
import json
import math
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

from nearlm.base import NearLMError, files
from readers import leaves, restamp

SECONDS = 60  # of a processor, or of waiting for nothing, before a case hangs
WAIT = 0.5
PROMPT = "the licence grants"
NOT_FOR_ALL = {"merge", "load", "push", "fit"}  # what sound stores may refuse, e.g. without keys or not made by fit
BAD = ("different", "unexpected", "crash", "hang", "outside")


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-damage-") as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        bench = Bench(Path(name))
        due = time.monotonic() + 60 * options.minutes
        found = attack(bench, options.cases, due, random.Random(options.seed))
    if options.table:
        Path(options.table).write_text(table(found, options.seed))
    bad = [row for row in found if any(outcome in BAD for outcome in row["outcomes"].values())]
    counts = Counter(outcome for row in found for outcome in row["outcomes"].values())
    print(json.dumps(found) if options.json else f"{len(found):,} stores, {len(bad)} bad; {dict(counts)}")
    for row in bad[:40]:
        print(row["kind"], row["how"], row["outcomes"], row["said"], file=sys.stderr)
    sys.exit(1 if bad else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end sooner, after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", help="write a Markdown table of file kinds and outcomes here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Bench:
    """Sound stores, and what each operation gives on them, if only that it is refused.

    One as built and appended to, one merged and reduced with 4-bit codes, one pushed without its keys with a graph over
    its lists, one of text alone that was appended to, one that `fit` made, and one
    that has forgotten documents, some of them off the disk.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "precious.npy").write_bytes(b"precious" * 1000)
        in_child(self.make)  # so that this process never runs a thread of FAISS, numba or torch
        self.lm = load_lm(folder / "model")
        self.text = str(folder / "more")
        self.operations: dict[str, Callable[[Path], Any]] = {
            "verify": verify,
            "info": info,
            "eval": self.evaluate,
            "generate": self.generate,
            "merge": self.merge,
            "match": match,
            "load": load,
            "push": push,
            "fit": read_fit,
        }
        self.stores = [folder / name for name in ("store", "small", "slim", "instant", "fitted", "edited")]
        self.expected = {}
        for store in self.stores:
            ended, given = run(self, store)
            refused = {name for name, one in given.items() if "value" not in one}
            assert ended == "end" and refused <= NOT_FOR_ALL, (store, ended, given)
            self.expected[store] = given
        assert all(any("value" in given[name] for given in self.expected.values()) for name in self.operations)

    def make(self) -> None:
        import nearlm
        from calls import build, build_index, prune_store, reduce_store, tune
        from nearlm.mixing import Gate, Mixture, Training, catch_up
        from nearlm.model.lm import LM
        from nearlm.search import Retriever
        from nearlm.store import SearchSettings, write_defaults
        from tiny import make_llama, make_text, make_tokenizer

        make_llama().save_pretrained(self.folder / "model")
        make_tokenizer().save_pretrained(self.folder / "model")
        for part, count in (("train", 6), ("valid", 12), ("more", 1)):
            (self.folder / part).mkdir()
            for number in range(count):
                (self.folder / part / f"{number}.txt").write_text(make_text(120, seed=number + len(part)))
        self.lm = LM.load(str(self.folder / "model"))
        self.text = str(self.folder / "more")
        store = build(self.lm, str(self.folder / "train"), self.folder / "store", window=64, quiet=True)
        store = build(self.lm, self.text, self.folder / "store", window=64, quiet=True, append=True)
        build_index(store, "IVF16,SQ8", nprobe=4, quiet=True)
        prune_store(store, "rank", self.folder / "ranked", keep=0.5, k=8, quiet=True)
        merged = prune_store(store, "merge", self.folder / "merged", neighbors=4, quiet=True)
        small = reduce_store(merged, 16, self.folder / "small", quiet=True)
        build_index(small, "auto", bytes=8, quiet=True)
        half = prune_store(store, "random", self.folder / "half", keep=0.5, quiet=True)
        build_index(half, "IVF8_HNSW4,SQ4", nprobe=4, quiet=True)
        for made in (store, small, half):
            tune(self.lm, Retriever(made), str(self.folder / "valid"), k=64)
            valid = str(self.folder / "valid")
            Mixture.train(made, valid, self.lm)
            Gate.train(made, valid, self.lm, Training(epochs=1, features="all"), mixture="default")
            settings = SearchSettings(index="default", mixture="default", gate="default", skip=0.2)
            write_defaults(made.layout, settings)
            files.write_stamped(made.layout.optimized, {"plan": {}})  # only `optimize` writes defaults
        nearlm.push(half, self.folder / "slim", slim=True)
        instant = {"window": 64, "keys": "none", "quiet": True}
        for more, text in enumerate((str(self.folder / "train"), self.text)):
            build(self.lm, text, self.folder / "instant", append=bool(more), **({} if more else instant))
            catch_up(self.folder / "instant")
        Mixture.train(self.folder / "instant", valid, self.lm, sources="ngram,text")
        options = nearlm.BuildOptions(window=64)
        nearlm.fit(self.lm, str(self.folder / "valid"), self.folder / "fitted", build_options=options)

        edited = shutil.copytree(store.path, self.folder / "edited")
        nearlm.forget(edited, source="*/1.txt")
        nearlm.compact(edited)
        nearlm.forget(edited, source="*/3.txt")

    def evaluate(self, store: Path) -> float:
        import nearlm

        return nearlm.evaluate(store, self.text, self.lm).perplexity

    def generate(self, store: Path) -> str:
        import nearlm

        return nearlm.KNNLM.load(store, self.lm).generate(PROMPT, max_new_tokens=6, do_sample=False)

    def merge(self, store: Path) -> int:
        import nearlm

        if nearlm.Datastore.open(store).forgotten is not None:
            return -1  # refused until it is compacted
        out = store.with_name(f"{store.name}-merged")
        shutil.rmtree(out, ignore_errors=True)
        try:
            return len(nearlm.prune_store(store, nearlm.PruneOptions("merge", neighbors=3), out))
        finally:
            shutil.rmtree(out, ignore_errors=True)


def in_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def load_lm(folder: Path) -> Any:
    import torch

    from nearlm.model.lm import LM

    torch.set_num_threads(1)
    return LM.load(str(folder))


def verify(store: Path) -> bool:
    from nearlm.cli.options import Output
    from nearlm.cli.stores import verify_command

    with open(os.devnull, "w") as nothing:
        stdout, sys.stdout = sys.stdout, nothing
        try:
            verify_command(store, output=Output(quiet=True))
        finally:
            sys.stdout = stdout
    return True


def info(store: Path) -> str:
    import nearlm

    opened = nearlm.Datastore.open(store)
    traced = opened.trace(3) if len(opened) else opened.document_of(3)
    return json.dumps([traced, opened.summary()["records"]], default=str)


def match(store: Path) -> list[list[int]]:
    from nearlm.mixing import InfiniGram
    from nearlm.store import Datastore

    grams = InfiniGram.open(Datastore.open(store))
    text = np.random.default_rng(0).permutation(grams.tokens.reshape(-1)[:60]).astype(np.int32)
    ends = np.arange(len(text) + 1)
    matches = grams.look_up(text, np.maximum(ends - 30, 0), ends)
    followers = [sorted(grams.following[begin:end].tolist())[:3] for _, begin, end in zip(*matches, strict=True)]
    return [*(column.tolist() for column in matches), *followers]


def load(store: Path) -> list[list[int]]:
    import nearlm

    opened = nearlm.Datastore.open(store)
    queries = np.random.default_rng(0).normal(size=(4, opened.dim)).astype(np.float32)
    return nearlm.faiss_index(opened).search(queries, 8)[1].tolist()


def push(store: Path) -> dict[str, str]:
    """Push to a folder, pull from that, and return what arrives."""
    import nearlm

    places = [store.with_name(f"{store.name}-{name}") for name in ("pushed", "pulled")]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    try:
        nearlm.push(store, places[0])
        nearlm.pull(places[0], places[1])
        found = (path for path in places[1].rglob("*") if path.is_file() and path.name not in (".lock", "shared.json"))
        return {path.relative_to(places[1]).as_posix(): files.checksum(path) for path in found}
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)


def read_fit(store: Path) -> list[str]:
    from nearlm.optimizer.fit_record import read_fit
    from nearlm.store import Datastore

    found = read_fit(Datastore.open(store).layout.fit)
    if found is None:
        raise NearLMError("this store was not made by fit")
    record, split = found
    return [record.fit.table(), files.canonical_hash(split.to_array().tolist())]


def run(bench: Bench, store: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Do everything with a store in a process of its own; return how that ended and what each operation gave."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        os.fsync = os.fdatasync = lambda descriptor: None  # what is written need not last
        for name, operation in bench.operations.items():
            os.write(send, (json.dumps({"name": name, **attempt(operation, store)}) + "\n").encode())
        os._exit(0)
    os.close(send)
    said, ended = b"", "hang"
    used = waited = 0.0
    while max(used, waited) < SECONDS:
        if select.select([receive], [], [], WAIT)[0]:
            block = os.read(receive, 1 << 16)
            if not block:
                ended = "end"
                break
            said += block
        before, used = used, processor_seconds(child)
        waited = waited + WAIT if used == before else 0.0
    os.close(receive)
    if ended == "hang":
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == "end" and code != 0:
        ended = "crash"
    rows = [json.loads(line) for line in said.decode().splitlines() if line.endswith("}")]
    return ended, {row.pop("name"): row for row in rows}


def processor_seconds(process: int) -> float:
    """Return the seconds of a processor that a process has used: other work beside it does not make it hang."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attempt(operation: Callable[[Path], Any], store: Path) -> dict[str, Any]:
    try:
        return {"value": operation(store)}
    except NearLMError as error:
        return {"refused": str(error)}
    except OSError as error:
        return {"refused": f"{error}"} if error.filename else {"unexpected": repr(error)}
    except BaseException as error:
        return {"unexpected": repr(error)[:300]}


def attack(bench: Bench, cases: int, due: float, choice: random.Random) -> list[dict[str, Any]]:
    """Damage copies of the stores, one after the other."""
    plans = [
        (store, path.relative_to(store), how)
        for store in bench.stores
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != ".lock"
        for how in ways(path)
    ]
    choice.shuffle(plans)
    found = []
    before = bench_outside(bench)
    while len(found) < cases and time.monotonic() < due:
        store, name, how = plans[len(found) % len(plans)]
        copy = bench.folder / "copy" / store.name
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(store, copy)
        hostile = WAYS[how](copy / name, choice, bench)
        if hostile:
            restamp(copy)
        ended, given = run(bench, copy)
        outcomes, said = judge(bench.expected[store], given, ended, hostile)
        if bench_outside(bench) != before:
            outcomes["outside"] = "outside"
        found.append({"kind": kind(name), "how": how, "outcomes": outcomes, "said": said})
        if len(found) % 50 == 0:
            print(f"{len(found)} of {cases}", file=sys.stderr, flush=True)
    return found


def judge(
    expected: dict[str, Any], given: dict[str, Any], ended: str, hostile: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Say of each operation what it did, and keep what is worth reading."""
    outcomes, said = {}, {}
    for name, right in expected.items():
        one = given.get(name)
        if one is None:
            outcomes[name] = ended if ended != "end" else "crash"
            break
        if "unexpected" in one:
            outcomes[name], said[name] = "unexpected", one["unexpected"]
        elif "refused" in one:
            outcomes[name] = "refused"
        elif one["value"] == right.get("value") or (name == "push" and is_rest(one["value"], right, outcomes)):
            outcomes[name] = "same"
        else:
            outcomes[name] = "other" if hostile else "different"
            said[name] = f"{right} → {one['value']}"[:400]
    return outcomes, said


def is_rest(arrived: dict[str, str], right: dict[str, Any], outcomes: dict[str, str]) -> bool:
    """Tell whether a store that `verify` calls sound arrived as it is: what it can do without was not there."""
    return outcomes["verify"] == "same" and arrived.items() <= right.get("value", {}).items()


def bench_outside(bench: Bench) -> dict[str, str]:
    return {str(path): files.checksum(path) for path in bench.outside.rglob("*") if path.is_file()}


def kind(name: Path) -> str:
    """Name a file by what it is, whatever its number."""
    parts = ["*" if part.startswith("data-") else part for part in name.parts]
    last = re.sub(r"-(0[0-9]{4}|[0-9a-f]{8})$", "-*", name.stem) + name.suffix
    return "/".join([*parts[:-1], last])


def ways(path: Path) -> list[str]:
    common = ["flip", "flip", "zero", "cut", "grow", "remove", "folder", "fifo", "link"]
    if path.suffix == ".json":
        return [*common, "value", "value", "name"]
    return [*common, "number", "number"] if path.suffix == ".npy" else common


def flip(path: Path, choice: random.Random, bench: Bench) -> bool:
    data = bytearray(path.read_bytes())
    for _ in range(choice.choice([1, 1, 8])):
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    path.write_bytes(data)
    return False


def zero(path: Path, choice: random.Random, bench: Bench) -> bool:
    data = bytearray(path.read_bytes())
    start = choice.randrange(len(data))
    data[start : start + 64] = bytes(len(data[start : start + 64]))
    path.write_bytes(data)
    return False


def cut(path: Path, choice: random.Random, bench: Bench) -> bool:
    os.truncate(path, choice.randrange(path.stat().st_size))
    return False


def grow(path: Path, choice: random.Random, bench: Bench) -> bool:
    path.write_bytes(path.read_bytes() + choice.randbytes(choice.choice([1, 4, 4096])))
    return False


def remove(path: Path, choice: random.Random, bench: Bench) -> bool:
    path.unlink()
    return False


def folder(path: Path, choice: random.Random, bench: Bench) -> bool:
    path.unlink()
    path.mkdir()
    return False


def fifo(path: Path, choice: random.Random, bench: Bench) -> bool:
    path.unlink()
    os.mkfifo(path)
    return False


def link(path: Path, choice: random.Random, bench: Bench) -> bool:
    path.unlink()
    path.symlink_to(bench.outside / "precious.npy")
    return False


def number(path: Path, choice: random.Random, bench: Bench) -> bool:
    array = np.load(path)
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        flat[choice.randrange(len(flat))] = choice.choice([np.inf, -np.inf, np.nan, 6e4])
    else:
        limits = np.iinfo(array.dtype)
        wrong = [limits.min, limits.max, max(-1, limits.min), min(12345, limits.max), limits.max // 2]
        flat[choice.randrange(len(flat))] = choice.choice(wrong)
    np.save(path, array)
    return True


def value(path: Path, choice: random.Random, bench: Bench) -> bool:
    """Change one value somewhere in a JSON file."""
    whole = json.loads(path.read_text())
    places = list(leaves(whole))
    holder, key = choice.choice(places)
    wrong = [-1, 0, 1 << 62, 1e308, "", "x", None, [], {}, True, "../../outside/precious.npy"]
    holder[key] = choice.choice(wrong)
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return True


def name(path: Path, choice: random.Random, bench: Bench) -> bool:
    """Let a name in a JSON file lead outside."""
    whole = json.loads(path.read_text())
    holders = [holder for holder, key in leaves(whole) if isinstance(holder, dict) and key == "sha256"]
    if isinstance(whole.get("files"), dict) and whole["files"]:
        old = choice.choice(sorted(whole["files"]))
        target = bench.outside / "precious.npy"
        there = choice.choice(["../../outside/precious.npy", str(target), f"../../../{target}"])
        whole["files"][there] = {"bytes": target.stat().st_size, "sha256": files.checksum(target)}
        if choice.random() < 0.5:
            del whole["files"][old]
    elif holders:
        choice.choice(holders)["sha256"] = "0" * 64
    if "data" in whole:
        whole["data"] = choice.choice([whole["data"], "../../../outside", str(bench.outside)])
    path.write_text(json.dumps(whole, indent=1) + "\n")
    return True


WAYS = {way.__name__: way for way in (flip, zero, cut, grow, remove, folder, fifo, link, number, value, name)}


def table(found: list[dict[str, Any]], seed: int) -> str:
    """Write which file kinds were damaged how often, and what each operation did."""
    operations = ["verify", "info", "eval", "generate", "merge", "match", "load", "push", "fit"]
    lines = [
        "# What damage does\n",
        f"{len(found):,} damaged or hostile stores (`python benchmarks/damage.py --cases {len(found)} --seed {seed}",
        "--table docs/damage.md`). Of each",
        "kind of file: how often an operation refused the store, gave what it had given before, or, for hostile stores",
        "whose checksums were made right again, something else. There must be no other outcome. `match` looks",
        "contexts up in the suffix array, `load` reads an index into memory, `push` passes the store on, `fit`",
        "reads what `fit` keeps. Stores that never had what an operation needs refuse it too.\n",
        "| file | stores | " + " | ".join(operations) + " |",
        "|---|---|" + "---|" * len(operations),
    ]
    for name in sorted({row["kind"] for row in found}):
        rows = [row for row in found if row["kind"] == name]
        cells = []
        for operation in operations:
            counts = Counter(row["outcomes"].get(operation, "not reached") for row in rows)
            cells.append(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
        lines.append(f"| `{name}` | {len(rows)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
