"""Against other libraries: queries/s at the same recall of the true neighbours, on the same real keys.

    python benchmarks/search_rivals.py cache:smollm2-spdx --text spdx:valid [--records 100000] [--only hnswlib]

The same random records of a store (all of them take graphs too long to build on two cores), the LM's own queries over
a text, k = 1024. Recall is that of the true 1024 nearest by L2 distance in the stored keys' space. Each library runs
over a range of its search parameter; the table interpolates queries/s at the recalls asked for (log-linear between the
two settings around it; "–": never reached), in batches of 1024 and one query at a time, with two threads where a
library uses them. `bytes` are those of what it keeps in memory or maps, per record, without tokens; keys that
re-scoring reads are not counted but named. A library is on the front (*) of a column if none is at least as fast with
as few bytes.

nearlm's rows: the `auto` index, whose half-whitened space is not that of the recall asked for here; 8 bits of all axes
as they are (SQ8); 8 bits of 256 axes without whitening (PCA^0), and that with candidates re-scored from the store's
float16 keys.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import faiss
import numpy as np

from nearlm.base.progress import Reporter
from nearlm.mixing.traces import cache_text, trace_lm
from nearlm.search.index import read_parts, write_parts
from nearlm.search.kinds import IndexSpec, choose_index, list_count
from nearlm.search.rescoring import Rescorer
from nearlm.search.training import empty_index, train_index
from nearlm.store.datastore import Datastore
from nearlm.store.layout import IndexData
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

K, TRUE = 1024, 256
RECALLS = (0.6, 0.7, 0.8, 0.9, 0.95)
Search = Callable[[np.ndarray], np.ndarray]


@dataclass
class Rival:
    """A library's index over the keys: how it is searched with each setting, and what it cost."""

    name: str
    settings: list[tuple[str, Search]]
    bytes: float
    build: float
    points: list[tuple[float, float, float]] = field(default_factory=list)  # recall, q/s batched, q/s one by one

    def measure(self, queries: np.ndarray, true: np.ndarray) -> None:
        """Run all settings."""
        some = queries[5::47][:TRUE]
        for setting, search in self.settings:
            found = search(some)
            recall = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, true, strict=True)]))
            batched = speed(search, [queries[start : start + 1024] for start in (0, 4096)])
            single = speed(search, [queries[start : start + 1] for start in range(0, 2000, 20)])
            self.points.append((recall, batched, single))
            print(f"{self.name} {setting}: recall {recall:.3f}, {batched:,.0f} and {single:,.0f} queries/s", flush=True)

    def at(self, recall: float, column: int) -> float | None:
        """Return queries/s at a recall."""
        points = sorted(self.points)
        if recall > points[-1][0]:
            return None
        if recall <= points[0][0]:
            return points[0][column]
        return float(np.exp(np.interp(recall, [p[0] for p in points], [np.log(p[column]) for p in points])))


def speed(search: Search, batches: list[np.ndarray]) -> float:
    """Return queries/s, the best of two passes."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        for batch in batches:
            search(batch)
        times.append(time.perf_counter() - started)
    return sum(map(len, batches)) / min(times)


def nearlm(keys: np.ndarray, folder: Path) -> Iterator[Rival]:
    """Yield nearlm's own."""
    auto = choose_index("auto", len(keys), keys.shape[1])
    whole = IndexSpec(f"IVF{list_count(auto)},SQ8", auto.nprobe)
    plain = replace(whole, pca=min(256, keys.shape[1]))
    for name, spec in (("nearlm auto", auto), ("nearlm, SQ8", whole), ("nearlm, PCA256^0", plain)):
        started = time.perf_counter()
        index = empty_index(spec, keys.shape[1])
        train_index(index, lambda ids: keys[ids], len(keys))
        index.add(keys.astype(np.float32))
        data = IndexData(folder / name.replace(" ", ""))
        write_parts(index, data)
        built = time.perf_counter() - started
        index = read_parts(data, spec, keys.shape[1])
        size = sum(path.stat().st_size for path in data.folder.iterdir()) / len(keys)

        def search(queries: np.ndarray, nprobe: int, index=index) -> np.ndarray:  # type: ignore[no-untyped-def]
            index.set_nprobe(nprobe)
            return index.search(queries, K, ordered=False)[1]

        probes = [p for p in (2, 4, 8, 16, 32, 64, 128) if p <= list_count(spec)]
        yield Rival(name, [(f"nprobe={p}", lambda q, p=p: search(q, p)) for p in probes], size, built)
    rescorer = Rescorer(_Shards(keys))  # type: ignore[arg-type]

    def rescored(queries: np.ndarray, nprobe: int, more: int) -> np.ndarray:
        index.set_nprobe(nprobe)
        ids = index.search(queries, more, ordered=False)[1]
        distances = rescorer.distances(queries, ids)
        return np.take_along_axis(ids, np.argpartition(distances, K - 1, axis=1)[:, :K], 1)

    several = [(f"nprobe={p}", lambda q, p=p: rescored(q, p, 1280)) for p in probes[2:]]
    yield Rival("nearlm, PCA256^0, 1280 re-scored (float16 keys)", several, size, built)


