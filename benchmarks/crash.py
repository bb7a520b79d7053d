"""Kill every command that writes at random moments; what it makes must be what it makes when left alone.

    python benchmarks/crash.py [--kills 200] [--minutes M] [--seed 0] [--stages build append …] [--json]

Each run is a process of its own, forked from one that has imported torch, and gets SIGKILL after a random time. The
next run resumes. When a command has ended by itself, all files of its folder are compared with those of a run that was
not killed (but for measured times), nothing unfinished may be left, and the stage begins again. A tiny random Llama
and a made-up text are used, with a checkpoint after every batch, so that few seconds hold many moments.

After each kill of add, forget or compact the store is opened and searched: it must be what it was before the command
or what it is after it, with index, suffix array and n-gram tables of that state.
"""

import argparse
import json
import math
import os
import random
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

from nearlm.base import NearLMError, jobs
from nearlm.text import tokens as tokenise

OPTIONS = {"window": 32, "batch_tokens": 64, "shard_records": 1000}
MEASURED = ("queries_per_second", "build_seconds", "checksum")  # of JSON files; a checksum covers the others
UNFINISHED = (".job", ".part", ".fit", ".optimize", ".pull")
ENOUGH = 12  # kills of one command before it may end
LONGEST = 4.0  # seconds before a kill: a long command goes on where it was killed
Command = Callable[[Path], None]


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-crash-") as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        due = time.monotonic() + 60 * options.minutes
        result = torture(Bench(Path(name)), options.stages, options.kills, due, random.Random(options.seed))
    print(json.dumps(result) if options.json else summary(result))
    sys.exit(0 if all(one["different"] == one["left"] == one["half"] == 0 for one in result.values()) else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="over all stages")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end sooner, after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Bench:
    """The model and texts, and what each stage made when it was left alone."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.work = folder / "work"
        self.whole: dict[str, Path] = {}
        self.seconds: dict[str, float] = {}
        self.looks: dict[str, set[int]] = {}
        assert run(lambda: make_model_and_texts(folder))[0]

    def prepare(self, stage: str) -> None:
        """Lay out what a stage begins with, and an empty cache."""
        source = STAGES[stage][0]
        before = None if source is None else self.finish(source)  # which may work in the same folder
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)
        if before is None:
            self.work.mkdir()
        else:
            shutil.copytree(before / "store", self.work / "store")

    def finish(self, stage: str) -> Path:
        """Return what a stage makes when it is left alone."""
        if stage not in self.whole:
            self.prepare(stage)
            finished, self.seconds[stage] = run(self.command(stage))
            assert finished, f"{stage} fails by itself"
            self.whole[stage] = shutil.copytree(self.work, self.folder / f"whole-{stage}")
        return self.whole[stage]

    def states(self, stage: str) -> set[int]:
        """Return how a store looks before a stage and after it."""
        if stage not in self.looks:
            places = (self.finish(str(STAGES[stage][0])), self.finish(stage))
            self.looks[stage] = {run_to_code(lambda place=place: start(look, place)) for place in places}  # type: ignore[misc]
            assert min(self.looks[stage]) > 100, f"{stage} makes a store that is not sound"
        return self.looks[stage]

    def command(self, stage: str) -> Callable[[], None]:
        return lambda: start(STAGES[stage][1], self.work)


def make_model_and_texts(folder: Path) -> None:
    from tiny import make_llama, make_text, make_tokenizer

    make_llama().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    for part, count in (("texts", 20), ("valid", 12)):
        (folder / part).mkdir()
        for number in range(count):
            (folder / part / f"{number:02d}.txt").write_text(make_text(100, seed=number + 50 * len(part)))
    for part in ("texts", "valid"):
        shutil.copytree(folder / part, folder / "both" / part)


def build(work: Path) -> None:
    from calls import build

    build(str(work.parent / "model"), str(work.parent / "texts"), work / "store", quiet=True, **OPTIONS)


def append(work: Path) -> None:
    from calls import build

    more = {"append": True, "max_tokens": 3000, **OPTIONS}
    build(str(work.parent / "model"), str(work.parent / "texts"), work / "store", quiet=True, **more)
    catch_up(work)


def instant(work: Path) -> None:
    from calls import build

    text = {"keys": "none", **OPTIONS}
    build(str(work.parent / "model"), str(work.parent / "texts"), work / "store", quiet=True, **text)
    catch_up(work)


def keys(work: Path) -> None:
    build(work)
    catch_up(work)


def catch_up(work: Path) -> None:
    from nearlm.mixing import catch_up

    catch_up(work / "store")


def index(work: Path) -> None:
    from calls import build_index

    build_index(work / "store", "IVF16,SQ8", nprobe=4, quiet=True)


def reduce(work: Path) -> None:
    from calls import reduce_store

    reduce_store(work / "store", 16, work / "out", quiet=True)


def prune(method: str, **options: Any) -> Command:
    def command(work: Path) -> None:
        from calls import prune_store

        prune_store(work / "store", method, work / "out", quiet=True, **options)

    return command


def push(slim: bool) -> Command:
    def command(work: Path) -> None:
        import nearlm

        nearlm.push(work / "store", work / "shared", slim=slim)

    return command


def pull(work: Path) -> None:
    import nearlm

    nearlm.pull(work / "store", work / "copy")


def tune(work: Path) -> None:
    import nearlm

    nearlm.tune(work / "store", work.parent / "valid", k=64)


def gate(work: Path) -> None:
    import nearlm

    nearlm.Gate.train(work / "store", work.parent / "valid", training=nearlm.Training(epochs=2))


def mixture(work: Path) -> None:
    import nearlm

    nearlm.Mixture.train(work / "store", work.parent / "valid")


def optimize(**rule: float) -> Command:
    def command(work: Path) -> None:
        import nearlm
        from nearlm.search import kinds

        kinds.paper_code_bytes = lambda dim: "4x4"  # trained at once
        make_up_times()
        nearlm.optimize(work / "store", work.parent / "valid", work / "fast", **rule)

    return command


def tables(work: Path) -> None:
    import nearlm
    from nearlm.mixing.ngrams import build_ngrams
    from nearlm.store import Datastore

    index(work)
    nearlm.build_infinigram(work / "store")
    build_ngrams(Datastore.open(work / "store"))


def add(work: Path) -> None:
    import nearlm

    nearlm.add(work / "store", str(work.parent / "valid"), str(work.parent / "model"))


def forget(work: Path) -> None:
    import nearlm
    from nearlm.base import OptionError
    from nearlm.store import Datastore

    try:
        nearlm.forget(work / "store", source="*1.txt")
    except OptionError:  # an earlier run has done it, and was killed while it tidied up
        assert Datastore.open(work / "store").forgotten


def compact(work: Path) -> None:
    import nearlm

    nearlm.compact(work / "store")


def look(work: Path) -> None:
    """Open a store and search it; end with a code that says how many documents it has, or 1 if something is wrong."""
    import numpy as np

    from nearlm.mixing.infinigram import InfiniGram
    from nearlm.mixing.ngrams import NGrams
    from nearlm.search import Retriever
    from nearlm.store import Datastore

    store = Datastore.open(work / "store")
    gone = store.forgotten
    left = store.manifest.documents - (len(gone) if gone else 0)
    found = Retriever(store).search(store.keys[:3].astype(np.float32), 50)
    grams = InfiniGram.open(store)
    positions = len(store.tokens) - (gone.tokens if gone else 0)
    sound = (found.ids >= 0).all() and (gone is None or not gone.record_mask[found.ids].any())
    sound = sound and len(grams.tokens) == len(store.tokens) and len(grams.order) == positions - left
    sound = sound and NGrams.open(store).tables["counts-1"].sum() == positions
    os._exit(100 + left if sound and left < 100 else 1)


EDITS = ("add", "forget", "compact")


def make_up_times() -> None:
    """Let no measured time decide anything."""
    from nearlm.optimizer import bench, fitting
    from nearlm.optimizer.fit_plan import Speed

    bench.searches_per_second = lambda retriever, queries, k: 1e6 / (k + retriever.store.dim)
    bench.Bench.gate_seconds = bench.Bench.network_seconds = lambda self, *given: 1e-6
    bench.Bench.mixing_seconds = lambda self, memory: 2e-6
    bench.Bench.lm_seconds = lambda self, lm: 1e-2
    fitting.measure_speed = lambda *given: Speed(1e-2, 4.0)


def fit(part: str, **options: Any) -> Command:
    def command(work: Path) -> None:
        import nearlm

        make_up_times()
        rule = nearlm.FitOptions(overhead=100.0, **options)
        built = nearlm.BuildOptions(**OPTIONS)
        nearlm.fit(str(work.parent / "model"), str(work.parent / part), work / "store", rule, built)

    return command


STAGES: dict[str, tuple[str | None, Command]] = {
    "build": (None, build),
    "append": ("build", append),
    "instant": (None, instant),
    "grow": ("instant", append),
    "keys": ("instant", keys),
    "fit": (None, fit("valid")),
    "fit more": ("fit", fit("both")),
    "fit all": ("fit", fit("valid", all=True)),
    "index": ("build", index),
    "push": ("index", push(slim=False)),
    "push slim": ("index", push(slim=True)),
    "pull": ("index", pull),
    "reduce": ("index", reduce),
    "random": ("index", prune("random", keep=0.5)),
    "kmeans": ("index", prune("kmeans", keep=0.5)),
    "merge": ("index", prune("merge", neighbors=4)),
    "rank": ("index", prune("rank", keep=0.5, k=8)),
    "tune": ("index", tune),
    "gate": ("tune", gate),
    "mixture": ("tune", mixture),
    "optimize": ("tune", optimize(budget=2.0)),
    "overhead": ("tune", optimize(overhead=1.0)),
    "tables": ("build", tables),
    "add": ("tables", add),
    "forget": ("tables", forget),
    "compact": ("forget", compact),
}


def torture(
    bench: Bench, stages: list[str], kills: int, due: float, choice: random.Random
) -> dict[str, dict[str, int]]:
    """Kill the stages in turn until there were enough kills, and count what came of it."""
    counts = {stage: Counter(kills=0, runs=0, different=0, left=0, half=0) for stage in stages}
    while sum(count["kills"] for count in counts.values()) < kills:
        for stage, count in counts.items():
            if time.monotonic() > due:
                return {stage: dict(count) for stage, count in counts.items()}
            whole = contents(bench.finish(stage))
            bench.prepare(stage)
            kill_until_done(bench, stage, choice, count)
            count["runs"] += 1
            count["different"] += contents(bench.work) != whole
            count["left"] += any(is_left(path) for path in bench.work.rglob("*"))
        print(f"{sum(count['kills'] for count in counts.values())} of {kills}", file=sys.stderr, flush=True)
    return {stage: dict(count) for stage, count in counts.items()}


def kill_until_done(bench: Bench, stage: str, choice: random.Random, count: Counter[str]) -> None:
    """Run a command again and again, each time killed after a while, until it has ended by itself."""
    for _ in range(ENOUGH):
        if run(bench.command(stage), after=choice.uniform(0, min(bench.seconds[stage], LONGEST)))[0]:
            return
        count["kills"] += 1
        if stage in EDITS:
            count["half"] += run_to_code(lambda: start(look, bench.work)) not in bench.states(stage)
    if not run(bench.command(stage))[0]:
        kept = shutil.copytree(bench.work, Path(tempfile.mkdtemp()) / stage)
        raise SystemExit(f"{stage} cannot be finished; its folder is kept in {kept}")


def start(command: Command, work: Path) -> None:
    import torch

    torch.set_num_threads(1)
    jobs.CHECKPOINT_SECONDS = tokenise.CHECKPOINT_SECONDS = 0.0
    try:
        command(work)
    except NearLMError as error:
        print(error, file=sys.stderr)
        os._exit(2)


def run(command: Callable[[], None], after: float | None = None) -> tuple[bool, float]:
    """Run a command in a child, kill it after so many seconds; return whether it ended by itself, and its time."""
    begin = time.monotonic()
    code = run_to_code(command, after)
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a run ended with code {code}")
    return code == 0, time.monotonic() - begin


def run_to_code(command: Callable[[], None], after: float | None = None) -> int:
    """Run a command in a child, kill it after so many seconds; return its exit code."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        command()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_left(path: Path) -> bool:
    """Tell whether a file or folder is of something unfinished."""
    return path.suffix in UNFINISHED or path.name == "next.json"


