"""What Ray costs and gains: builds by one and by two workers against a build without it, searches over parts.

    python benchmarks/cluster.py build [--model smollm2-135m] [--text spdx:train] [--tokens 10000] [--rounds 3]
    python benchmarks/cluster.py search STORE [--shards 4] [--queries 10240] [--rounds 5]

`build`: the same text by this process (all threads), by one worker with as many threads, and by one single-threaded
worker for each core; models are loaded before, rounds are interleaved, and the stores are compared byte by byte.

`search`: neighbours of queries near the store's own keys in the index of this process and in one served in parts, which
must be identical; then µs per query in batches of 1, 32 and 1024, interleaved, and the bytes that travel: of the k
nearest of each part, of sums of exp(-d) by token, and of one numerator and denominator for a known target.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import torch

from nearlm.base import QUIET, Reporter
from nearlm.cluster.crew import Crew, Loading, Places
from nearlm.cluster.list_part import ListPart
from nearlm.cluster.remote_lm import RemoteLM
from nearlm.cluster.served import open_served
from nearlm.cluster.serving import serve_index, stop_index
from nearlm.cluster.session import ServeOptions, joined
from nearlm.model import FFN, ModelSpec
from nearlm.model.lm import LM
from nearlm.search import Retriever, open_index
from nearlm.store import BuildOptions, Datastore
from nearlm.store.builder import build
from nearlm.text import TextSource

K = 1024


def main() -> None:
    options = parse()
    with joined("local") as ray:
        {"build": time_builds, "search": time_searches}[options.what](ray, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "search"])
    parser.add_argument("store", nargs="?", default="cache:smollm2-spdx")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", default="spdx:train")
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--queries", type=int, default=10_240)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def time_builds(ray, options: argparse.Namespace) -> None:  # type: ignore[no-untyped-def]
    """Build the same store in each way, in turn."""
    spec = ModelSpec(options.model)
    cores = torch.get_num_threads()
    lm = LM.load(spec)
    began = time.perf_counter()
    with (
        Crew(ray, Loading(spec, FFN, cores), Places(1, 0.25, 0), QUIET) as one,
        Crew(ray, Loading(spec, FFN, 1), Places(cores, 0.25, 0), QUIET) as many,
        tempfile.TemporaryDirectory(prefix="nearlm-cluster-") as folder,
    ):
        ways = {
            "this process": (lm, cores, {}),
            "one worker": (RemoteLM(spec, one.describe(), one.keys), cores, {"fill": one.fill}),
            f"{cores} workers": (RemoteLM(spec, many.describe(), many.keys), 1, {"fill": many.fill}),
        }
        print(f"first workers ready after {time.perf_counter() - began:.1f} s; {cores} cores")
        made = BuildOptions(shard_records=max(512, options.tokens // (4 * cores)))
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        stores: dict[str, Datastore] = {}
        for number in range(-1, options.rounds):  # the first warms up
            for name, (model, threads, more) in ways.items():
                tokens = options.tokens if number >= 0 else options.tokens // 8
                source = TextSource((options.text,), max_tokens=tokens)
                out = Path(folder) / f"{name}-{number}"
                began = time.perf_counter()
                stores[name] = build(model, source, out, made, threads=threads, **more)
                if number >= 0:
                    seconds[name].append(time.perf_counter() - began)
        compare(stores, Path(folder) / "alone", lm, options, made)
        report_builds(options, seconds)


def compare(stores: dict[str, Datastore], out: Path, lm: LM, options: argparse.Namespace, made: BuildOptions) -> None:
    """Say which stores are byte-identical, and to what a single thread makes."""
    source = TextSource((options.text,), max_tokens=options.tokens)
    stores["this process, one thread"] = build(lm, source, out, made, threads=1)
    hashes = {name: store.checksum for name, store in stores.items()}
    for name, checksum in hashes.items():
        print(f"{name}: manifest {checksum[:12]}")


def report_builds(options: argparse.Namespace, seconds: dict[str, list[float]]) -> None:
    base = statistics.median(seconds["this process"])
    print("| build | median tokens/s | of this process | each round |\n|---|---:|---:|---|")
    for name, times in seconds.items():
        rates = ", ".join(f"{options.tokens / one:,.0f}" for one in times)
        median = statistics.median(times)
        print(f"| {name} | {options.tokens / median:,.0f} | {base / median:.3f} | {rates} |")


class Summing(ListPart):
    """A part that answers with sums instead of neighbours."""

    def by_token(self, queries, probed, k, values):  # type: ignore[no-untyped-def]
        """Return, for each query, the tokens of its k nearest here and the sum of exp(-d) of each."""
        answer = self._scan.answer(queries, probed, k)
        rows = np.repeat(np.arange(len(queries)), answer.counts.sum(1))
        pairs, inverse = np.unique(rows * (1 << 32) + values[answer.ids], return_inverse=True)
        sums = np.bincount(inverse, np.exp(-np.maximum(answer.distances, 0))).astype(np.float32)
        return (pairs >> 32).astype(np.int32), (pairs & 0xFFFFFFFF).astype(np.int32), sums

    def numerators(self, queries, probed, k, values, targets):  # type: ignore[no-untyped-def]
        """Return, for each query, the sum of exp(-d) over its k nearest here, and over those of a known token."""
        answer = self._scan.answer(queries, probed, k)
        rows = np.repeat(np.arange(len(queries)), answer.counts.sum(1))
        weights = np.exp(-np.maximum(answer.distances, 0))
        hits = weights * (values[answer.ids] == targets[rows])
        return np.bincount(rows, weights, len(queries)), np.bincount(rows, hits, len(queries))


def time_searches(ray, options: argparse.Namespace) -> None:  # type: ignore[no-untyped-def]
    """Compare searches here and in parts."""
    store = Datastore.open(options.store)
    rng = np.random.default_rng(0)
    ids = np.sort(rng.choice(len(store), options.queries, replace=False))
    queries = store.keys.take(ids).astype(np.float32)
    queries += rng.normal(0, 0.05 * queries.std(), queries.shape).astype(np.float32)
    queries = queries[rng.permutation(len(queries))]
    here, _ = open_index(store)
    serve_index(ray, store, ServeOptions(options.shards, 1, 0.25), reporter=Reporter())
    served, _ = open_served(ray, store, "default")  # type: ignore[misc]
    same = 0
    for first in range(0, len(queries), 1024):
        some = queries[first : first + 1024]
        ours = here.search(some, K)
        theirs = served.search(some, K)
        same += int(((ours[1] == theirs[1]) & (ours[0] == theirs[0])).all(1).sum())
    print(f"{same:,} of {len(queries):,} queries have the same {K} neighbours, distances and order")
    print(f"{served.scan.bytes / len(queries):,.0f} bytes a query come back from {options.shards} parts")
    print(
        "| batch | here, µs a query | queries/s | in parts, µs | queries/s | ratio |\n|---:|---:|---:|---:|---:|---:|"
    )
    for batch in (1, 32, 1024):
        times = rounds({"here": here, "parts": served}, queries, batch, options.rounds)
        ours, theirs = (statistics.median(times[name]) for name in ("here", "parts"))
        print(
            f"| {batch} | {ours:,.0f} | {1e6 / ours:,.0f} | {theirs:,.0f} | {1e6 / theirs:,.0f} | {theirs / ours:.1f} |"
        )
    time_sums(ray, store, served, queries, options)
    stop_index(ray, store)


def rounds(ways, queries: np.ndarray, batch: int, count: int) -> dict[str, list[float]]:  # type: ignore[no-untyped-def]
    """Return µs per query of each way, in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    most = {1: 200, 32: 1280, 1024: 4096}[batch]
    for number in range(-1, count):
        for name, index in ways.items():
            began = time.perf_counter()
            for first in range(0, min(most, len(queries)), batch):
                index.search(queries[first : first + batch], K, ordered=False)
            if number >= 0:
                times[name].append(1e6 * (time.perf_counter() - began) / min(most, len(queries)))
    return times


