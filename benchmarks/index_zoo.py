"""Which FAISS index serves a kNN-LM best: perplexity (λ and T tuned) against queries/s, on real keys.

    python benchmarks/index_zoo.py cache:smollm2-spdx --text spdx:valid --max-tokens 12000

Every row is one index and one setting. All rows of a run share queries, neighbours' values and threads; q/s is the best
of three interleaved passes. The paper's baseline is the first row.
"""

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearlm.datastore import Datastore
from nearlm.index import IndexSpec, SearchIndex, choose_index, empty_index, paper_nlist, sample_size, train_index
from nearlm.knnlm import load_lm
from nearlm.mix import log_p_knn, mix, perplexity
from nearlm.progress import Reporter
from nearlm.trace import Reading, read_text, trace_lm
from nearlm.tune import LAMBDAS

TEMPERATURES = tuple(np.geomspace(0.5, 256, 19).round(3))


def zoo(records: int, dim: int) -> list[tuple[IndexSpec, list[int | None], list[int | None]]]:
    """List (spec, nprobes, shortlists) to try."""
    n, wide, half = paper_nlist(records), min(256, dim), min(128, dim // 2)
    lengths: list[int | None] = [256, 512, 1024]

    def two_stages(lists: str, code: str, width: int) -> IndexSpec:
        return IndexSpec(f"IVF{lists},{code}", 32, width if width < dim else None, "SQ8", 256)

    rows: list[tuple[IndexSpec, list[int | None], list[int | None]]] = [
        (choose_index("paper", records, dim), [8, 32], [None]),
        (two_stages(f"{n}", f"PQ{wide // 2}x4fs", wide), [8, 16, 32], lengths),
        (two_stages(f"{n}", f"PQ{wide // 4}x4fs", wide), [16, 32], [512, 1024]),
        (two_stages(f"{n}", f"PQ{half // 2}x4fs", half), [16, 32], [512, 1024]),
        (two_stages(f"{4 * n}", f"PQ{wide // 2}x4fs", wide), [16, 32, 64], [512, 1024]),
        (two_stages(f"{4 * n}_HNSW32", f"PQ{wide // 2}x4fs", wide), [32], [512]),
        (two_stages(f"{n}", f"PQ{wide // 2}x4fsr", wide), [16], [512]),
        (two_stages(f"{n}", "RaBitQfs", wide), [16], [512]),
        (IndexSpec(f"IVF{n},SQ8", 32, wide if wide < dim else None), [16], [None]),
    ]
    return rows


def tuned(D: np.ndarray, tokens: np.ndarray, targets: np.ndarray, log_lm: np.ndarray) -> tuple[float, float, float]:
    """Return the best perplexity with its T and λ."""
    best = (np.inf, 0.0, 0.0)
    for temperature in TEMPERATURES:
        log_knn = log_p_knn(D, tokens, targets, float(temperature))
        for lam in LAMBDAS[::3]:
            best = min(best, (perplexity(mix(log_lm, log_knn, lam)), float(temperature), lam))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", default="spdx:valid")
    parser.add_argument("--max-tokens", type=int, default=12000)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--only", default="", help="run only the specs whose factory contains this")
    parser.add_argument("--fast", action="store_true", help="only the most telling settings of each index")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store, reporter = Datastore.open(args.store), Reporter()
    lm = load_lm(store)
    reading = Reading.of_store(store.manifest)
    text = read_text(args.text, lm.tokenizer, reading, max_tokens=args.max_tokens, reporter=reporter)
    trace = trace_lm(lm, text, reading, reporter)
    queries, log_lm, targets = np.asarray(trace.keys), np.asarray(trace.logp, np.float64), text.targets
    values = store.values[:]
    print(f"{len(store):,} records × {store.dim}, {len(queries):,} queries, NLM perplexity {perplexity(log_lm):.3f}")
    rows = []
    for spec, nprobes, shortlists in zoo(len(store), store.dim):
        if args.only not in spec.first:
            continue
        try:
            index, seconds = filled(spec, store)
        except RuntimeError as error:
            print(f"{spec.first}: {str(error).splitlines()[-1][-100:]}")
            continue
        for nprobe, shortlist in itertools.product(nprobes, shortlists):
            if not args.fast or (nprobe, shortlist) in ((16, 512), (16, 1024), (32, 512), (32, None)):
                rows.append(measure(index, spec, nprobe, shortlist, args.k, queries, values, targets, log_lm, seconds))
                print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def filled(spec: IndexSpec, store: Datastore) -> tuple[SearchIndex, float]:
    """Train and fill an index in memory."""
    started = time.perf_counter()
    index = empty_index(spec, store.dim)
    ids = np.random.default_rng(0).choice(len(store), sample_size(spec, len(store)), replace=False)
    train_index(index, store.keys.take(np.sort(ids)).astype(np.float32))
    for start in range(0, len(store), 1 << 14):
        index.add(store.keys[start : start + (1 << 14)].astype(np.float32))
    return index, time.perf_counter() - started


def measure(index, spec, nprobe, shortlist, k, queries, values, targets, log_lm, seconds) -> dict:  # type: ignore[no-untyped-def]
    """Time one setting and tune λ and T for it."""
    one = SearchIndex(replace(spec, nprobe=nprobe, shortlist=shortlist), index.transform, index.first, index.second)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        for start in range(0, len(queries), 2048):
            one.search(queries[start : start + 2048], k)
        times.append(time.perf_counter() - started)
    D, ids = one.search(queries, k)
    tokens = np.where(ids >= 0, values[ids], -1).astype(np.int32)
    ppl, temperature, lam = tuned(D, tokens, targets, log_lm)
    return {
        "pca": spec.pca,
        "first": spec.first,
        "second": spec.second,
        "nprobe": nprobe,
        "k": min(k, shortlist or k),
        "qps": round(len(queries) / min(times)),
        "ppl": round(ppl, 4),
        "T": temperature,
        "lam": lam,
        "build_s": round(seconds),
    }


if __name__ == "__main__":
    main()
