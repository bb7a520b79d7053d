"""How long the way to the lists takes: the 8 nearest of some thousand centroids, by products, graphs and groups.

    python benchmarks/scale.py STORE --text spdx:valid --folder WORK --alpha 0.1 --records 15600
    python benchmarks/coarse_quantisers.py WORK [--lists 2400 9600 60000]

Centroids are those of random keys of the store in the space of its index, 16 for each; queries are those of the LM.
Both are as `scale.py` has left them in WORK. µs per query in batches of 1024 and one at a time, the best of three
passes, and the share of the true 8 found.
"""

import argparse
import time
from pathlib import Path

import faiss
import numpy as np

from nearlm.search.clustering import two_level_centroids
from nearlm.search.coarse import Coarse, group_count
from nearlm.search.nearest import nearest_lists
from nearlm.search.vectors import multiply_matrix

NPROBE = 8
PER_LIST = 16


def microseconds(search, batches: list[np.ndarray]) -> float:  # type: ignore[no-untyped-def]
    """Return µs per query, of the fastest of three passes."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        for batch in batches:
            search(batch)
        times.append(time.perf_counter() - started)
    return 1e6 * min(times) / sum(map(len, batches))


def ways(centroids: np.ndarray, groups: np.ndarray):  # type: ignore[no-untyped-def]
    """Yield ways to the lists: their name, and a function that returns the lists nearest to queries."""
    products = centroids, np.square(centroids).sum(1)
    yield "products", lambda queries: nearest_lists(multiply_matrix(queries, products[0]), products[1], NPROBE)
    graph = faiss.index_factory(centroids.shape[1], "HNSW32")
    graph.add(centroids)
    yield "graph (HNSW32)", lambda queries: graph.search(queries, NPROBE)[1]
    coarse = Coarse(centroids, groups)
    yield "groups", lambda queries: coarse.nearest(queries, NPROBE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lists", type=int, nargs="+", default=[2400, 9600, 60000])
    options = parser.parse_args()
    keys = np.load(options.folder / "keys.npy", mmap_mode="r")
    queries = np.load(options.folder / "queries.npy")[:4096].astype(np.float32)
    rng = np.random.default_rng(0)
    print("| lists | found by | µs, 1024 | µs, 1 | recall |\n|---|---|---|---|---|")
    for lists in (number for number in options.lists if number < len(keys)):
        chosen = np.sort(rng.choice(len(keys), min(PER_LIST * lists, len(keys)), replace=False))
        centroids, groups = two_level_centroids(keys[chosen].astype(np.float32), lists, group_count(lists))
        true = faiss.knn(queries, centroids, NPROBE)[1]
        for name, search in ways(centroids, groups):
            found = search(queries)
            recall = np.mean([len(np.intersect1d(a, b)) / NPROBE for a, b in zip(found, true, strict=True)])
            batched = microseconds(search, [queries[s : s + 1024] for s in range(0, len(queries), 1024)])
            single = microseconds(search, [queries[s : s + 1] for s in range(0, 2000, 10)])
            print(f"| {lists:,} | {name} | {batched:.1f} | {single:.1f} | {recall:.3f} |", flush=True)


if __name__ == "__main__":
    main()
