"""What pointers are worth: successors of the neighbours that held the token just read, as candidates for the next.

    python benchmarks/pointers.py STORE --text spdx:valid [--max-tokens N] [--nprobe 1 2 8] [--k 256] [--most 256]

A record's successor is the record of the next token of its document. (a) "added": the successors of the neighbours, and
of the successors before, that held the token just read join what a search found. (b) "instead": while at least so many
of them remain, a token is not searched for. Distances of successors are those of the index. Perplexities are of the
mixture (each half of the text predicted by what was trained on the other) and of one λ tuned on the text itself.
"µs" is what is spent on pointers per token, beside the search. The kernel is compared with plain Python first.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import numba
import numpy as np

from nearlm.base import Reporter
from nearlm.mixing import best_setting, build_infinigram, perplexity, trace_text
from nearlm.mixing.mixture_training import Searched, cross_fit, mixture_examples
from nearlm.mixing.traces import Trace, trace_search
from nearlm.search import Retriever
from nearlm.search.packing import unpack
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

SOURCES = ("knn", "ngram", "text")


def plain_pointers(found, values, follows, targets, begins, distance, most, enough):  # type: ignore[no-untyped-def]
    """Follow pointers in plain Python: the ids of each token's candidates, and whether it was searched for."""
    candidates, searched = [], []
    for i in range(len(found)):
        pointed = []
        if not begins[i]:
            held = [id for id in candidates[-1] if values[id] == targets[i - 1] and follows[id]]
            pointed = sorted((id + 1 for id in held), key=lambda id: distance(i, id))[:most]
        searched.append(not enough or len(pointed) < enough)
        more = [id for id in found[i] if id >= 0 and id not in pointed] if searched[-1] else []
        candidates.append(pointed + more)
    return candidates, searched


@numba.njit(cache=True, nogil=True)
def follow(found, near, values, follows, targets, begins, queries, decoder, most, enough, ids, distances, searched):  # type: ignore[no-untyped-def]
    """Write for each token the ids and distances of what was pointed to and found; row after row, as they are read."""
    k = found.shape[1]
    centroids, scale, centre, codes, places, lists = decoder
    marks = np.full(len(values), -1, np.int32)
    pointed = np.empty(ids.shape[1], np.int64)
    far = np.empty(ids.shape[1], np.float32)
    for i in range(len(found)):
        count = 0
        if not begins[i]:
            for j in range(ids.shape[1]):
                id = ids[i - 1, j]
                if id < 0:
                    break
                if values[id] == targets[i - 1] and follows[id] and marks[id + 1] != i:
                    marks[id + 1] = i
                    at = places[id + 1]
                    total = np.float32(0)
                    for d in range(queries.shape[1]):
                        code = np.float32(codes[at, d])
                        rest = queries[i, d] - centroids[lists[at], d] - centre[d] - scale[d] * code
                        total += rest * rest
                    pointed[count] = id + 1
                    far[count] = total
                    count += 1
        if count > most:
            nearest = np.argsort(far[:count], kind="mergesort")[:most]
            for j in range(most, count):
                marks[pointed[j]] = -1
            kept = pointed[nearest].copy()
            marks[pointed[:most]] = -1
            far[:most] = far[nearest]
            pointed[:most] = kept
            marks[kept] = i
            count = most
        ids[i, :count] = pointed[:count]
        distances[i, :count] = far[:count]
        searched[i] = enough == 0 or count < enough
        if searched[i]:
            for j in range(k):
                if found[i, j] >= 0 and marks[found[i, j]] != i:
                    ids[i, count] = found[i, j]
                    distances[i, count] = near[i, j]
                    count += 1
    return ids


