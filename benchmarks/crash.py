"""Kill every command that writes at random moments; what it makes must be what it makes when left alone.

    python benchmarks/crash.py [--kills 200] [--seed 0] [--stages build append …] [--json]

Each run is a process of its own, forked from one that has imported torch, and gets SIGKILL after a random time. The
next run resumes. When a command has ended by itself, all files of its folder are compared with those of a run that was
not killed (but for measured times), nothing unfinished may be left, and the stage begins again. A tiny random Llama
and a made-up text are used, with a checkpoint after every batch, so that few seconds hold many moments.
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
ENOUGH = 12  # kills of one command before it may end
LONGEST = 4.0  # seconds before a kill: a long command goes on where it was killed
Command = Callable[[Path], None]


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-crash-") as name:
        os.environ["NEARLM_CACHE"] = str(Path(name) / "cache")
        result = torture(Bench(Path(name)), options.stages, options.kills, random.Random(options.seed))
    print(json.dumps(result) if options.json else summary(result))
    sys.exit(0 if all(one["different"] == one["left"] == 0 for one in result.values()) else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="over all stages")
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
        from nearlm.optimizer import bench
        from nearlm.search import kinds

        kinds.paper_code_bytes = lambda dim: "4x4"  # trained at once
        bench.searches_per_second = lambda retriever, queries, k: 1e6 / (k + retriever.store.dim)  # times would decide
        bench.Bench.gate_seconds = bench.Bench.network_seconds = lambda self, *given: 1e-6
        bench.Bench.mixing_seconds = lambda self, memory: 2e-6
        bench.Bench.lm_seconds = lambda self, lm: 1e-2
        nearlm.optimize(work / "store", work.parent / "valid", work / "fast", **rule)

    return command


STAGES: dict[str, tuple[str | None, Command]] = {
    "build": (None, build),
    "append": ("build", append),
    "instant": (None, instant),
    "grow": ("instant", append),
    "keys": ("instant", keys),
    "index": ("build", index),
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
}


def torture(bench: Bench, stages: list[str], kills: int, choice: random.Random) -> dict[str, dict[str, int]]:
    """Kill the stages in turn until there were enough kills, and count what came of it."""
    counts = {stage: Counter(kills=0, runs=0, different=0, left=0) for stage in stages}
    while sum(count["kills"] for count in counts.values()) < kills:
        for stage, count in counts.items():
            whole = contents(bench.finish(stage))
            bench.prepare(stage)
            kill_until_done(bench, stage, choice, count)
            count["runs"] += 1
            count["different"] += contents(bench.work) != whole
            count["left"] += any(path.suffix in (".job", ".part") for path in bench.work.rglob("*"))
        print(f"{sum(count['kills'] for count in counts.values())} of {kills}", file=sys.stderr, flush=True)
    return {stage: dict(count) for stage, count in counts.items()}


def kill_until_done(bench: Bench, stage: str, choice: random.Random, count: Counter[str]) -> None:
    """Run a command again and again, each time killed after a while, until it has ended by itself."""
    for _ in range(ENOUGH):
        if run(bench.command(stage), after=choice.uniform(0, min(bench.seconds[stage], LONGEST)))[0]:
            return
        count["kills"] += 1
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
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
        command()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a run ended with code {code}")
    return code == 0, time.monotonic() - begin


def contents(folder: Path) -> dict[str, Any]:
    """Return all files, JSON without what is measured."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        if not path.is_file() or path.name == ".lock":
            continue
        data: Any = path.read_bytes()
        if path.name in ("index.json", "optimize.json"):
            data = without_measured(json.loads(data))
        found[str(path.relative_to(folder))] = data
    return found


def without_measured(value: Any) -> Any:
    if isinstance(value, list):
        return [without_measured(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without_measured(one) for name, one in value.items() if name not in MEASURED}


def summary(result: dict[str, dict[str, int]]) -> str:
    lines = [f"{'':10} {'kills':>6} {'runs':>6} {'different':>10} {'left over':>10}"]
    for stage, count in result.items():
        lines.append(f"{stage:10} {count['kills']:6} {count['runs']:6} {count['different']:10} {count['left']:10}")
    return "\n".join([*lines, f"{sum(count['kills'] for count in result.values())} kills"])


if __name__ == "__main__":
    # imported here, once, so that a forked run starts at once
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401

    import calls  # noqa: F401
    from nearlm import knnlm, optimizer  # noqa: F401

    main()
