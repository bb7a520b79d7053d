"""Target-aware k-means: the records of each frequent target token become the centroids of their clusters.

Other records stay as they are. A centroid's weight is that of its cluster, its origin that of the nearest member.
"""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import faiss
import numba
import numpy as np

from nearlm.base import ArrayFile, Columns, Floats, Ids, Int32s, Ints, OptionError, Pieces, duration
from nearlm.shrink.options import TAKES, PruneOptions
from nearlm.shrink.selection import Centroids, Selection, target
from nearlm.store import Datastore, Derivation

ITERATIONS = 10
LARGEST = 1 << 14  # records that are clustered together; more of one token are cut into parts: time is quadratic
_RATIO = 20.0


def ram_needed(store: Datastore) -> float:
    """Return what the largest part takes, with what FAISS makes of it."""
    most = min(LARGEST, int(np.bincount(store.values[:]).max()))
    return 10.0 * most * store.dim


class Part(NamedTuple):
    """Records of one token that are clustered together: a run of the sorted records, and where its clusters begin."""

    start: int
    stop: int
    clusters: int
    first: int

    @property
    def size(self) -> int:
        """How many records it has."""
        return self.stop - self.start


def select(work: Derivation, options: PruneOptions) -> Selection:
    """Cluster the records of every frequent token."""
    store = work.parent
    order = np.argsort(store.values[:], kind="stable")
    top_tokens = options.top_tokens or TAKES["kmeans"]["top_tokens"]
    runs = frequent_runs(store.values.take(order), top_tokens)
    ratio = options.ratio or _RATIO
    if options.keep is not None:
        ratio = _ratio_for(runs, target(options.keep, len(store)), len(store), top_tokens)
    parts = plan_parts(runs, ratio)
    result = {"tokens": len(runs), "ratio": round(ratio, 4)}
    if not parts:
        return Selection.of_survivors(np.arange(len(store)), len(store), result)
    columns = _cluster(work, order, parts, options.seed or 0)
    return _selection(len(store), order, parts, columns, result)


def frequent_runs(sorted_values: Int32s, top: int) -> Ints:
    """Return the runs (start, stop) of the most frequent values, in the values' order; of equals the smaller values."""
    starts = np.flatnonzero(np.concatenate(([True], sorted_values[1:] != sorted_values[:-1])))
    stops = np.append(starts[1:], len(sorted_values))
    frequent = np.sort(np.argsort(starts - stops, kind="stable")[:top])
    return np.stack([starts[frequent], stops[frequent]], axis=1)


