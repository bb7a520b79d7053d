"""How the cost of an `auto` index grows: synthetic clustered keys × 256 at 0.5M, 1M, 2M and 5M records.

    python benchmarks/scale.py [--records 500000 1000000 2000000 5000000]

Keys are never written to disk: they are made block by block from a seed. Reports build time, RAM (peak RssAnon of the
process of each size, which runs by itself), queries/s, RAM while
searching (the lists are mapped), and recall of the first 256 against exact search in the index's own space.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import faiss
import numpy as np

from nearlm.search.index import empty_index, read_parts, train_index, write_parts
from nearlm.search.kinds import choose_index, sample_size
from nearlm.store.layout import IndexData

DIM, CLUSTERS, BLOCK, QUERIES, K = 256, 20_000, 1 << 15, 500, 256


def block(number: int, count: int = BLOCK) -> np.ndarray:
    """Make one block of keys: points around centres that are themselves drawn from a low-dimensional cloud."""
    basis = np.random.default_rng(1).normal(size=(64, DIM)).astype(np.float32)
    rng = np.random.default_rng((2, number))
    centre = rng.integers(0, CLUSTERS, count)
    low = np.random.default_rng(3).normal(size=(CLUSTERS, 64)).astype(np.float32)[centre]
    return (low @ basis + rng.normal(size=(count, DIM)).astype(np.float32) * 2).astype(np.float16).astype(np.float32)


def rss_anon() -> int:
    """Return the process's anonymous memory in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def one(records: int) -> dict[str, float]:
    """Build and measure one size."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            peak[0] = max(peak[0], rss_anon())

    threading.Thread(target=watch, daemon=True).start()
    spec = choose_index("auto", records, DIM)
    index, blocks = empty_index(spec, DIM), -(-records // BLOCK)
    started = time.perf_counter()
    needed = -(-sample_size(spec, records) // BLOCK)
    train_index(index, np.concatenate([block(i) for i in range(needed)]))
    trained = time.perf_counter() - started
    made = 0.0
    for number in range(blocks):
        begun = time.perf_counter()
        keys = block(number, min(BLOCK, records - number * BLOCK))
        made += time.perf_counter() - begun
        index.add(keys)
    filled = time.perf_counter() - started - trained - made
    with tempfile.TemporaryDirectory() as folder:
        data = IndexData(Path(folder) / "index")
        write_parts(index, data)
        del index
        return searched(read_parts(data, spec, DIM), records, peak, stop, trained, filled)


def searched(  # type: ignore[no-untyped-def]
    index, records: int, peak: list[int], stop: threading.Event, trained: float, filled: float
) -> dict[str, float]:
    """Search an index and compare what it finds with exact search in the same space."""
    blocks, spec = -(-records // BLOCK), index.spec
    queries = block(10**6, QUERIES)
    used = rss_anon()
    index.search(queries, K)
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        _, found = index.search(queries, K)
        times.append(time.perf_counter() - begun)
    best_d, best = np.full((QUERIES, K), np.inf, np.float32), np.full((QUERIES, K), -1)
    for number in range(blocks):
        keys = index.transform_keys(block(number, min(BLOCK, records - number * BLOCK)))
        d, i = faiss.knn(index.transform_keys(queries), keys, K)
        d, i = np.hstack([best_d, d]), np.hstack([best, i + number * BLOCK])
        order = np.argsort(d, axis=1)[:, :K]
        best_d, best = np.take_along_axis(d, order, 1), np.take_along_axis(i, order, 1)
    stop.set()
    recall = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, best, strict=True)])
    return {
        "records": records,
        "factory": spec.factory,
        "nprobe": spec.nprobe,
        "train_s": round(trained, 1),
        "fill_s": round(filled, 1),
        "queries_per_second": round(QUERIES / min(times)),
        "recall": round(float(recall), 4),
        "peak_rss_anon_mb": round(peak[0] / 1e6),
        "searching_rss_anon_mb": round(used / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[500_000, 1_000_000, 2_000_000, 5_000_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return
    print("| records | index | nprobe | train s | fill s | queries/s | recall@256 | peak RAM MB | searching MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for records in args.records:
        command = [sys.executable, __file__, "--one", str(records)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print("| " + " | ".join(str(value) for value in json.loads(done.stdout).values()) + " |", flush=True)


if __name__ == "__main__":
    main()
