"""Fewer bytes: perplexity, µs per query and bytes per record of many codes on real keys; and of 8-bit stored keys.

    python benchmarks/index_bytes.py cache:smollm2-spdx --text spdx:valid --max-tokens 12000 [--only SQ4]

All kinds have the lists that `auto` chooses and look at as many of them; λ and T are tuned for every row on the text.
"bytes" are those of all files of the index and of a token, for each record. A row is on the front (*) if none has both
fewer bytes and a lower perplexity, or is as good and faster. µs are of the search alone, k = 1024, in batches of 1024
and one query at a time. Axes are rotated at random before product and RaBitQ codes, which want them alike.

`--stored` compares stores instead: of 100,000 random records, keys in float16 as they are, and rounded to 8 bits with a
scale for each axis, searched exhaustively: by exact distances (what re-scoring, pruning and reduction see), and on the
axes of an `auto` index.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from index_zoo import rotated_axes, tuned
from nearlm.base.progress import Reporter
from nearlm.mixing.equations import perplexity
from nearlm.mixing.traces import cache_text, trace_lm
from nearlm.search.index import read_parts, write_parts
from nearlm.search.kinds import IndexSpec, choose_index, list_count
from nearlm.search.linear import principal_axes
from nearlm.search.search_index import SearchIndex
from nearlm.search.training import empty_index, train_index
from nearlm.store.datastore import Datastore
from nearlm.store.layout import IndexData
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

K, BLOCK, SOME = 1024, 1 << 15, 100_000


@dataclass(frozen=True)
class Code:
    """A code to try: what FAISS calls it, of how many axes, rotated or not."""

    name: str
    axes: int
    rotated: bool = False


CODES = (
    *(Code("SQ8", axes) for axes in (192, 128, 96, 64, 256)),
    *(Code("SQ4", axes) for axes in (192, 256, 128, 64, 384)),
    *(Code(f"PQ{count}", 192, True) for count in (32, 64)),
    Code("PQ128x4fs", 256, True),
    Code("RaBitQ", 192, True),
)


class Text:
    """The LM's queries and log-probabilities over a text."""

    def __init__(self, store: Datastore, args: argparse.Namespace):
        lm, reading, reporter = load_lm(store), store.reading(), Reporter()
        text = cache_text(TextSource((args.text,), max_tokens=args.max_tokens), lm.tokenizer, reading, reporter)
        trace = trace_lm(lm, text, reading, reporter)
        some = slice(None, None, 4 if args.stored else 1)
        self.queries = store.project(np.asarray(trace.keys))[some]
        self.log_lm, self.targets = np.asarray(trace.logp, np.float64)[some], text.targets[some]

    def perplexity(self, distances: np.ndarray, ids: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
        """Return the best perplexity with neighbours, its T and λ."""
        tokens = np.where(ids >= 0, values[ids], -1).astype(np.int32)
        return tuned(distances, tokens, self.targets, self.log_lm)


def make(code: Code, store: Datastore, keys, folder: Path) -> tuple[SearchIndex, IndexSpec, float]:  # type: ignore[no-untyped-def]
    """Train, fill, write and open an index."""
    started = time.perf_counter()
    auto = choose_index("auto", len(store), store.dim)
    factory = f"IVF{list_count(auto)},{code.name}"
    spec = IndexSpec(factory, auto.nprobe, min(code.axes, store.dim), auto.eigen_power)
    index = empty_index(spec, store.dim)
    if code.rotated:
        index.transform = rotated_axes(keys, len(store), code.axes, auto.eigen_power)
    train_index(index, keys, len(store))
    for start in range(0, len(store), BLOCK):
        index.add(keys(np.arange(start, min(start + BLOCK, len(store)))).astype(np.float32))
    write_parts(index, IndexData(folder))
    return read_parts(IndexData(folder), spec, store.dim), spec, time.perf_counter() - started


def search_all(index: SearchIndex, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    parts = [index.search(queries[start : start + 1024], K, ordered=False) for start in range(0, len(queries), 1024)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def micros(index: SearchIndex, batches: list[np.ndarray]) -> float:
    """Return µs per query, the best of two passes."""
    times = []
    for _ in range(2):
        started = time.perf_counter()
        for batch in batches:
            index.search(batch, K, ordered=False)
        times.append(time.perf_counter() - started)
    return min(times) / sum(map(len, batches)) * 1e6


def row_of(code: Code, store: Datastore, text: Text, folder: Path, times: bool) -> dict[str, object]:
    """Measure one code."""
    index, spec, seconds = make(code, store, store.keys.take, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    ppl, temperature, lam = text.perplexity(*search_all(index, text.queries), store.values[:])
    batches = [text.queries[start : start + 1024] for start in (0, 2048, 4096)]
    singles = [text.queries[start : start + 1] for start in range(0, 2000, 10)]
    return {
        "code": f"{code.name} × {spec.pca}",
        "bytes": round(size / len(store) + 2, 1),
        "perplexity": round(ppl, 3),
        **({"µs, 1024": round(micros(index, batches), 1), "µs, 1": round(micros(index, singles), 1)} if times else {}),
        "T": temperature,
        "λ": lam,
        "build s": round(seconds),
    }


def front(rows: list[dict]) -> None:
    """Mark the rows that no other beats in both bytes and perplexity."""
    for row in rows:
        beaten = any(
            other["bytes"] <= row["bytes"] and other["perplexity"] < row["perplexity"]
            for other in rows
            if other is not row
        )
        row["front"] = "" if beaten else "*"


def stored(store: Datastore, text: Text) -> list[dict[str, object]]:
    """Compare stored keys in float16 with 8-bit ones, by exhaustive search of some records."""
    ids = np.sort(np.random.default_rng(0).choice(len(store), min(len(store), SOME), replace=False))
    keys = store.keys.take(ids).astype(np.float32)
    values = store.values.take(ids)
    middle, spread = keys.mean(0), keys.std(0)
    widest = np.abs(keys - middle).max(0)
    axes = principal_axes(keys, min(192, store.dim), -0.25)
    spans = {"float16": None, "int8, widest": widest, "int8, 6 σ": np.minimum(widest, 6 * spread)}
    rows, exact = [], None
    for name, span in spans.items():
        kept = keys
        if span is not None:
            step = np.maximum(span, 1e-9) / 127
            kept = np.clip(np.rint((keys - middle) / step), -127, 127) * step + middle
        distances, found = faiss.knn(text.queries, kept, K)
        whitened = faiss.knn(axes.apply(text.queries), axes.apply(kept), K)
        exact = found if exact is None else exact
        same = np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(found, exact, strict=True)])
        row = {
            "keys": name,
            "bytes": store.dim * (2 if span is None else 1),
            "same neighbours": round(float(same), 4),
        }
        row |= {"exact distances": round(text.perplexity(distances, found, values)[0], 3)}
        rows.append(row | {"192 axes, half white": round(text.perplexity(*whitened, values)[0], 3)})
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict]) -> str:
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join(lines + ["| " + " | ".join(map(str, row.values())) + " |" for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", default="spdx:valid")
    parser.add_argument("--max-tokens", type=int, default=12000)
    parser.add_argument("--only", default="", help="only codes with one of these in their name, e.g. SQ4x192,PQ")
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--no-times", action="store_true", help="do not time searches")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store = Datastore.open(args.store)
    text = Text(store, args)
    print(
        f"{len(store):,} records × {store.dim}, {len(text.targets):,} queries, LM alone {perplexity(text.log_lm):.3f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        if args.stored:
            rows = stored(store, text)
        else:
            rows = []
            for code in CODES:
                if code.axes <= store.dim and any(part in f"{code.name}x{code.axes}" for part in args.only.split(",")):
                    rows.append(row_of(code, store, text, Path(folder) / "index", not args.no_times))
                    print(rows[-1], flush=True)
            front(rows)
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
