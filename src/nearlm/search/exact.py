"""Exact search by brute force, and how an index compares with it."""

import time
from collections.abc import Callable

import faiss
import numpy as np

from nearlm.base import Floats, Ints, Reals, blocks
from nearlm.search.index import Measurement
from nearlm.search.kinds import PAPER_K
from nearlm.search.search_index import SearchIndex
from nearlm.store import Datastore

_BLOCK = 1 << 14
_QUERIES = 256
_SEED = 1
Transform = Callable[[Reals], Floats]


def measure(store: Datastore, index: SearchIndex, k: int = PAPER_K) -> Measurement:
    """Compare an index with exact search on a sample of the store's own keys, and time it."""
    count = min(_QUERIES, len(store))
    ids = np.sort(np.random.default_rng(_SEED).choice(len(store), count, replace=False))
    queries = store.keys.take(ids).astype(np.float32)
    k = min(k, len(store))
    index.search(queries, k)
    repeats = np.repeat(queries, 4, axis=0)
    started = time.perf_counter()
    index.search(repeats, k)
    seconds = time.perf_counter() - started
    distances, found = index.search(queries, k)
    recall = key_recall = _recall(found, exact_search(store, queries, k)[1])
    if index.transform is not None:
        recall = _recall(found, exact_search(store, queries, k, index.transform_keys)[1])
    real = found >= 0
    exact = _squared_distances(store, queries, found, index.transform_keys)
    error = np.abs(distances[real] - exact[real]) / np.maximum(exact[real], 1e-6)
    return Measurement(
        recall_at=k,
        recall=recall,
        key_recall=key_recall,
        distance_error=round(float(np.median(error)), 4),
        queries_per_second=round(len(repeats) / seconds, 1),
    )


def _recall(found: Ints, true: Ints) -> float:
    hits = sum(len(np.intersect1d(a[a >= 0], b)) for a, b in zip(found, true, strict=True))
    return round(hits / true.size, 4)


def _as_stored(keys: Reals) -> Floats:
    return keys.astype(np.float32)


def exact_search(store: Datastore, queries: Floats, k: int, transformed: Transform = _as_stored) -> tuple[Floats, Ints]:
    """Search by brute force over the stored keys, block by block."""
    queries = transformed(queries)
    distances = np.empty((len(queries), 0), np.float32)
    ids = np.empty((len(queries), 0), np.int64)
    for rows in blocks(len(store), _BLOCK):
        block = transformed(store.keys[rows])
        D, I = faiss.knn(queries, block, min(k, len(block)))  # noqa: E741
        distances = np.hstack([distances, D])
        ids = np.hstack([ids, I + rows.start])
        best = np.argsort(distances, axis=1, kind="stable")[:, :k]
        distances = np.take_along_axis(distances, best, 1)
        ids = np.take_along_axis(ids, best, 1)
    return distances, ids


def _squared_distances(store: Datastore, queries: Floats, ids: Ints, transformed: Transform) -> Floats:
    """Return the true squared distances of queries to stored keys, [n, k], in float32 differences; inf for id -1."""
    out = np.full(ids.shape, np.inf, np.float32)
    for row, (query, neighbours) in enumerate(zip(transformed(queries), ids, strict=True)):
        real = neighbours >= 0
        difference = transformed(store.keys.take(neighbours[real])) - query
        out[row, real] = np.einsum("ij,ij->i", difference, difference)
    return out
