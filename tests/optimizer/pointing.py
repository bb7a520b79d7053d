"""Points that nobody has measured."""

from nearlm.optimizer.points import Point, Setup
from nearlm.store import SearchSettings


def point(perplexity, microseconds, keep=1.0, dim=16, nprobe=8, k=1024):
    search = SearchSettings(nprobe=nprobe, k=k, knn_temperature=1.0, lam=0.5)
    return Point("", Setup(100, dim, 1000, 100, "Flat", search), keep, perplexity, microseconds)


def how(one):
    """What a point keeps, and how it is searched."""
    return one.keep, one.setup.dim, one.setup.search.nprobe, one.setup.search.k
