"""Where the time of a search goes, part by part, and how far it is from what this machine can do.

    python benchmarks/search_profile.py STORE --text spdx:valid [--max-tokens 8000] [--index default] [--nprobe 8]
        [--k 1024] [--batches 1 8 128 1024] [--rounds 15] [--against CHECKOUT [--before INDEX]]

Queries are the LM's own over a text. µs per query, medians over the rounds; "look-up" is of tokens and weights, "p_kNN"
of one temperature, "Python" what is left. Up to 32 queries are searched by one kernel; their parts are those of the
steps that a batch takes. With --against, the scan of another checkout searches the same lists in turn, or those of
another index of the store (--before, of a kind that it knows).
The roofline: a scan must read every list that is probed once per batch, and multiply every query with every record of
its lists; both are measured alone, with as many threads.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np

from mixing_profile import Checkout
from nearlm.base import Reporter
from nearlm.base.arrays import FEW
from nearlm.mixing import trace_text
from nearlm.mixing.equations import log_p_knn
from nearlm.search import Retriever
from nearlm.search.nearest import EVERY, guess_limits, select
from nearlm.search.vectors import ROWS, multiply
from nearlm.search.visits import Coding, Visits, visit, weigh
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

PARTS = ("transform", "coarse", "plan", "weights", "limits", "scan", "selection", "look-up", "p_kNN")


class Clock:
    """Adds up what is spent between two ticks."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.last = time.perf_counter()

    def tick(self, part: str) -> None:
        now = time.perf_counter()
        self.spent[part] = self.spent.get(part, 0.0) + now - self.last
        self.last = time.perf_counter()


def search_by_parts(retriever: Retriever, queries: Any, targets: Any, k: int, nprobe: int) -> tuple[Clock, Visits]:
    """Do what `ListScan` does, step by step."""
    scan: Any = retriever.index.scan
    lists = scan.lists
    usual = numba.get_num_threads()
    clock = Clock()
    x = retriever.index.transform_keys(retriever.store.project(queries))
    clock.tick("transform")
    if len(x) <= FEW:
        numba.set_num_threads(1)
    probed = scan.probe(x, nprobe)
    clock.tick("coarse")
    visits = Visits.plan(probed, lists.offsets)
    sampled = visits.sample(lists.offsets, EVERY)
    distances = np.full((len(x), k), np.inf, np.float32)
    ids = np.full((len(x), k), -1, np.int64)
    clock.tick("plan")
    weights = weigh(x, scan.centroids, scan.scale, scan.centre, visits, scan.coding)
    clock.tick("weights")
    limits = np.full(len(x), np.inf, np.float32)
    sample = visit(weights, limits, lists, sampled, scan._room(sampled))
    limits = guess_limits(sample.distances, sampled, visits, k)
    clock.tick("limits")
    kept = visit(weights, limits, lists, visits, scan._room(visits))
    clock.tick("scan")
    select(kept, limits, visits, lists.offsets, lists.ids, False, distances, ids)
    clock.tick("selection")
    numba.set_num_threads(usual)
    near = retriever.neighbors(distances, ids)
    clock.tick("look-up")
    log_p_knn(near.distances, near.tokens, targets, 2.0, near.weights)
    clock.tick("p_kNN")
    return clock, visits


def other_scan(checkout: Path, retriever: Retriever) -> Any:
    """Return the scan of another checkout over the same lists."""
    module = Checkout(checkout.resolve()).module("search.scan")
    scan: Any = retriever.index.scan
    lists = scan.lists
    ids = np.array(lists.ids, np.int64)  # as all were once
    return module.ListScan(retriever.index.faiss, module.Lists(lists.offsets, ids, lists.codes, lists.bias))


