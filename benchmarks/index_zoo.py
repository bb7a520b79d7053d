"""Which index serves a kNN-LM best: perplexity (λ and T tuned) against queries/s, on real keys.

    nearlm index cache:smollm2-spdx --factory paper --index paper
    python benchmarks/index_zoo.py cache:smollm2-spdx --text spdx:valid --max-tokens 12000

Every row is one index and one setting. All rows of a run share queries, neighbours' values and threads; q/s is the best
of three passes, in batches of 2048, in the order that the index gives for free. The paper's baseline is the first row
and is timed again beside every other index, so that each row's speed-up is a ratio of the same minute. Indexes live in
memory or in a temporary folder; `--only` runs the kinds whose name contains a string.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import faiss
import numpy as np

from nearlm.base.progress import Reporter
from nearlm.mixing.equations import log_p_knn, mix, perplexity
from nearlm.mixing.traces import cache_text, trace_lm
from nearlm.mixing.tuning import LAMBDAS
from nearlm.search.index import open_index, read_parts, write_parts
from nearlm.search.kinds import IndexSpec, choose_index, paper_nlist
from nearlm.search.linear import linear_transform, matrix, principal_axes
from nearlm.search.search_index import SearchIndex
from nearlm.search.training import Take, empty_index, train_index
from nearlm.store.datastore import Datastore
from nearlm.store.layout import IndexData
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

TEMPERATURES = tuple(np.geomspace(0.5, 256, 19).round(3))
Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclass
class Kind:
    """An index to try: a specification, maybe an 8-bit second stage, and the settings to try with it."""

    spec: IndexSpec
    nprobes: tuple[int, ...]
    second: bool = False
    ks: tuple[int, ...] = (1024,)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        pca = f"PCA{self.spec.pca}^{self.spec.eigen_power:g}," if self.spec.pca else ""
        self.name = f"{pca}{self.spec.factory}{', then SQ8' if self.second else ''}"


def zoo(records: int, dim: int) -> list[Kind]:
    """List what to try."""
    n = paper_nlist(records)

    def kind(factory: str, width: int, power: float, *nprobes: int, **more: object) -> Kind:
        return Kind(IndexSpec(factory, 16, min(width, dim), power), nprobes, **more)  # type: ignore[arg-type]

    return [
        Kind(choose_index("paper", records, dim), (8, 32)),
        # FAISS: a fast-scan shortlist, then 8-bit codes
        kind(f"IVF{n},PQ128x4fs", 256, 0, 16, second=True, ks=(256, 1024)),
        kind(f"IVF{n},PQ128x4fs", 256, -0.25, 16, second=True, ks=(256, 1024)),
        kind(f"IVF{n},PQ64x4fs", 128, -0.25, 16, second=True, ks=(256, 1024)),
        kind(f"IVF{n},PQ64x4fsr", 128, -0.25, 16, second=True),
        kind(f"IVF{n},RaBitQfs", 192, -0.25, 16, second=True),
        kind(f"OPQ64_128,IVF{n},PQ64x4fs", 192, -0.25, 16),
        # whole lists of 8-bit codes, scanned in batches
        kind(f"IVF{n},SQ8", 256, 0, 8, 16),
        kind(f"IVF{n},SQ8", 64, -0.25, 8, 16),
        kind(f"IVF{n},SQ8", 128, -0.25, 4, 8, 16),
        kind(f"IVF{n},SQ8", 192, -0.25, 2, 4, 8, 16, 32),
        kind(f"IVF{n},SQ8", 192, -0.25, 8, ks=(256, 512, 2048)),
        kind(f"IVF{n},SQ8", 256, -0.25, 4, 8),
        kind(f"IVF{n},SQ8", 192, -0.125, 8),
        kind(f"IVF{n},SQ8", 192, -0.375, 8),
        kind(f"IVF{n},SQ8", 192, -0.5, 8),
        kind(f"IVF{2 * n},SQ8", 192, -0.25, 8, 16),
        kind(f"IVF{4 * n}_HNSW32,SQ8", 192, -0.25, 16, 32),
    ]


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
    parser.add_argument("--only", default="", help="run only the kinds whose name contains this")
    parser.add_argument("--paper", default="paper", metavar="NAME", help="the store's index of the paper's kind")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store, reporter = Datastore.open(args.store), Reporter()
    lm = load_lm(store)
    reading = store.reading()
    source = TextSource((args.text,), max_tokens=args.max_tokens)
    text = cache_text(source, lm.tokenizer, reading, reporter)
    trace = trace_lm(lm, text, reading, reporter)
    queries, log_lm, targets = np.asarray(trace.keys), np.asarray(trace.logp, np.float64), text.targets
    values = store.values[:]
    print(f"{len(store):,} records × {store.dim}, {len(queries):,} queries, NLM perplexity {perplexity(log_lm):.3f}")
    rows: list[dict] = []
    kinds = zoo(len(store), store.dim)
    with tempfile.TemporaryDirectory() as folder:
        paper, _ = open_index(store, args.paper)
        paper.set_nprobe(32)
        for kind in kinds:
            if args.only not in kind.name:
                continue
            try:
                if kind is kinds[0]:
                    index, second, seconds = paper, None, 0.0
                else:
                    index, second, seconds = opened(kind, store, Path(folder) / "index")
            except RuntimeError as error:
                print(f"{kind.name}: {str(error).splitlines()[-1][-100:]}")
                continue
            paper.set_nprobe(32)
            baseline = speed(lambda q, k: paper.search(q, k), queries[:2048], 1024)
            for nprobe, k in itertools.product(kind.nprobes or (None,), kind.ks):
                index.set_nprobe(nprobe)
                search = searcher(index, second)
                qps = speed(search, queries, k)
                D, ids = search(queries, k)
                tokens = np.where(ids >= 0, values[ids], -1).astype(np.int32)
                ppl, temperature, lam = tuned(D, tokens, targets, log_lm)
                row = {"index": kind.name, "nprobe": nprobe, "k": k, "qps": round(qps), "vanilla_qps": round(baseline)}
                row |= {"speedup": round(qps / baseline, 1), "ppl": round(ppl, 3), "T": temperature, "lam": lam}
                rows.append({**row, "build_s": round(seconds)})
                print(" ".join(f"{name}={value}" for name, value in rows[-1].items()), flush=True)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def opened(kind: Kind, store: Datastore, folder: Path) -> tuple[SearchIndex, object, float]:
    """Train, fill, write and open an index as `nearlm index` would, and its second stage in memory."""
    started = time.perf_counter()
    index = empty_index(kind.spec, store.dim)
    if "SQ8" not in kind.spec.factory and kind.spec.pca:  # product quantisers want dimensions that are alike
        index.transform = rotated_axes(store.keys.take, len(store), kind.spec.pca, kind.spec.eigen_power)
    train_index(index, store.keys.take, len(store))
    second = faiss.index_factory(kind.spec.pca, "SQ8") if kind.second else None
    if second is not None:
        second.train(index.transform_keys(sample_of(store.keys.take, len(store))))
    for start in range(0, len(store), 1 << 14):
        block = store.keys[start : start + (1 << 14)].astype(np.float32)
        index.add(block)
        if second is not None:
            second.add(index.transform_keys(block))
    write_parts(index, IndexData(folder))
    return read_parts(IndexData(folder), kind.spec, store.dim), second, time.perf_counter() - started


def sample_of(take: Take, records: int) -> np.ndarray:
    """Return 65,536 keys, or all there are."""
    ids = np.random.default_rng(0).choice(records, min(records, 1 << 16), replace=False)
    return take(np.sort(ids)).astype(np.float32)


def rotated_axes(take: Take, records: int, width: int, power: float) -> object:
    """Return the transform to principal axes that are then rotated at random."""
    axes, shift = matrix(principal_axes(sample_of(take, records), width, power))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(width, width)))
    return linear_transform(rotation @ axes, rotation @ shift)


def searcher(index: SearchIndex, second: object) -> Search:
    """Return a function that searches, through a second stage if there is one."""
    if second is None:
        return lambda queries, k: index.search(queries, k, ordered=False)
    stages = faiss.IndexRefine(index.faiss, second)
    stages.k_factor = 1
    return lambda queries, k: stages.search(index.transform_keys(queries), k)


def speed(search: Search, queries: np.ndarray, k: int) -> float:
    """Return queries/s, the best of three passes."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        for start in range(0, len(queries), 2048):
            search(queries[start : start + 2048], k)
        times.append(time.perf_counter() - started)
    return len(queries) / min(times)


def table(rows: list[dict]) -> str:
    """Return the rows as Markdown."""
    lines = ["| index | nprobe | k | queries/s | × vanilla | perplexity | T | λ |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row["index"], row["nprobe"] or "–", row["k"], f"{row['qps']:,}", row["speedup"], f"{row['ppl']:.3f}")
        lines.append("| " + " | ".join(map(str, (*cells, row["T"], row["lam"]))) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
