"""How much of a scan exact partial distances or bounds of whole lists could save, at best: no time is measured.

    python benchmarks/partial_distances.py STORE --text spdx:valid [--queries 200] [--nprobe 8] [--k 1024]

Queries are the LM's own over a text. The limit is the best there can be, the distance of the k-th neighbour in
the lists that are looked at. A record is saved after so many axes if a lower bound of its distance exceeds the limit:
`head`, the distance along these axes; `norms`, that and (|q| - |x|)² of the other axes, which costs four more bytes per
record; `guess`, not exact: the head stands for the whole in proportion to the mean. A list is saved if all of it is
further away than the limit, by its centroid and radius. "Bytes" is what is read of the codes then.
"""

import argparse
from typing import Any

import numpy as np

from nearlm.base import Reporter
from nearlm.mixing import trace_text
from nearlm.search import Retriever
from nearlm.search.packing import unpack
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource


def decoded(scan, begin: int, end: int, number: int):  # type: ignore[no-untyped-def]
    """Return the records of a list as the scan sees them."""
    codes = unpack(scan.lists.codes[begin:end], len(scan.scale))
    return scan.centroids[number] + scan.centre + scan.scale * codes.astype(np.float32)


def queries_of(store: Datastore, index: Any, text: str, count: int) -> Any:
    """Return some of the LM's queries over a text, in the space of the index."""
    keys = trace_text(load_lm(store), store, TextSource((text,)), Reporter()).keys
    rows = np.sort(np.random.default_rng(0).choice(len(keys), count, replace=False))
    return index.transform_keys(store.project(np.asarray(keys[rows], np.float32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--index", default="default")
    parser.add_argument("--nprobe", type=int, default=8)
    parser.add_argument("--k", type=int, default=1024)
    options = parser.parse_args()
    store = Datastore.open(options.store)
    index = Retriever(store, options.index).index
    scan = index.scan
    offsets = scan.lists.offsets
    queries = queries_of(store, index, options.text, options.queries)
    width = queries.shape[1]
    axes = [one for one in (16, 32, 64, 96, 128) if one < width]
    saved = {(kind, many): [] for kind in ("head", "norms", "guess") for many in axes}
    lists_saved, candidates, lost = [], [], {many: [] for many in axes}
    probed = scan.probe(queries, options.nprobe)
    radius = {}
    for query, lists in zip(queries, probed, strict=True):
        parts = []
        for number in lists.tolist():
            records = decoded(scan, offsets[number], offsets[number + 1], number)
            if number not in radius:
                radius[number] = np.sqrt(((records - scan.centroids[number]) ** 2).sum(1)).max(initial=0)
            parts.append(records)
        records = np.concatenate(parts)
        squares = (records - query) ** 2
        whole = squares.sum(1)
        limit = np.partition(whole, min(options.k, len(whole)) - 1)[min(options.k, len(whole)) - 1]
        away = [np.sqrt(((query - scan.centroids[number]) ** 2).sum()) - radius[number] for number in lists.tolist()]
        lists_saved.append(np.mean([one > 0 and one * one > limit for one in away]))
        candidates.append(len(whole))
        for many in axes:
            head = squares[:, :many].sum(1)
            tail = np.sqrt((records[:, many:] ** 2).sum(1)) - np.sqrt((query[many:] ** 2).sum())
            share = squares[:, :many].sum() / squares.sum()
            saved["head", many].append(np.mean(head > limit))
            saved["norms", many].append(np.mean(head + tail * tail > limit))
            saved["guess", many].append(np.mean(head / share > limit))
            lost[many].append(np.mean((head / share > limit)[whole <= limit]))
    print(
        f"{len(store):,} records, {width} axes, {options.nprobe} lists, k={options.k}, "
        f"{np.mean(candidates):,.0f} candidates"
    )
    print(f"lists that a bound saves: {np.mean(lists_saved):.1%}")
    print(
        "| axes first | head | bytes | norms | bytes | guess | of the neighbours lost |\n|---|---|---|---|---|---|---|"
    )
    for many in axes:
        cells = []
        for kind in ("head", "norms"):
            share = np.mean(saved[kind, many])
            read = (many + (4 if kind == "norms" else 0) + (1 - share) * (width - many)) / width
            cells.append(f"{share:.1%} | {read:.0%}")
        print(f"| {many} | {' | '.join(cells)} | {np.mean(saved['guess', many]):.1%} | {np.mean(lost[many]):.1%} |")


if __name__ == "__main__":
    main()