def contents(folder: Path) -> dict[str, Any]:
    """Return all files, JSON without what is measured."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.name == ".lock":
            continue
        data: Any = path.read_bytes()
        if path.name in ("index.json", "optimize.json"):
            data = without_measured(json.loads(data))
        if path.name == "fit.json":  # which counts the bytes of index.json too
            data = without_measured(json.loads(data), (*MEASURED, "microseconds", "lm_microseconds", "bytes"))
        found[str(path.relative_to(folder))] = data
    return found


def without_measured(value: Any, measured: tuple[str, ...] = MEASURED) -> Any:
    if isinstance(value, list):
        return [without_measured(one, measured) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without_measured(one, measured) for name, one in value.items() if name not in measured}


def summary(result: dict[str, dict[str, int]]) -> str:
    lines = [f"{'':10} {'kills':>6} {'runs':>6} {'different':>10} {'left over':>10} {'half state':>10}"]
    for stage, count in result.items():
        numbers = f"{count['different']:10} {count['left']:10} {count['half']:10}"
        lines.append(f"{stage:10} {count['kills']:6} {count['runs']:6} {numbers}")
    return "\n".join([*lines, f"{sum(count['kills'] for count in result.values())} kills"])


if __name__ == "__main__":
    # imported here, once, so that a forked run starts at once
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401

    import calls  # noqa: F401
    from nearlm import knnlm, optimizer  # noqa: F401

    main()
