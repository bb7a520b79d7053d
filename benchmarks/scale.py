"""How the cost of an `auto` index grows from thousands of records to tens of millions, on keys like a real store's.

    nearlm index STORE
    python benchmarks/scale.py STORE --text spdx:valid --folder WORK [--records 15600 100000 …] [--lengths 256 832]

Up to the store's own size, keys are random records of it. Above, each is x + α(a - b), where x is a real key and a, b
are others of its list in the store's index: a mixture with a component at every real key whose covariance is that of
the list, so that the spectrum is real too. α is fitted: from an eighth of the store's keys as many are made as the
store has, and the α is taken with which the LM's queries find their 1st, 32nd and 1024th neighbours as far away as
among the real ones; `fit` shows the distances, and recall on both. Keys are made in the space of the index (it is
linear), block by block from a seed; they are never on disk.

Each size runs in a process of its own: seconds of training and filling, peak RssAnon, bytes of the files per record,
recall@1024 against exact search in the index's space, and µs per query in batches of 1024 and one at a time (without
the transform: queries are in that space), with more and fewer lists than `auto` looks at. `--lengths` tries other
lengths of lists than `auto` has. `--stage build` trains, fills and finds the true neighbours, and keeps all of it in
WORK; `--stage measure` times the searches alone.
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np

from nearlm.base.progress import Reporter
from nearlm.mixing.traces import cache_text, trace_lm
from nearlm.search.index import open_index, read_parts, write_parts
from nearlm.search.kinds import IndexSpec, choose_index, code_bits, list_count
from nearlm.search.training import empty_index, train_index
from nearlm.store.datastore import Datastore
from nearlm.store.layout import IndexData
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

BLOCK, K, TRUE = 1 << 15, 1024, 256
ALPHAS = (0.03, 0.06, 0.1, 0.15, 0.2, 0.4)


class Keys:
    """Keys of any number: real ones, or made from them."""

    def __init__(self, folder: Path, records: int, alpha: float, base: int | None = None):
        self.real = np.load(folder / "keys.npy", mmap_mode="r")
        self.order = np.load(folder / "order.npy", mmap_mode="r")  # real keys list by list
        self.bounds = np.load(folder / "bounds.npy")  # of its list there, for each of them
        self.records, self.alpha = records, alpha
        self.chosen = np.random.default_rng(5).permutation(len(self.order))[: base or len(self.order)]

    def take(self, ids: np.ndarray) -> np.ndarray:
        """Return the keys of some ids."""
        if self.records <= len(self.chosen):
            return self.real[self.order[self.chosen[ids]]].astype(np.float32)
        rng = np.random.default_rng((7, int(ids[0])))
        place = self.chosen[ids % len(self.chosen)]
        low, high = self.bounds[place].T
        a, b = (low + (rng.random(len(ids)) * (high - low)).astype(np.int64) for _ in range(2))
        x, a, b = (self.real[self.order[at]].astype(np.float32) for at in (place, a, b))
        return x + np.float32(self.alpha) * (a - b)

    def blocks(self):  # type: ignore[no-untyped-def]
        """Yield all keys, block by block; a block is the same each time."""
        for start in range(0, self.records, BLOCK):
            yield start, self.take(np.arange(start, min(start + BLOCK, self.records)))


def prepare(args: argparse.Namespace) -> None:
    """Write the real keys and the LM's queries in the space of the store's index, and the lists."""
    store, reporter = Datastore.open(args.store), Reporter()
    index, _ = open_index(store)
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "queries.npy").exists():
        text = cache_text(
            TextSource((args.text,), max_tokens=12000), (lm := load_lm(store)).tokenizer, store.reading(), reporter
        )
        queries = np.asarray(trace_lm(lm, text, store.reading(), reporter).keys)
        np.save(args.folder / "queries.npy", index.transform_keys(store.project(queries)))
    offsets = np.asarray(index.scan.lists.offsets)  # type: ignore[union-attr]
    lengths = np.diff(offsets)
    np.save(args.folder / "order.npy", np.asarray(index.scan.lists.ids, np.int64))  # type: ignore[union-attr]
    np.save(args.folder / "bounds.npy", np.repeat(np.stack([offsets[:-1], offsets[1:]], 1), lengths, axis=0))
    keys = np.lib.format.open_memmap(
        args.folder / "keys.npy", "w+", np.float16, (len(store), index.spec.pca or store.dim)
    )
    for start in range(0, len(store), BLOCK):
        keys[start : start + BLOCK] = index.transform_keys(store.keys[start : start + BLOCK])


def exact(keys: Keys, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the true neighbours."""
    best_d, best = np.full((len(queries), K), np.inf, np.float32), np.full((len(queries), K), -1)
    for start, block in keys.blocks():
        d, i = faiss.knn(queries, block, min(K, len(block)))
        d, i = np.hstack([best_d, d]), np.hstack([best, i + start])
        order = np.argpartition(d, K - 1, axis=1)[:, :K] if d.shape[1] > K else np.argsort(d, axis=1)
        best_d, best = np.take_along_axis(d, order, 1), np.take_along_axis(i, order, 1)
    return np.sort(best_d, axis=1), best