def plan_parts(runs: Ints, ratio: float) -> list[Part]:
    """Cut runs into parts that memory holds, each of n / ratio clusters, rounded, but at least one.

    A part with as many clusters as records is left as it is.
    """
    parts = []
    first = 0
    for start, stop in runs.tolist():
        cuts = np.linspace(start, stop, -(-(stop - start) // LARGEST) + 1).astype(np.int64)
        for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            clusters = max(1, math.floor((end - begin) / ratio + 0.5))
            if clusters < end - begin:
                parts.append(Part(begin, end, clusters, first))
                first += clusters
    return parts


def _ratio_for(runs: Ints, most: int, records: int, top: int) -> float:
    """Return the smallest ratio, nearly, that leaves at most so many records."""

    def left(ratio: float) -> int:
        return records - sum(part.size - part.clusters for part in plan_parts(runs, ratio))

    low = 1.0
    high = float(records + 1)
    if left(high) > most:
        raise OptionError(
            f"one cluster for each of the {len(runs):,} most frequent tokens leaves {left(high):,} of {records:,} "
            f"records, `keep={most / records:.4g}` means {most:,}; the least that can be reached is "
            f"`keep={left(high) / records:.4f}` with `top_tokens={top}`"
        )
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        if left(middle) <= most:
            high = middle
        else:
            low = middle
    return high if left(1.0) > most else 1.0


def _cluster(work: Derivation, order: Ids, parts: list[Part], seed: int) -> Columns:
    """Cluster part after part into arrays of the job: each record's cluster, each cluster's key and nearest member."""
    store = work.parent
    folder = work.job.folder
    clusters = parts[-1].first + parts[-1].clusters
    columns = {
        "labels": ArrayFile(folder / "labels.npy", np.dtype("int32"), (len(store),)),
        "nearest": ArrayFile(folder / "nearest.npy", np.dtype("int64"), (clusters,)),
        "centroids": ArrayFile(folder / "centroids.npy", store.keys.dtype, (clusters, store.dim)),
    }
    weights = store.weights[:] if store.weighted else None
    costs = [part.size * (part.clusters + 1) for part in parts]

    def compute(number: int) -> Pieces:
        part = parts[number]
        ids = order[part.start : part.stop]
        keys = store.keys.take(ids).astype(np.float32)
        labels, centroids, nearest = cluster(
            keys, part.clusters, np.random.default_rng([seed, number]), None if weights is None else weights[ids]
        )
        yield "labels", part.start, labels + part.first
        yield "nearest", part.first, np.where(nearest < 0, -1, ids[nearest])
        yield "centroids", part.first, centroids

    done = work.job.count_done("kmeans", costs)
    seconds = (sum(costs) - done) * (ITERATIONS + 1) * store.dim / _products_per_second(store.dim)
    work.reporter.say(
        f"k-means: {sum(part.size for part in parts):,} records of {len(parts):,} tokens into {clusters:,} clusters, "
        f"about {duration(seconds)}"
    )
    with work.reporter.bar("clustering", sum(costs), "distances", done) as advance:
        work.job.fill("kmeans", columns, costs, compute, advance)
    return columns


def cluster(
    keys: Floats, clusters: int, rng: np.random.Generator, weights: Int32s | None = None
) -> tuple[Int32s, Floats, Ints]:
    """Return each key's cluster, the clusters' (weighted) means, and the member nearest to each, -1 if it has none."""
    if clusters == 1:
        labels = np.zeros(len(keys), np.int32)
    else:
        kmeans = faiss.Kmeans(
            keys.shape[1], clusters, niter=ITERATIONS, min_points_per_centroid=1, max_points_per_centroid=len(keys)
        )
        start = keys[np.sort(rng.choice(len(keys), clusters, replace=False))]
        kmeans.train(keys, None if weights is None else weights.astype(np.float32), init_centroids=start)
        labels = kmeans.assign(keys)[1].astype(np.int32)
    means = np.zeros((clusters, keys.shape[1]))
    nearest = np.full(clusters, -1, np.int64)
    _summarise(keys, labels, np.ones(len(keys), np.int32) if weights is None else weights, means, nearest)
    return labels, means.astype(np.float32), nearest


def _selection(records: int, order: Ids, parts: list[Part], columns: Columns, result: dict[str, float]) -> Selection:
    """Put clustered and other records together, in corpus order."""
    labels = columns["labels"].open()
    nearest = columns["nearest"].open()[:]
    real = np.flatnonzero(nearest >= 0)
    leaders = np.arange(records)  # the record, of the parent's, in whose place the one that stands for it goes
    for part in parts:
        leaders[order[part.start : part.stop]] = nearest[labels[part.start : part.stop]]
    selection = Selection.of_leaders(leaders, {**result, "clusters": len(real)})
    rows = np.full(len(selection.kept), -1, np.int64)
    rows[selection.stands[nearest[real]]] = real
    return replace(selection, centroids=Centroids(columns["centroids"], rows))


def _products_per_second(dim: int) -> float:
    """Measure how many multiplications and additions k-means does per second here."""
    x = np.random.default_rng(0).standard_normal((2048, dim), dtype=np.float32)
    faiss.knn(x[:64], x[:64], 1)
    started = time.perf_counter()
    faiss.knn(x, x[:1024], 1)
    return 2048 * 1024 * dim / max(time.perf_counter() - started, 1e-9)


@numba.njit(cache=True, nogil=True)
def _summarise(keys, labels, weights, means, nearest):  # type: ignore[no-untyped-def]
    """Fill in the weighted mean of every cluster and the member nearest to it; of equals the first."""
    total = np.zeros(len(means))
    for i in range(len(keys)):
        total[labels[i]] += weights[i]
        for d in range(keys.shape[1]):
            means[labels[i], d] += weights[i] * np.float64(keys[i, d])
    for c in range(len(means)):
        if total[c] > 0:
            means[c] /= total[c]
    best = np.full(len(means), np.inf)
    for i in range(len(keys)):
        c = labels[i]
        distance = 0.0
        for d in range(keys.shape[1]):
            difference = keys[i, d] - means[c, d]
            distance += difference * difference
        if distance < best[c]:
            best[c] = distance
            nearest[c] = i
