"""Tokens a second of `nearlm.build` against the bare model's forward pass over the same windows.

    python benchmarks/build_speed.py [--model smollm2-135m] [--text spdx:train] [--tokens 30000] [--runs 5] [--json]

The bare pass is the backbone alone (no LM head, no KV cache, no hooks, nothing written), in the same
batches, in the same process, runs interleaved. `build` does everything a user's build does: reading and
tokenising the text, the forward pass, float16, writing, checksums. Medians and their ratio are printed.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from nearlm.model.lm import LM
from nearlm.store.builder import build
from nearlm.store.datastore import Datastore
from nearlm.store.plan import BATCH_TOKENS, WINDOW, BuildOptions
from nearlm.text.source import TextSource
from nearlm.text.windows import Batch, fill_batch, plan_batches, plan_windows


def main() -> None:
    options = parse()
    lm = LM.load(options.model)
    window = min(options.window, lm.limit or options.window)
    batch_tokens = options.batch_tokens or BATCH_TOKENS.get(lm.device.type, 8192)
    with tempfile.TemporaryDirectory(prefix="nearlm-speed-") as folder:

        def run_build(number: int) -> Datastore:
            source = TextSource((options.text,), max_tokens=options.tokens)
            made = BuildOptions(window=window, batch_tokens=batch_tokens)
            return build(lm, source, Path(folder) / str(number), made)

        store = run_build(-1)  # warms up, and gives the tokens
        batches = same_batches(store, window, batch_tokens)
        tokens = sum(int(batch.inputs) for batch in batches)
        bare(lm, batches[:1])
        seconds: dict[str, list[float]] = {"bare": [], "build": []}
        for number in range(options.runs):
            runs: list[tuple[str, Callable[[], object]]] = [
                ("bare", lambda: bare(lm, batches)),
                ("build", lambda number=number: run_build(number)),
            ]
            for name, run in runs if number % 2 == 0 else reversed(runs):
                seconds[name].append(timed(run))
    report(options, lm, tokens, seconds)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="spdx:train")
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Inputs:
    """One batch as the model reads it, and how many of its tokens are no padding."""

    def __init__(self, batch: Batch, inputs: int):
        self.ids, self.inputs = torch.from_numpy(batch.ids), inputs


def same_batches(store: Datastore, window: int, batch_tokens: int) -> list[Inputs]:
    """Lay the very batches that the build makes."""
    bounds = np.append(np.load(store.path / "docs-00000.npy")[:, 0], len(store.tokens))
    windows = plan_windows(bounds, window, window)
    tokens = store.tokens[:]
    rows = [windows[batch] for batch in plan_batches(windows, batch_tokens)]
    return [Inputs(fill_batch(tokens, row), int(row.inputs.sum())) for row in rows]


def bare(lm: LM, batches: list[Inputs]) -> None:
    """Run the model without its head over some batches."""
    with torch.inference_mode():
        for batch in batches:
            lm.model.base_model(input_ids=batch.ids.to(lm.device), use_cache=False)
    if lm.device.type == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def report(options: argparse.Namespace, lm: LM, tokens: int, seconds: dict[str, list[float]]) -> None:
    speed = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    ratio = speed["build"] / speed["bare"]
    if options.json:
        rates = {name: [round(tokens / time, 1) for time in times] for name, times in seconds.items()}
        threads = torch.get_num_threads()
        print(json.dumps({"model": options.model, "tokens": tokens, "threads": threads, **rates, "ratio": ratio}))
        return
    print(f"{options.model} ({lm.dtype}, {torch.get_num_threads()} threads), {tokens:,} tokens of {options.text}\n")
    print("| run | median tokens/s | each run |")
    print("|---|---:|---|")
    for name, times in seconds.items():
        print(f"| {name} | {speed[name]:,.0f} | {', '.join(f'{tokens / time:,.0f}' for time in times)} |")
    print(f"\nbuild / bare forward: {ratio:.3f}")


if __name__ == "__main__":
    main()
