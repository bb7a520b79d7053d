"""Centroids of many lists in minutes: k-means in two levels, instead of one whose time is quadratic in the lists."""

import faiss
import numpy as np

from nearlm.base import Floats, Int32s, Ints

_ROUNDS = 8
_PER_CENTROID = 256  # points of a cluster that a split looks at, for each part


def two_level_centroids(keys: Floats, count: int, groups: int) -> tuple[Floats, Int32s]:
    """Return `count` centroids: so many clusters, each split by itself into its share of them; and whose each is.

    A cluster's share is that of its keys, so that lists become about equally long. Centroids lie cluster by cluster.
    """
    coarse = _cluster(keys, groups)
    _, nearest = faiss.knn(keys, coarse, 1)
    nearest = nearest[:, 0]
    shares = _share(np.bincount(nearest, minlength=len(coarse)), count)
    order = np.argsort(nearest, kind="stable")
    ends = np.cumsum(np.bincount(nearest, minlength=len(coarse)))
    parts = [
        _cluster(keys[order[begin:end]], int(share))
        for begin, end, share in zip(np.concatenate(([0], ends[:-1])), ends, shares, strict=True)
        if share
    ]
    filled = np.concatenate([np.full(len(part), number, np.int32) for number, part in enumerate(parts)])
    return np.concatenate(parts), filled


def _share(sizes: Ints, count: int) -> Ints:
    """Divide a number in proportion to sizes, by largest remainders; none gets more than its size."""
    exact = sizes * (count / sizes.sum())
    shares: Ints = np.minimum(exact.astype(np.int64), sizes)
    while shares.sum() < count:
        room = np.where(shares < sizes, exact - shares, -np.inf)
        missing = min(count - int(shares.sum()), int((shares < sizes).sum()))
        shares[np.argsort(-room, kind="stable")[:missing]] += 1
    return shares


def _cluster(keys: Floats, count: int) -> Floats:
    """Return the centroids of one k-means."""
    if count >= len(keys):
        return keys[:count]
    if count == 1:
        mean: Floats = keys.mean(axis=0, keepdims=True)
        return mean
    means = faiss.Kmeans(
        keys.shape[1], count, niter=_ROUNDS, seed=1, min_points_per_centroid=1, max_points_per_centroid=_PER_CENTROID
    )
    means.train(np.ascontiguousarray(keys))
    return np.asarray(means.centroids)
