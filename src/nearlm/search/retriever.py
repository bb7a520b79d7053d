"""Queries → neighbours: search an index, look up tokens and weights, and re-score with the stored keys if asked."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numba
import numpy as np

from nearlm.base import Json, OptionError, Reporter, check_at_least, size, to_json
from nearlm.base.arrays import FEW, Floats, Ids, Int32s, Reals
from nearlm.search.index import IndexInfo, open_index
from nearlm.search.kinds import PAPER_K, code_bits
from nearlm.search.rescoring import Rescorer
from nearlm.search.search_index import SearchIndex
from nearlm.store import DEFAULT, Datastore, SearchSettings, open_parent, parent_records

OpenIndex = Callable[[Datastore, str], tuple[SearchIndex, IndexInfo] | None]
_elsewhere: list[OpenIndex] = []


@contextlib.contextmanager
def indexes_from(elsewhere: OpenIndex) -> Iterator[None]:
    """Let retrievers that are opened in a `with` block search indexes that are open elsewhere, where it has them."""
    _elsewhere.append(elsewhere)
    try:
        yield
    finally:
        _elsewhere.remove(elsewhere)


class Neighbors(NamedTuple):
    """The neighbours of n queries, [n, k] each, nearest first: squared distances, tokens, weights, record ids.

    Where there are fewer than k, distance inf, token -1, weight 0 and id -1 fill the row. `weights` is None when
    every record weighs 1.
    """

    distances: Floats
    tokens: Int32s
    weights: Int32s | None
    ids: Ids


class Retriever:
    """Searches one index of a store."""

    def __init__(self, store: Datastore, index: str = DEFAULT, *, nprobe: int | None = None, distances: str = "index"):
        SearchSettings(nprobe=nprobe, distances=distances)  # refuses invalid values
        self.store = store
        self.name = index
        self.distances = distances
        self.nested = distances == "index"  # whether the neighbours of a smaller k are the first of a larger one's
        self.max_k = len(store)  # the most neighbours that a search returns
        there = None
        if store.forgotten is not None:  # which indexes elsewhere know nothing of
            self.max_k -= store.forgotten.records
        else:
            there = next(filter(None, (find(store, index) for find in _elsewhere)), None)
        self.index, self.info = there or open_index(store, index)
        self.bytes = self.info.bytes
        if nprobe is not None and self.index.nprobe is None:
            raise OptionError(f"index {index!r} ({self.index.spec.factory}) has no lists, so `nprobe` has no effect")
        if nprobe is not None:
            self.index.set_nprobe(nprobe)
        self._exact = open_parent(store) if distances == "parent" else store
        self._exact_ids = parent_records(store, self._exact) if distances == "parent" else None
        self._rescorer = Rescorer(self._exact.keys) if distances != "index" else None
        data = store.layout.index(index).data(self.info.data)
        self._values: Ids = data.open_column("values", len(store))
        self._weights: Ids | None = data.open_column("weights", len(store)) if store.weighted else None

    @classmethod
    def open(cls, store: Datastore, settings: SearchSettings) -> "Retriever":
        """Open the index that settings name, to be searched as they say."""
        distances = settings.distances or "index"
        return cls(store, settings.index or DEFAULT, nprobe=settings.nprobe, distances=distances)

    def __repr__(self) -> str:
        return f"Retriever({self.store.path.name}: {self.info!r}, distances by the {self.distances})"

    @property
    def settings(self) -> SearchSettings:
        """What a search depends on beside k: the index, how many lists are looked at, which distances are returned."""
        return SearchSettings(index=self.name, nprobe=self.index.nprobe, distances=self.distances)

    @property
    def searched(self) -> float:
        """The share of the records that searches looked in so far: 1 unless parts of the index do not answer."""
        return self.index.scan.searched if self.index.scan else 1.0

    def used_k(self, k: int | None = None) -> int:
        """Return how many neighbours a search for k returns: the paper's 1024 unless told, at most all there are."""
        return min(k or PAPER_K, self.max_k)

    def search(self, queries: Reals, k: int | None = None, *, ordered: bool = True) -> Neighbors:
        """Return the k nearest neighbours of queries as the LM gives them, [n, store.query_dim].

        They come nearest first, unless the order does not matter.
        """
        check_at_least(1, k=k)
        D, ids = self.index.search(self.store.project(queries), self.used_k(k), ordered=ordered)
        if self._rescorer:
            there = ids if self._exact_ids is None else np.where(ids < 0, -1, self._exact_ids[ids])
            D = self._rescorer.distances(self._exact.project(queries), there)
        if self._rescorer and ordered:
            order = np.argsort(D, axis=1, kind="stable")
            D = np.take_along_axis(D, order, 1)
            ids = np.take_along_axis(ids, order, 1)
        return self.neighbors(D, ids)

    def neighbors(self, distances: Floats, ids: Ids) -> Neighbors:
        """Look up the tokens and weights of what a search found."""
        look_up = _look_up_few if len(ids) <= FEW else _look_up
        tokens = np.empty(ids.shape, np.int32)
        missing = look_up(ids, self._values, np.int32(-1), tokens)
        weights = None
        if self._weights is not None:
            weights = np.empty(ids.shape, np.int32)
            look_up(ids, self._weights, np.int32(0), weights)
        if missing:
            distances = np.where(ids >= 0, distances, np.float32(np.inf))
        return Neighbors(distances, tokens, weights, ids)

    def announce(self, reporter: Reporter) -> None:
        """Say what the index needs."""
        held = self.info.held_bytes
        reporter.say(f"index {self.name!r}: {size(held)} in RAM, {size(self.bytes - held)} mapped from disk")

    def describe(self) -> Json:
        """Say what a search depends on."""
        return {
            "store": self.store.checksum,
            "index": to_json(self.info.files),
            "nprobe": self.index.nprobe,
            "distances": self.distances,
            **({"queries": "8 bits"} if code_bits(self.index.spec) == 4 else {}),  # once they were finer
        }


@numba.njit(cache=True, parallel=True, nogil=True)
def _look_up(ids, column, missing, out):  # type: ignore[no-untyped-def]
    count = 0
    for i in numba.prange(len(ids)):
        count += _look_up_row(ids[i], column, missing, out[i])
    return count


@numba.njit(cache=True, nogil=True)
def _look_up_few(ids, column, missing, out):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(len(ids)):
        count += _look_up_row(ids[i], column, missing, out[i])
    return count


@numba.njit(cache=True)
def _look_up_row(ids, column, missing, out):  # type: ignore[no-untyped-def]
    """Write what a column has for some ids; return how many are -1."""
    count = 0
    for j in range(len(ids)):
        out[j] = column[ids[j]] if ids[j] >= 0 else missing
        count += ids[j] < 0
    return count