def fit(folder: Path) -> float:
    """Return the α of keys that lie as real ones do; say how well."""
    queries = some_queries(folder)
    whole = len(np.load(folder / "keys.npy", mmap_mode="r"))
    real = np.median(exact(Keys(folder, whole, 0), queries)[0], axis=0)
    print(f"fit: squared distances of the 1st, 32nd, 1024th among {whole:,} real keys: {show(real)}", file=sys.stderr)
    errors = {}
    for alpha in ALPHAS:
        made = np.median(exact(Keys(folder, whole, alpha, whole // 8), queries)[0], axis=0)
        errors[alpha] = float(np.abs(np.log(made[[31, 1023]] / real[[31, 1023]])).sum())
        print(f"fit: α={alpha}: {show(made)} (error {errors[alpha]:.3f})", file=sys.stderr)
    return min(errors, key=lambda alpha: errors[alpha])


def show(distances: np.ndarray) -> str:
    return " ".join(f"{distances[rank]:.2f}" for rank in (0, 31, 1023))


def rss_anon() -> int:
    """Return the process's anonymous memory in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def one(args: argparse.Namespace) -> list[dict[str, object]]:
    """Build and measure one size, or do one of the two."""
    length = args.lengths[0]
    keys = Keys(args.folder, args.one, args.alpha or 0, args.base)
    spec = spec_of(args.one, keys.real.shape[1], length, args.graph)
    data = IndexData(args.folder / f"index-{args.one}-{length or 'auto'}{'-graph' * args.graph}")
    kept = data.folder.with_suffix(".json")
    if args.stage != "measure":
        kept.write_text(json.dumps(build(keys, spec, data)))
        np.save(data.folder.with_suffix(".npy"), exact(keys, some_queries(args.folder))[1])
    if args.stage == "build":
        return [json.loads(kept.read_text())]
    index = read_parts(data, spec, keys.real.shape[1])
    rows = searched(index, np.load(data.folder.with_suffix(".npy")), json.loads(kept.read_text()), args.folder)
    if args.stage == "all":
        shutil.rmtree(data.folder)
    return rows


def build(keys: Keys, spec: IndexSpec, data: IndexData) -> dict[str, object]:
    """Train, fill and write an index."""
    peak = [0]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], rss_anon())
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    records = keys.records
    index = empty_index(spec, keys.real.shape[1])
    started = time.perf_counter()
    train_index(index, keys.take, records)
    trained = time.perf_counter() - started
    filled = 0.0
    for _, block in keys.blocks():
        started = time.perf_counter()
        index.add(block)
        filled += time.perf_counter() - started
    started = time.perf_counter()
    write_parts(index, data)
    filled += time.perf_counter() - started
    row = {"records": records, "index": spec.factory, "train s": round(trained, 1), "fill s": round(filled, 1)}
    row |= {"RAM MB": round(peak[0] / 1e6)}
    size = sum(path.stat().st_size for path in data.folder.iterdir())
    return row | {"bytes": round(size / records + 2, 1)}  # and its token


def spec_of(records: int, dim: int, length: int | None, graph: bool) -> IndexSpec:
    spec = replace(choose_index("auto", records, 3 * dim), pca=None)
    if length is None and not graph:
        return spec
    nlist = list_count(spec) if length is None else max(1, round(records / length))
    return replace(spec, factory=f"IVF{nlist}{'_HNSW32' * graph},SQ{code_bits(spec)}", nprobe=8)


def some_queries(folder: Path) -> np.ndarray:
    return np.load(folder / "queries.npy")[5::47][:TRUE]


def searched(index, true: np.ndarray, row: dict[str, object], folder: Path) -> list[dict[str, object]]:  # type: ignore[no-untyped-def]
    """Search with some numbers of lists, and compare what is found with exact search in the same space."""
    some, queries = some_queries(folder), np.load(folder / "queries.npy")
    rows = []
    picked = index.nprobe
    for nprobe in sorted({picked // 2, picked, 2 * picked, 4 * picked}):
        if nprobe > list_count(index.spec):
            continue
        index.set_nprobe(nprobe)
        found = index.search(some, K)[1]
        recall = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, true, strict=True)]))
        batched = min(timed(index, [queries[s : s + 1024] for s in range(0, 4096, 1024)]) for _ in range(3))
        single = min(timed(index, [queries[s : s + 1] for s in range(0, 2560, 10)]) for _ in range(2))
        rows.append(
            {
                **row,
                "nprobe": nprobe,
                "recall": round(recall, 3),
                "µs, 1024": round(batched, 1),
                "µs, 1": round(single, 1),
                "auto": nprobe == picked,
            }
        )
    return rows


def timed(index, batches: list[np.ndarray]) -> float:  # type: ignore[no-untyped-def]
    """Return µs per query."""
    started = time.perf_counter()
    for batch in batches:
        index.search(batch, K, ordered=False)
    return (time.perf_counter() - started) / sum(map(len, batches)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", default="spdx:valid")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--records", type=int, nargs="+", default=[15_600, 100_000, 500_000, 2_000_000, 8_000_000])
    parser.add_argument("--lengths", type=int, nargs="+", default=[None])
    parser.add_argument("--alpha", type=float, help="do not fit")
    parser.add_argument("--base", type=int, help="make keys from so many real ones")
    parser.add_argument("--graph", action="store_true", help="find lists in a graph (HNSW32)")
    parser.add_argument("--stage", choices=("all", "build", "measure"), default="all")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args)))
        return
    if not (args.folder / "keys.npy").exists():
        prepare(args)
    alpha = args.alpha or fit(args.folder)
    print(f"α={alpha}", file=sys.stderr)
    head = False
    for records in args.records:
        for length in args.lengths:
            command = [sys.executable, __file__, args.store, "--folder", str(args.folder), "--one", str(records)]
            command += ["--stage", args.stage, "--alpha", str(alpha), *(["--lengths", str(length)] if length else [])]
            command += ["--base", str(args.base)] if args.base else []
            command += ["--graph"] * args.graph
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for row in json.loads(done.stdout):
                if not head:
                    print("| " + " | ".join(row) + " |\n|" + "---|" * len(row), flush=True)
                    head = True
                print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


if __name__ == "__main__":
    main()