def time_sums(ray, store: Datastore, served, queries: np.ndarray, options: argparse.Namespace) -> None:  # type: ignore[no-untyped-def]
    """Compare what travels, and how long it takes, if parts return sums."""
    values = np.array(Retriever(store)._values)
    targets = values[:: max(1, len(values) // 1024)][:1024]
    x = served.transform_keys(store.project(queries[:1024]))
    questions = served.scan.ask_for(x, served.scan.probe(x, served.nprobe))
    bounds = served.scan.bounds
    info = open_index(store)[1]
    from nearlm import __version__
    from nearlm.cluster.list_part import Place

    kind = ray.remote(Summing).options(num_cpus=0.25)
    path = str(store.path.resolve())
    parts = [
        kind.remote(Place(path, "default", info.manifest, *bounds[n : n + 2].tolist(), 1, __version__))
        for n in range(options.shards)
    ]
    ray.get([part.load.remote() for part in parts])
    shared = ray.put(values)
    ways = {
        "the k nearest of each part": lambda one: parts[one.part].answer.remote(one.queries, one.probed, K),
        "sums by token": lambda one: parts[one.part].by_token.remote(one.queries, one.probed, K, shared),
        "numerator and denominator of a known target": lambda one: parts[one.part].numerators.remote(
            one.queries, one.probed, K, shared, targets[one.rows]
        ),
    }
    print("| what parts return (batches of 1024) | bytes a query | µs a query, without merging |\n|---|---:|---:|")
    for name, ask in ways.items():
        times, size = [], 0
        for _ in range(options.rounds + 1):
            began = time.perf_counter()
            answers = ray.get([ask(one) for one in questions])
            times.append(1e6 * (time.perf_counter() - began) / len(x))
            size = sum(column.nbytes for answer in answers for column in answer)
        print(f"| {name} | {size / len(x):,.0f} | {statistics.median(times[1:]):,.0f} |")


if __name__ == "__main__":
    main()
