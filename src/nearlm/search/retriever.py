"""Queries → neighbours: search an index, look up tokens and weights, and re-score with the stored keys if asked."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import faiss
import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import Json, OptionError, Reporter, size, to_json
from nearlm.search.index import open_index
from nearlm.search.kinds import PAPER_K
from nearlm.search.rescoring import Rescorer
from nearlm.store import DEFAULT, Datastore, SearchSettings, open_parent, parent_records


class Neighbors(NamedTuple):
    """The neighbours of n queries, [n, k] each, nearest first: squared distances, tokens, weights, record ids.

    Where there are fewer than k, distance inf, token -1, weight 0 and id -1 fill the row. `weights` is None when
    every record weighs 1.
    """

    distances: npt.NDArray[np.float32]
    tokens: npt.NDArray[np.int32]
    weights: npt.NDArray[np.int32] | None
    ids: npt.NDArray[np.integer[Any]]


class Retriever:
    """Searches one index of a store."""

    def __init__(
        self,
        store: Datastore,
        index: str = DEFAULT,
        *,
        nprobe: int | None = None,
        distances: str = "index",
        threads: int | None = None,
    ):
        SearchSettings(nprobe=nprobe, distances=distances)  # refuses what makes no sense
        if threads is not None and threads < 1:
            raise OptionError(f"--threads is {threads}, expected at least 1")
        self.store = store
        self.name = index
        self.distances = distances
        self.threads = threads
        self.index, self.info = open_index(store, index)
        if nprobe is not None:
            if self.index.nprobe is None:
                raise OptionError(
                    f"index {index!r} ({self.index.spec.factory}) has no lists, so --nprobe means nothing"
                )
            self.index.set_nprobe(nprobe)
        self._exact = open_parent(store) if distances == "parent" else store
        self._exact_ids = parent_records(store, self._exact) if distances == "parent" else None
        self._rescorer = Rescorer(self._exact.keys) if distances != "index" else None
        self._values = self._column("values")
        self._weights = self._column("weights") if store.weighted else None

    @classmethod
    def open(cls, store: Datastore, settings: SearchSettings) -> "Retriever":
        """Open the index that settings name, to be searched as they say."""
        distances = settings.distances or "index"
        return cls(store, settings.index or DEFAULT, nprobe=settings.nprobe, distances=distances)

    @property
    def settings(self) -> SearchSettings:
        """What a search depends on beside k: the index, how many lists are looked at, which distances are returned."""
        return SearchSettings(index=self.name, nprobe=self.index.nprobe, distances=self.distances)

    @property
    def bytes(self) -> int:
        """The size of the index's files."""
        return self.info.bytes

    @property
    def max_k(self) -> int:
        """The most neighbours that a search returns."""
        return len(self.store)

    def used_k(self, k: int | None = None) -> int:
        """Return how many neighbours a search for k returns: the paper's 1024 unless told, at most all there are."""
        return min(k or PAPER_K, self.max_k)

    @property
    def nested(self) -> bool:
        """Whether the neighbours of a smaller k are the first of a larger one's: not after re-scoring."""
        return self.distances == "index"

    def search(
        self, queries: npt.NDArray[np.floating[Any]], k: int | None = None, *, ordered: bool = True
    ) -> Neighbors:
        """Return the k nearest neighbours of queries as the LM gives them, [n, store.query_dim].

        They come nearest first, unless the order does not matter.
        """
        if k is not None and k < 1:
            raise OptionError(f"--k is {k}, expected at least 1")
        with self._threads():
            D, ids = self.index.search(self.store.project(queries), self.used_k(k), ordered=ordered)
            if self.distances != "index":
                D, ids = self._rescored(self._exact.project(queries), ids, ordered)
        return self.neighbors(D, ids)

    def neighbors(self, distances: npt.NDArray[np.float32], ids: npt.NDArray[np.integer[Any]]) -> Neighbors:
        """Look up the tokens and weights of what a search found."""
        real = ids >= 0
        tokens = np.where(real, self._values[ids], np.int32(-1))
        weights = None if self._weights is None else np.where(real, self._weights[ids], np.int32(0))
        return Neighbors(np.where(real, distances, np.float32(np.inf)), tokens, weights, ids)

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
        }

    def _rescored(
        self, queries: npt.NDArray[np.float32], ids: npt.NDArray[np.int64], ordered: bool
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Replace the index's distances by true ones, and sort anew if the order matters."""
        assert self._rescorer
        there = ids if self._exact_ids is None else np.where(ids < 0, -1, self._exact_ids[ids])
        D = self._rescorer.distances(queries, there)
        if not ordered:
            return D, ids
        order = np.argsort(D, axis=1, kind="stable")
        return np.take_along_axis(D, order, 1), np.take_along_axis(ids, order, 1)

    def _column(self, name: str) -> npt.NDArray[np.int32]:
        data = self.store.layout.index(self.name).data(self.info.data)
        return data.column(name, len(self.store)).open()

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        if self.threads is None:
            yield
            return
        openmp = faiss.omp_get_max_threads()
        compiled = numba.get_num_threads()
        faiss.omp_set_num_threads(self.threads)
        numba.set_num_threads(min(self.threads, numba.config.NUMBA_NUM_THREADS))
        try:
            yield
        finally:
            faiss.omp_set_num_threads(openmp)
            numba.set_num_threads(compiled)
