"""Time a pass of an LM over a few tokens on a CPU, by how its linear layers keep their weights.

    python benchmarks/pass_speed.py [--model NAME] [--tokens 1,2,4,8,16,64,512] [--context 256] [--seconds 90]
                                    [--text spdx:test --text-tokens 5000] [--only plain,float32] [--json]

`plain`, `float32` and `float16` are those of `--weights`. The others are not offered, and are here to show why:
`bfloat16` rounds what the weights are multiplied with too, `int8` (per row of a matrix) is torch's dynamic
quantisation, `int8_only` multiplies 8-bit weights with bfloat16, and `none` gives zeros: what the rest of a pass costs.
`2048` tokens are four windows of 512 without a cache and without most of the head, as in a build.

Kinds take turns, so that each has the same share of whatever else the machine does; times are medians in milliseconds.
With `--text` the perplexity of each on the first tokens of a text is computed, and the ratio to `plain`.
"""

import argparse
import contextlib
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nearlm.model import ModelSpec
from nearlm.model.lm import LM
from nearlm.model.packing import Packing
from nearlm.text import TextSource, fill_batch, plan_batches, plan_windows

WINDOW = 512
BATCH = 4  # windows of a batch without a cache


def main() -> None:
    options = parse()
    lm = LM.load(ModelSpec(options.model, device="cpu", dtype="float32", weights="plain"))
    found: dict[str, dict[str, Any]] = {}
    uses = {name: use_of(lm.model, name) for name in options.only}
    for name, use in uses.items():
        found[name] = measure_packing(use)
    for name, times in time_passes(lm, uses, options).items():
        found[name]["ms"] = times
    if options.text:
        for name, more in measure_perplexity(lm, uses, options).items():
            found[name] |= more
    print(json.dumps(found) if options.json else table(found, options.tokens))


