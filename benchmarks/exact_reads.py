"""Exact distances from the stored keys: re-scored tokens/s with the keys in memory and on a cold disk.

    python benchmarks/exact_reads.py cache:smollm2-spdx --index paper

Queries are stored keys, moved a little, of one stretch of the store after another, as a text's are. Cold: the system is
told to forget the key files first (fadvise), and each run has queries of its own, whose pages no earlier run has read.
Only the re-scoring is timed, not the search before it. "asked for once" reads all keys ahead when the index is opened,
as is done when they fit in memory; "asked for by batch" is what larger stores do; "not asked for" leaves it to faults.
"""

import argparse
import gc
import json
import os
import time

import numpy as np

from nearlm.search import rescoring as rescore
from nearlm.search.retriever import Retriever
from nearlm.store.datastore import Datastore


def forget(store: Datastore) -> None:
    """Have the system drop the store's key files from memory."""
    for shard in store.keys.shards:
        descriptor = os.open(shard.filename, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def found(args: argparse.Namespace, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return queries of one stretch of the store, and the neighbours that the index finds for them."""
    rng, store = np.random.default_rng(seed), Datastore.open(args.store)
    start = int(rng.integers(0, len(store) - args.queries))
    queries = store.keys[start : start + args.queries].astype(np.float32)
    queries += rng.normal(0, 0.05 * queries.std(), queries.shape).astype(np.float32)
    return queries, Retriever(store, args.index).search(queries, args.k).ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--index", default="default")
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = (
        ("warm", True, True, False),
        ("cold, asked for once", True, True, True),
        ("cold, asked for by batch", False, True, True),
        ("cold, not asked for", False, False, True),
    )
    asked = [found(args, seed) for seed in range(len(cases))]
    gc.collect()  # a file that is still mapped cannot be forgotten
    rows = []
    for (name, in_memory, ahead, cold), (queries, ids) in zip(cases, asked, strict=True):
        rescore._fits = lambda count, fits=in_memory: fits
        if not ahead:
            rescore.Rescorer._read_ahead = lambda self, ids: None
        store = Datastore.open(args.store)
        if cold:
            forget(store)
        started = time.perf_counter()
        scorer = rescore.Rescorer(store.keys)
        if not cold:
            scorer.distances(queries, ids)
            started = time.perf_counter()
        scorer.distances(queries, ids)
        seconds = time.perf_counter() - started
        rows.append({"keys": name, "tokens_per_second": round(args.queries / seconds, 1)})
        print(rows[-1], flush=True)
        del scorer, store
        gc.collect()
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