class Pointers:
    """What following pointers needs of a store and its index."""

    def __init__(self, store: Datastore, retriever: Retriever):
        scan = retriever.index.scan
        self.retriever = retriever
        self.values = np.asarray(store.values[:])
        origin = np.asarray(store.origin[:])
        self.follows = np.append(np.diff(origin) == 1, False)
        places = np.empty(len(store), np.int64)
        places[scan.lists.ids] = np.arange(len(store))
        lists = np.repeat(np.arange(len(scan.lists.offsets) - 1), np.diff(scan.lists.offsets))
        codes = unpack(np.asarray(scan.lists.codes), len(scan.scale))
        self.decoder = scan.centroids, scan.scale, scan.centre, codes, places, lists

    def extend(self, trace: Trace, most: int, enough: int) -> tuple[Trace, float, float]:
        """Return a trace with pointers, the share of searches, and µs per token."""
        text = trace.lm.text
        positions = text.windows.target_positions
        begins = np.append(True, (np.diff(positions) != 1) | (np.diff(text.documents) != 0))
        queries = self.retriever.index.transform_keys(self.retriever.store.project(trace.lm.keys))
        rows, k = trace.ids.shape
        found = np.asarray(trace.ids, np.int64)
        near = np.asarray(trace.distances)
        arguments = found, near, self.values, self.follows, text.targets, begins, queries, self.decoder, most, enough

        def run(count: int) -> tuple[Any, ...]:
            ids = np.full((rows, k + most), -1, np.int64)
            distances = np.full((rows, k + most), np.inf, np.float32)
            searched = np.zeros(rows, np.bool_)
            follow(arguments[0][:count], *arguments[1:], ids, distances, searched)
            return ids, distances, searched

        run(10)
        started = time.perf_counter()
        ids, distances, searched = run(rows)
        seconds = time.perf_counter() - started
        made = replace(trace, ids=ids, distances=distances)
        return made, float(searched.mean()), 1e6 * seconds / rows

    def check(self, trace: Trace, rows: int = 400) -> None:
        """Compare with plain Python."""
        text = trace.lm.text
        positions = text.windows.target_positions
        begins = np.append(True, (np.diff(positions) != 1) | (np.diff(text.documents) != 0))
        queries = self.retriever.index.transform_keys(self.retriever.store.project(trace.lm.keys[:rows]))
        centroids, scale, centre, codes, places, lists = self.decoder

        def distance(i: int, id: int) -> float:
            at = places[id]
            return float(np.square(queries[i] - centroids[lists[at]] - centre - scale * codes[at]).sum())

        for most, enough in ((256, 0), (32, 0), (256, 3)):
            given = trace.ids[:rows], self.values, self.follows, text.targets, begins, distance, most, enough
            plain = plain_pointers(*given)[0]
            made = self.extend(trace, most, enough)[0]
            assert [set(row[row >= 0].tolist()) for row in made.ids[:rows]] == [set(map(int, row)) for row in plain]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--nprobe", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--most", type=int, default=64, help="pointers of a token")
    parser.add_argument("--enough", type=int, nargs="+", default=[4, 16], help="pointers that replace a search")
    parser.add_argument("--index", default="default")
    options = parser.parse_args()
    reporter = Reporter()
    store = Datastore.open(options.store)
    traced = trace_text(load_lm(store), store, TextSource((options.text,), max_tokens=options.max_tokens), reporter)
    infinigram = build_infinigram(store, reporter)
    print("| lists | pointers | searched | one λ | mixture | p_kNN alone mixed | µs |\n|---|---|---|---|---|---|---|")
    for nprobe in options.nprobe:
        retriever = Retriever(store, options.index, nprobe=nprobe)
        pointers = Pointers(store, retriever)
        trace = trace_search(traced, retriever, options.k, reporter)
        if nprobe == options.nprobe[0]:
            pointers.check(trace)
        kinds = [("none", 0, 0), ("added", options.most, 0)]
        kinds += [(f"instead, from {enough}", options.most, enough) for enough in options.enough]
        for name, most, enough in kinds:
            used, share, cost = (trace, 1.0, 0.0) if name == "none" else pointers.extend(trace, most, enough)
            tuned = replace(best_setting(used), k=used.k)
            ppl = []
            for sources in (SOURCES, ("knn",)):
                examples = mixture_examples(traced, sources, infinigram, Searched(used, tuned))
                ppl.append(perplexity(cross_fit(examples, traced.text.documents)[0]))
            found = " | ".join(f"{value:.3f}" for value in (perplexity(used.log_p(tuned)), *ppl))
            print(f"| {nprobe} | {name} | {share:.0%} | {found} | {cost:.1f} |", flush=True)


if __name__ == "__main__":
    main()
