"""Part of the lists of one index: which lists it has, the search in them on a worker, and what it answers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numba
import numpy as np

from nearlm import __version__
from nearlm.base import Floats, Ids, Int32s, Ints, StoreError
from nearlm.cluster.session import ClusterError, on_a_worker
from nearlm.search import open_index, read_index_info
from nearlm.search.few_queries import FewScan
from nearlm.search.scan import Lists, ListScan
from nearlm.store import Datastore


@dataclass(frozen=True)
class Place:
    """Which part of which index: lists `first` to `stop` of an index of a store, in the state that is meant."""

    store: str
    index: str
    manifest: str
    first: int
    stop: int
    threads: int
    version: str


class Answer(NamedTuple):
    """Neighbours of n queries in a part, one query after the other: distances, ids, and how many of each list asked.

    Those of a query come in the order of its lists, and of a list's records.
    """

    distances: Floats
    ids: Ids
    counts: Int32s


def cut_lists(offsets: Ints, parts: int) -> Ints:
    """Return where parts of about equally many records begin, in whole lists that follow each other, and the end."""
    wanted = np.arange(1, parts) * (int(offsets[-1]) / parts)
    inside = np.searchsorted(offsets, wanted)
    return np.concatenate(([0], np.minimum(inside, len(offsets) - 1), [len(offsets) - 1])).astype(np.int64)


class PartScan(ListScan):
    """Searches some of an index's lists, which are in memory; what it finds are places in them."""

    def __init__(self, index: Any, lists: Lists, first: int, stop: int):
        begin, end = lists.offsets[[first, stop]]
        self.ids = np.array(lists.ids[begin:end])
        places = np.arange(end - begin, dtype=np.int32)
        offsets = lists.offsets[first : stop + 1] - begin
        codec = _with_lists(index, first, stop)
        columns: list[Any] = [offsets, places, np.array(lists.codes[begin:end]), np.array(lists.bias[begin:end])]
        for column in columns:
            column.flags.writeable = False  # as mapped files are: one type for the kernels
        super().__init__(codec, Lists(*columns))
        self.means = None  # which lists are searched is said by others
        self._few = FewScan(self)

    def answer(self, queries: Floats, probed: Ints, k: int) -> Answer:
        """Return up to k neighbours of each query in the lists that it asks for, counted from the part's first."""
        queries, probed = np.array(queries), np.array(probed)  # what has travelled cannot be written to
        distances, places = self.search_lists(queries, probed, k, ordered=False)
        counts = np.zeros(probed.shape, np.int32)
        _count(places, self.lists.offsets, probed, counts)
        found = places >= 0
        return Answer(distances[found], self.ids[places[found]], counts)


def _with_lists(index: Any, first: int, stop: int) -> Any:
    """Return a FAISS index with some of another's lists, which are empty, and its codec."""
    centroids = faiss.IndexFlatL2(index.d)
    centroids.add(index.quantizer.reconstruct_n(int(first), int(stop - first)))
    codec = faiss.IndexIVFScalarQuantizer(
        centroids, index.d, int(stop - first), index.sq.qtype, faiss.METRIC_L2, index.by_residual
    )
    faiss.copy_array_to_vector(faiss.vector_to_array(index.sq.trained), codec.sq.trained)
    codec.is_trained = True
    return codec


@numba.njit(cache=True, nogil=True)
def _count(places, offsets, probed, counts):  # type: ignore[no-untyped-def]
    """Count the neighbours of each list that a query asked for; they come list by list."""
    for i in range(len(places)):
        probe = 0
        for place in places[i]:
            if place < 0:
                break
            while probed[i, probe] < 0 or not offsets[probed[i, probe]] <= place < offsets[probed[i, probe] + 1]:
                probe += 1
            counts[i, probe] += 1


class ListPart:
    """An actor that holds a part; it reads its files when it is first asked, also after Ray has restarted it."""

    def __init__(self, place: Place):
        self.place = place

    def load(self) -> int:
        """Read the part's files; return how many records it has."""
        with on_a_worker():
            return len(self._scan.ids)

    def answer(self, queries: Floats, probed: Ints, k: int) -> Answer:
        """Search the part."""
        with on_a_worker():
            return self._scan.answer(queries, probed, k)

    @cached_property
    def _scan(self) -> PartScan:
        place = self.place
        if place.version != __version__:
            raise ClusterError(f"nearlm is {__version__} here and {place.version} where it was started")
        numba.set_num_threads(min(place.threads, numba.config.NUMBA_NUM_THREADS))
        if not Path(place.store).is_dir():
            raise ClusterError(f"{place.store} is not there; a store must be at the same path on every machine")
        store = Datastore.open(place.store)
        if read_index_info(store, place.index).manifest != place.manifest:
            raise StoreError(f"{place.store} has changed since index {place.index!r} was served; serve it again")
        index, _ = open_index(store, place.index, unread=True)
        assert index.scan is not None
        return PartScan(index.faiss, index.scan.lists, place.first, place.stop)
