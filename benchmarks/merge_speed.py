"""How fast greedy merging is: its loop, and the search for every record's neighbours.

    python benchmarks/merge_speed.py [--records 5000000] [--neighbors 10] [--json]

1. The merge loop over made-up neighbours (after compilation) against Algorithm 1 in plain Python on a part of them.
2. The self-search that merging runs, to disk, against FAISS's own `search` of the same vectors in the same index.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

MOST_SECONDS, LEAST_SPEEDUP, MOST_RATIO = 10.0, 50.0, 1.2
PLAIN_RECORDS = 1_000_000


def main() -> None:
    options = parse()
    result = loop(options.records, options.neighbors)
    result |= search(options.search_records, options.dim, options.neighbors, options.code)
    good = result["loop_seconds"] <= MOST_SECONDS or options.records < 5_000_000
    good = good and result["speedup"] >= LEAST_SPEEDUP and result["search_ratio"] <= MOST_RATIO
    if options.json:
        print(json.dumps({**result, "good": good}))
    else:
        print(
            f"merge loop, {options.records:,} records × {options.neighbors}: {result['loop_seconds']:.2f} s "
            f"({result['loop_records_per_second']:,.0f} records/s; limit {MOST_SECONDS:.0f} s for 5M)"
        )
        print(
            f"plain Python, {result['plain_records']:,} records: {result['plain_seconds']:.1f} s, "
            f"{result['speedup']:.0f}× slower (limit {LEAST_SPEEDUP:.0f}×); "
            f"over lists instead of the arrays {result['speedup_over_lists']:.0f}× slower"
        )
        print(
            f"self-search of {options.search_records:,} × {options.dim}: {result['self_search_seconds']:.2f} s, "
            f"bare FAISS {result['faiss_seconds']:.2f} s: {result['search_ratio']:.2f}× (limit {MOST_RATIO}×)"
        )
    sys.exit(0 if good else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--neighbors", type=int, default=10)
    parser.add_argument("--search-records", type=int, default=30_000)
    parser.add_argument("--dim", type=int, default=576)
    parser.add_argument(
        "--code", default="SQ8", help="how the index holds records; SQ8 is scanned by nearlm, PQ64 by FAISS"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def loop(records: int, k: int) -> dict[str, float]:
    """Time the merge loop, and compare it with the plain one, both on the same fewer records, by processor time."""
    from nearlm.shrink.merging import merge

    def merged(neighbors: np.ndarray, values: np.ndarray, order: np.ndarray) -> int:
        return merge(neighbors, k, values, order)[1]

    merged(*case(100, k))
    large = case(records, k)
    started = time.perf_counter()
    left = merged(*large)
    seconds = time.perf_counter() - started
    few = case(min(records, PLAIN_RECORDS), k)
    fast_seconds, fast_left = min(timed(merged, *few) for _ in range(3))
    plain_seconds, plain_left = timed(plain, *few)
    listed_seconds, listed_left = timed(plain, *(array.tolist() for array in few))
    assert plain_left == listed_left == fast_left
    return {
        "loop_seconds": seconds,
        "loop_records_per_second": records / seconds,
        "kept": left / records,
        "plain_records": len(few[1]),
        "plain_seconds": plain_seconds,
        "speedup": plain_seconds / fast_seconds,
        "speedup_over_lists": listed_seconds / fast_seconds,
    }


def timed(function: Callable[..., int], *arguments: object) -> tuple[float, int]:
    """Return the processor time of a call, and its result."""
    started = time.process_time()
    result = function(*arguments)
    return time.process_time() - started, result


def case(records: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make up neighbours anywhere in the store, the record itself first, and tokens as frequent as words are."""
    rng = np.random.default_rng(0)
    values = (rng.zipf(1.3, records) % 50_000).astype(np.int32)
    neighbors = rng.integers(0, records, (records, k), dtype=np.int32)
    neighbors[:, 0] = np.arange(records)
    return neighbors, values, rng.permutation(records).astype(np.int32)


def plain(neighbors: Any, values: Any, order: Any) -> int:
    """Do what Algorithm 1 says, with the skip, in plain Python, over arrays or lists; return how many are left."""
    s = [1] * len(values)
    for i in order:
        if s[i] == 0:
            continue
        for t in neighbors[i]:
            if t >= 0 and s[t] == 1 and values[i] == values[t] and t != i:
                s[i] += 1
                s[t] -= 1
    return sum(weight > 0 for weight in s)


def search(records: int, dim: int, k: int, code: str) -> dict[str, float]:
    """Time the self-search of a store and FAISS's search of the same vectors, the best of three each."""
    from calls import build_index
    from nearlm.base import files
    from nearlm.base.progress import Reporter
    from nearlm.search.index import faiss_index
    from nearlm.shrink.neighbors import saved_neighbors
    from synthetic import make_store

    with tempfile.TemporaryDirectory(prefix="nearlm-merge-") as name:
        rng = np.random.default_rng(0)
        keys = rng.standard_normal((records, dim), dtype=np.float32).astype(np.float16)
        store = make_store(Path(name) / "store", keys, rng.integers(0, 1000, records))
        build_index(store, f"IVF{max(1, int(records**0.5))},{code}", nprobe=8, quiet=True)
        vectors, index = keys.astype(np.float32), faiss_index(store)
        index.nprobe = 8
        index.search(vectors[:1000], k)
        bare, own = [], []
        for _ in range(3):
            started = time.perf_counter()
            index.search(vectors, k)
            bare.append(time.perf_counter() - started)
            files.remove(store.path / "index" / "default" / "neighbors.json")
            started = time.perf_counter()
            saved_neighbors(store, "default", k, Reporter(quiet=True))
            own.append(time.perf_counter() - started)
    return {
        "self_search_seconds": min(own),
        "faiss_seconds": min(bare),
        "search_ratio": min(own) / min(bare),
        "self_search_records_per_second": records / min(own),
    }


if __name__ == "__main__":
    main()
