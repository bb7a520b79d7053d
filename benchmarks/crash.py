"""Kill a build 200 times at random moments; its record files must end as those of a build that was left alone.

    python benchmarks/crash.py [--kills 200] [--seed 0] [--model FOLDER --text PATH] [--json]

Each run is a process of its own, forked from one that has imported torch, and gets SIGKILL after a random
time. It goes on in the next run; whenever a store is finished it is compared byte for byte and a new one is
begun. Every second store ends with an append. Without `--model` and `--text` a tiny random Llama and a
made-up text are used, with a checkpoint after every batch, so that few seconds hold many moments.
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
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from calls import build
from nearlm.base import jobs
from nearlm.base.errors import StoreError
from nearlm.store.datastore import Datastore
from nearlm.text import tokens as tokenise

OPTIONS = {"window": 32, "batch_tokens": 64, "shard_records": 1000}


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="nearlm-crash-") as name:
        folder = Path(name)
        model, text = options.model, options.text
        if model is None or text is None:
            made = make_model_and_text(folder)
            model, text = model or made[0], text or made[1]
        result = torture(model, text, folder, options.kills, random.Random(options.seed))
    print(json.dumps(result) if options.json else summary(result))
    sys.exit(0 if result["different"] == 0 else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="folder of a model (default: a tiny random Llama)")
    parser.add_argument("--text", help="text to build from (default: made up)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def make_model_and_text(folder: Path) -> tuple[str, str]:
    """Save a tiny model and two thousand words, in a child, so that this process never runs a thread of torch."""

    def make() -> None:
        from tiny import make_llama, make_text, make_tokenizer

        make_llama().save_pretrained(folder / "model")
        make_tokenizer().save_pretrained(folder / "model")
        (folder / "texts").mkdir()
        for number in range(20):
            (folder / "texts" / f"{number:02d}.txt").write_text(make_text(100, seed=number))

    finished, _ = run(make)
    assert finished
    return str(folder / "model"), str(folder / "texts")


def torture(model: str, text: str, folder: Path, kills: int, choice: random.Random) -> dict[str, int]:
    """Kill builds until there were enough kills, and count what came of it."""
    count: Counter[str] = Counter(kills=0, stores=0, appends=0, different=0, too_late=0, before_any_write=0)
    commands = [lambda out: start(model, text, out, False), lambda out: start(model, text, out, True)]
    whole, seconds = [], []
    for number, command in enumerate(commands):
        out = folder / f"whole{number}"
        if number:
            shutil.copytree(whole[-1], out)
        finished, took = run(lambda command=command, out=out: command(out))
        assert finished, "the uninterrupted build failed"
        whole.append(out)
        seconds.append(took)
    out = folder / "store"
    while count["kills"] < kills:
        for number, command in enumerate(commands[: 1 + count["stores"] % 2]):
            kill_until_done(lambda command=command: command(out), seconds[number], choice, count, out)
            count["appends"] += number
            count["different"] += contents(out) != contents(whole[number])
        count["stores"] += 1
        shutil.rmtree(out)
    return dict(count)


def kill_until_done(command, seconds: float, choice: random.Random, count: Counter[str], out: Path) -> None:
    """Run a command again and again, each time killed after a while, until it has ended by itself."""
    for _ in range(6):
        finished, _ = run(command, after=choice.uniform(0, seconds))
        if finished:
            count["too_late"] += 1
            return
        count["kills"] += 1
        count["before_any_write"] += not (out / "build.job").exists()
        if (out / "manifest.json").exists():
            Datastore.open(out).verify()  # an append's old store, or a finished one
    finished, _ = run(command)
    if not finished:
        kept = shutil.copytree(out, Path(tempfile.mkdtemp()) / "store")
        raise SystemExit(f"a store cannot be finished; it is kept in {kept}")


def start(model: str, text: str, out: Path, append: bool) -> None:
    jobs.CHECKPOINT_SECONDS = tokenise.CHECKPOINT_SECONDS = 0.0
    part = {"max_tokens": 3000} if append else {}
    try:
        build(model, text, out, quiet=True, append=append, **OPTIONS, **part)
    except StoreError as error:
        print(error, file=sys.stderr)
        os._exit(2)


def run(command, after: float | None = None) -> tuple[bool, float]:
    """Run a command in a child, kill it after so many seconds; return whether it ended by itself, and its time."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        command()
        os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"a run ended with code {code}")
    return code == 0, time.monotonic() - begin


def contents(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def summary(result: dict[str, int]) -> str:
    verdict = "all byte-identical" if not result["different"] else f"{result['different']} DIFFERENT"
    return (
        f"{result['kills']} SIGKILLs in {result['stores']} builds and {result['appends']} appends "
        f"({result['before_any_write']} before anything was written; "
        f"{result['too_late']} more runs ended before their kill): {verdict}"
    )


if __name__ == "__main__":
    # imported here, once, so that a forked run starts at once
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401

    main()