def parse() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=numbers, default=[1, 2, 4, 8, 16, 64, 512, 2048])
    parser.add_argument("--context", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--text", help="compute the perplexity on this text")
    parser.add_argument("--text-tokens", type=int, default=5000)
    every = ["plain", "float32", "float16", *OTHERS]
    parser.add_argument("--only", type=lambda text: text.split(","), default=every, help=",".join(every))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def bfloat16(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())
    multiply = torch.ops.mkldnn._linear_pointwise.default
    bias = bias if bias is None else bias.bfloat16()
    return lambda x: multiply(x.bfloat16(), ordered, bias, "none", [], "").float()


def rows_of_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = (weight.abs().amax(1) / 127).clamp_min(1e-9)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def int8(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    _, scale = rows_of_int8(weight)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    ordered = torch.ops.quantized.linear_prepack(
        torch.quantize_per_channel(weight, scale.double(), zeros, 0, torch.qint8), bias
    )
    multiply = torch.ops.quantized.linear_dynamic.default
    return lambda x: multiply(x, ordered)


def int8_only(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    codes, scale = rows_of_int8(weight)
    scale = scale.bfloat16()
    multiply = torch.ops.aten._weight_int8pack_mm.default

    def forward(x: Tensor) -> Tensor:
        found = multiply(x.reshape(-1, x.shape[-1]).bfloat16(), codes, scale).float()
        return found.view(*x.shape[:-1], -1) if bias is None else found.view(*x.shape[:-1], -1) + bias

    return forward


def none(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    width = len(weight)
    return lambda x: x.new_zeros(1).expand(*x.shape[:-1], width)


OTHERS = {"bfloat16": bfloat16, "int8": int8, "int8_only": int8_only, "none": none}


def use_of(model: nn.Module, name: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what makes a model use its weights in some way, in a `with` block."""
    if name not in OTHERS:
        packing = Packing(name)
        return lambda: packing.in_use(model)
    made: dict[nn.Module, Any] = {}

    @contextlib.contextmanager
    def use() -> Iterator[None]:
        layers = [module for module in model.modules() if type(module) is nn.Linear]
        for layer in layers:
            if layer not in made:
                made[layer] = OTHERS[name](layer.weight.detach(), layer.bias)
            vars(layer)["forward"] = made[layer]
        try:
            yield
        finally:
            for layer in layers:
                del vars(layer)["forward"]

    return use


def measure_packing(use: Callable[[], contextlib.AbstractContextManager[None]]) -> dict[str, float]:
    """Return what the first use costs: seconds, and megabytes of memory that no file backs."""
    before = private_megabytes()
    started = time.perf_counter()
    with use():
        seconds = time.perf_counter() - started
    return {"packing_s": round(seconds, 2), "private_mb": private_megabytes() - before}


def private_megabytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(one) for one in re.findall(r"^Anonymous:\s+(\d+)", text, re.MULTILINE)) // 1000


def time_passes(lm: LM, uses: dict[str, Any], options: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Return the median time of a pass over so many tokens, by kind."""
    model: Any = lm.model
    drawn = np.random.default_rng(0).integers(0, lm.vocab_size, (1, options.context + max(WINDOW, *options.tokens)))
    ids = torch.from_numpy(drawn)
    times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in options.tokens} for name in uses}
    end = time.monotonic() + options.seconds
    with torch.inference_mode():
        cache = model(input_ids=ids[:, : options.context], use_cache=True).past_key_values

        def run(count: int) -> float:
            started = time.perf_counter()
            if count == BATCH * WINDOW:
                model(input_ids=ids[:, :WINDOW].expand(BATCH, WINDOW), use_cache=False, logits_to_keep=1)
                return time.perf_counter() - started
            model(input_ids=ids[:, options.context :][:, :count], past_key_values=cache, use_cache=True)
            taken = time.perf_counter() - started
            cache.crop(-count)
            return taken

        while time.monotonic() < end or not all(times[name][n] for name in uses for n in options.tokens):
            for count in options.tokens:
                for name, use in uses.items():
                    with use():
                        run(min(count, 16))
                        times[name][count] += [run(count) for _ in range(3 if count < WINDOW else 1)]
    return {name: {n: round(1e3 * statistics.median(t), 1) for n, t in of.items()} for name, of in times.items()}


def measure_perplexity(lm: LM, uses: dict[str, Any], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the perplexity of each kind, and its ratio to the first with the standard error of that."""
    documents: list[list[int]] = []
    for document in TextSource((options.text,)).open().documents():
        if sum(map(len, documents)) >= options.text_tokens:
            break
        documents.append(lm.tokenizer("".join(document.pieces), verbose=False)["input_ids"])
    bounds = np.cumsum([0, *map(len, documents)])
    tokens = np.concatenate(documents).astype(np.int32)[: options.text_tokens]
    bounds = np.unique(np.minimum(bounds, len(tokens)))
    windows = plan_windows(bounds, WINDOW, WINDOW)
    found: dict[str, dict[str, float]] = {}
    first = None
    for name, use in uses.items():
        if name == "none":
            continue
        with use():
            batches = [fill_batch(tokens, windows[rows]) for rows in plan_batches(windows, BATCH * WINDOW)]
            logp = torch.cat([lm.score(batch, statistics=False).logp for batch in batches]).double()
        first = logp if first is None else first
        gap = first - logp
        found[name] = {
            "perplexity": round(float((-logp.mean()).exp()), 4),
            "ratio": round(float(gap.mean().exp()), 6),
            "error": round(float(gap.std() / len(gap) ** 0.5), 6),
            "largest_gap": round(float(gap.abs().max()), 5),
        }
    return found


def table(found: dict[str, dict[str, Any]], tokens: list[int]) -> str:
    lines = ["| weights | " + " | ".join(map(str, tokens)) + " | packing | private memory | perplexity | ratio |"]
    lines.append("|---" * (len(tokens) + 5) + "|")
    for name, one in found.items():
        times = " | ".join(f"{one['ms'][n]:.1f}" for n in tokens)
        cost = f"{one['packing_s']:.1f} s | {one['private_mb']} MB"
        quality = "| "
        if "ratio" in one:
            quality = f"{one['perplexity']:.4f} | {one['ratio']:.5f} ± {one['error']:.5f}, log p ± {one['largest_gap']}"
        lines.append(f"| {name} | {times} | {cost} | {quality} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