def median_times(rounds: int, *runs: Callable[[], Any]) -> list[float]:
    """Return the median seconds of some runs, in turn."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, spent in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            spent.append(time.perf_counter() - started)
    return [float(np.median(spent)) for spent in times]


@numba.njit(parallel=True)
def _read(words, out):  # type: ignore[no-untyped-def]
    for part in numba.prange(64):
        total = np.int64(0)
        for at in range(part * len(words) // 64, (part + 1) * len(words) // 64):
            total += words[at]
        out[part] = total


@numba.njit(parallel=True)
def _multiply(weights, codes, sums, times):  # type: ignore[no-untyped-def]
    for part in numba.prange(64):
        for _ in range(times):
            multiply(weights, 0, 4, codes, 0, 1, ROWS, sums[part])


def roofline(codes: Any, coding: Coding, rounds: int = 7) -> tuple[float, float]:
    """Return bytes/s of reading codes, and products/s of records that stay in the cache with queries."""
    out = np.zeros(64, np.int64)
    weights = np.ones((4, coding.width), coding.kind)
    block = np.zeros((ROWS, coding.code_width), np.int8)
    sums = np.zeros((64, 4, ROWS), np.int32)
    words = codes.reshape(-1)[: codes.size // 8 * 8].view(np.int64)
    _read(words, out)
    _multiply(weights, block, sums, 1)
    reading, multiplying = median_times(rounds, lambda: _read(words, out), lambda: _multiply(weights, block, sums, 200))
    return codes.nbytes / reading, 64 * 200 * 4 * ROWS / multiplying


class Profile:
    """One store, searched in batches of several sizes."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.store = Datastore.open(options.store)
        source = TextSource((options.text,), max_tokens=options.max_tokens)
        traced = trace_text(load_lm(self.store), self.store, source, Reporter())
        self.keys = np.asarray(traced.keys, np.float32)
        self.targets = np.asarray(traced.text.targets)
        self.retriever = Retriever(self.store, options.index, nprobe=options.nprobe)
        self.scan: Any = self.retriever.index.scan
        self.before = Retriever(self.store, options.before or options.index, nprobe=options.nprobe)
        self.other = other_scan(options.against, self.before) if options.against else None
        self.codes = np.asarray(self.scan.lists.codes)
        self.read, self.multiplied = roofline(self.codes, self.scan.coding)

    def head(self) -> str:
        """Say what is searched, and what this machine can do."""
        options = self.options
        lists = f"{len(self.scan.lists.offsets) - 1} lists, {options.nprobe} probed, k={options.k}"
        machine = f"reads {self.read / 1e9:.1f} GB/s and multiplies {self.multiplied / 1e9:.1f} G records/s"
        return f"{len(self.store):,} records, codes of {self.codes.shape[1]} bytes, {lists}; this machine {machine}"

    def row(self, batch: int) -> str:
        """Measure searches of one size."""
        options = self.options
        start = int(np.random.default_rng(0).integers(0, max(1, len(self.keys) - batch)))
        rows = slice(start, start + batch)
        given = self.keys[rows], self.targets[rows], options.k, options.nprobe
        found = [search_by_parts(self.retriever, *given) for _ in range(options.rounds + 1)][1:]
        parts = {name: float(np.median([clock.spent[name] for clock, _ in found])) for name in PARTS}
        taken = self._whole(self.keys[rows])
        inside = sum(parts[name] for name in PARTS[1:7])
        shown = [*parts.values(), max(taken[0] - inside, 0.0), taken[0], self._least(found[0][1])]
        numbers = " | ".join(f"{1e6 * seconds / batch:.1f}" for seconds in shown)
        before = f"{1e6 * taken[1] / batch:.1f} | {taken[1] / taken[0]:.2f}" if self.other else "– | –"
        return f"| {batch} | {numbers} | {before} |"

    def _whole(self, queries: Any) -> list[float]:
        scans = [(self.scan, self.retriever), *([(self.other, self.before)] if self.other else [])]
        runs = []
        for scan, retriever in scans:
            x = retriever.index.transform_keys(self.store.project(queries))
            runs.append(partial(scan.search, x, self.options.k, self.options.nprobe, ordered=False))
        median_times(2, *runs)
        return median_times(self.options.rounds, *runs)

    def _least(self, visits: Visits) -> float:
        """Return the seconds that reading all probed lists, or all multiplications, must take."""
        lists = np.unique(visits.probed[visits.probed >= 0])
        records = int(np.diff(self.scan.lists.offsets)[lists].sum())
        width = self.codes.shape[1]
        return max(records * width / self.read, visits.candidates / self.multiplied)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--index", default="default")
    parser.add_argument("--nprobe", type=int, default=8)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 128, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--before", metavar="INDEX")
    options = parser.parse_args()
    profile = Profile(options)
    print(profile.head())
    print("| batch | " + " | ".join(PARTS) + " | Python | search | roofline | before | ratio |")
    print("|---|" + "---|" * (len(PARTS) + 5))
    for batch in options.batches:
        print(profile.row(batch), flush=True)


if __name__ == "__main__":
    main()