class _Shards:
    """Keys as a store has them."""

    def __init__(self, keys: np.ndarray):
        self.shards = [keys]

    def parts(self) -> Iterator[tuple[int, np.ndarray]]:
        yield 0, self.shards[0]


def faiss_kinds(keys: np.ndarray) -> Iterator[Rival]:
    """Yield FAISS's."""
    nlist = max(1, list_count(choose_index("auto", len(keys), keys.shape[1])))
    width = keys.shape[1]
    pq = next(count for count in (192, 128, 96, 64, 32, 8, 4, 2, 1) if width % count == 0)
    kinds = (f"IVF{nlist},SQ8", f"IVF{nlist},PQ{pq}x4fs", f"IVF{nlist},PQ{pq}x4fs,RFlat", "HNSW32", "HNSW32_SQ8")
    for factory in kinds:
        started = time.perf_counter()
        index = faiss.index_factory(width, factory)
        x = keys.astype(np.float32)
        index.train(x[:: max(1, len(x) // (64 * nlist))])
        index.add(x)
        built = time.perf_counter() - started
        del x
        size = len(faiss.serialize_index(index)) / len(keys)
        graph = "HNSW" in factory
        if "RFlat" in factory:
            faiss.ParameterSpace().set_index_parameter(index, "k_factor_rf", 2)
        values = (1024, 1536, 2560, 4096) if graph else (2, 4, 8, 16, 32, 64)
        parameter = "efSearch" if graph else "nprobe"

        def search(queries: np.ndarray, value: int, index=index, parameter=parameter) -> np.ndarray:  # type: ignore[no-untyped-def]
            faiss.ParameterSpace().set_index_parameter(index, parameter, value)
            return index.search(queries, K)[1]

        yield Rival(
            f"FAISS {factory}", [(f"{parameter}={v}", lambda q, v=v: search(q, v)) for v in values], size, built
        )


def hnswlib_graph(keys: np.ndarray, folder: Path) -> Iterator[Rival]:
    """Yield hnswlib's graph."""
    import hnswlib

    started = time.perf_counter()
    graph = hnswlib.Index("l2", keys.shape[1])
    graph.init_index(len(keys), M=16, ef_construction=100)
    graph.set_num_threads(2)
    graph.add_items(keys.astype(np.float32))
    built = time.perf_counter() - started
    graph.save_index(str(folder / "hnswlib"))
    size = (folder / "hnswlib").stat().st_size / len(keys)

    def search(queries: np.ndarray, ef: int) -> np.ndarray:
        graph.set_ef(ef)
        return graph.knn_query(queries, K)[0].astype(np.int64)

    yield Rival(
        "hnswlib M=16", [(f"ef={e}", lambda q, e=e: search(q, e)) for e in (1024, 1536, 2560, 4096)], size, built
    )


def usearch_graph(keys: np.ndarray, folder: Path) -> Iterator[Rival]:
    """Yield usearch's graphs, of half-precision and of 8-bit keys."""
    from usearch.index import Index

    for kind in ("f16", "i8"):
        started = time.perf_counter()
        scale = (
            np.float32(1) if kind == "f16" else np.float32(1) / np.abs(keys).max().astype(np.float32)
        )  # i8: of [-1, 1]
        graph = Index(ndim=keys.shape[1], metric="l2sq", dtype=kind, connectivity=16, expansion_add=100)
        graph.add(np.arange(len(keys)), keys.astype(np.float32) * scale, threads=2)
        built = time.perf_counter() - started
        graph.save(str(folder / "usearch"))
        size = (folder / "usearch").stat().st_size / len(keys)

        def search(queries: np.ndarray, ef: int, graph=graph, scale=scale) -> np.ndarray:  # type: ignore[no-untyped-def]
            graph.expansion_search = ef
            found = graph.search(queries * scale, K, threads=2).keys
            return np.asarray(found, np.int64).reshape(len(queries), -1)

        several = [(f"ef={e}", lambda q, e=e: search(q, e)) for e in (1024, 1536, 2560, 4096)]
        yield Rival(f"usearch {kind}, M=16", several, size, built)


def all_rivals(keys: np.ndarray, folder: Path, only: str) -> Iterator[Rival]:
    makers = {
        "nearlm": lambda: nearlm(keys, folder),
        "faiss": lambda: faiss_kinds(keys),
        "hnswlib": lambda: hnswlib_graph(keys, folder),
        "usearch": lambda: usearch_graph(keys, folder),
    }
    for name, make in makers.items():
        if only in name:
            yield from make()


def table(rivals: list[Rival]) -> str:
    """Return queries/s at each recall as Markdown."""
    cells = [f"{recall:g}" for recall in RECALLS]
    lines = [f"| index | bytes | build s | {' | '.join(f'batch, {c} | one, {c}' for c in cells)} |"]
    lines.append("|" + "---|" * (3 + 2 * len(RECALLS)))
    for rival in rivals:
        row = [rival.name, f"{rival.bytes:.0f}", f"{rival.build:.0f}"]
        for recall in RECALLS:
            for column in (1, 2):
                mine = rival.at(recall, column)
                others = [(other.at(recall, column) or 0, other.bytes) for other in rivals if other is not rival]
                beaten = mine is not None and any(speed >= mine and size <= rival.bytes for speed, size in others)
                row.append("–" if mine is None else f"{mine:,.0f}{'' if beaten else '*'}")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", default="spdx:valid")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--only", default="", help="run only the libraries whose name contains this")
    parser.add_argument("--json", type=Path, help="keep what was measured, and add to what is kept")
    args = parser.parse_args()
    store, reporter = Datastore.open(args.store), Reporter()
    lm = load_lm(store)
    text = cache_text(TextSource((args.text,), max_tokens=12000), lm.tokenizer, store.reading(), reporter)
    queries = store.project(np.asarray(trace_lm(lm, text, store.reading(), reporter).keys))
    del lm
    ids = np.random.default_rng(0).choice(len(store), min(args.records, len(store)), replace=False)
    keys = np.ascontiguousarray(store.keys.take(np.sort(ids)))
    true = faiss.knn(queries[5::47][:TRUE], keys.astype(np.float32), K)[1]
    print(f"{len(keys):,} records × {keys.shape[1]}, {len(queries):,} queries", flush=True)
    rivals = []
    if args.json and args.json.exists():
        rivals = [Rival(**{**known, "settings": []}) for known in json.loads(args.json.read_text())]
    folder = Path(tempfile.mkdtemp())
    try:
        for rival in all_rivals(keys, folder, args.only):
            rival.measure(queries, true)
            rivals.append(rival)
            if args.json:
                kept = [{name: value for name, value in vars(one).items() if name != "settings"} for one in rivals]
                args.json.write_text(json.dumps(kept, indent=1))
    finally:
        shutil.rmtree(folder)
    print(table(rivals))


if __name__ == "__main__":
    main()
