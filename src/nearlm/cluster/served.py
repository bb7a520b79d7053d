"""Searches in an index that is served in parts: every query asks the parts that hold its lists, and merges."""

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np

from nearlm.base import Floats, Ids, Ints, NearLMWarning, Reporter, blocks
from nearlm.cluster.list_part import Answer, cut_lists
from nearlm.cluster.serving import find_served
from nearlm.cluster.session import NAMESPACE, ClusterError, SearchOn, joined, reason
from nearlm.search import IndexInfo, SearchIndex, open_index
from nearlm.search.nearest import write_nearest
from nearlm.search.retriever import indexes_from
from nearlm.search.scan import QUERIES, Found, ListScan
from nearlm.store import Datastore

PATIENCE = 5.0  # seconds that a replica has before another is asked too
_GIVE_UP = 600.0  # seconds
_PAUSE = 0.5  # seconds between questions to a part that does not answer
_AVOIDED = 30.0  # seconds for which a replica that failed is asked last


class Question(NamedTuple):
    """What a part is asked: some of the queries, and which of its lists each looks at."""

    part: int
    rows: Ints
    queries: Floats
    probed: Ints


class Asked(Protocol):
    """Somebody who holds a part: is asked, and answers later."""

    def ask(self, question: Question, k: int) -> Any:
        """Begin to search."""

    def get(self, question: Question, k: int, asked: Any, *, wait: bool) -> Answer | None:
        """Return the answer; without `wait` None if there is none soon."""


class ServedScan(ListScan):
    """Finds lists here and has them searched by the parts of a served index: the same neighbours in the same order."""

    def __init__(self, index: SearchIndex, parts: "Sequence[Asked]", *, allow_partial: bool = False):
        assert index.scan is not None
        super().__init__(index.faiss, index.scan.lists, index.scan.coarse)
        self.bounds = cut_lists(self.lists.offsets, len(parts))
        self.records = np.diff(self.lists.offsets[self.bounds])  # of each part
        self.bytes = 0  # that answers had so far
        self._parts = parts
        self._allow_partial = allow_partial
        self._silent: set[int] = set()
        self._asked = self._searched = 0.0

    @property
    def searched(self) -> float:  # type: ignore[override]
        """The share of the records that were there to be searched, on average over all queries so far."""
        return self._searched / self._asked if self._asked else 1.0

    def search(self, queries: Floats, k: int, nprobe: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids, [n, k], as the whole index would."""
        nprobe = min(nprobe, len(self.lists.offsets) - 1)
        distances = np.full((len(queries), k), np.inf, np.float32)
        ids = np.full((len(queries), k), -1, np.int64)
        for part in blocks(len(queries), QUERIES):
            probed = self.probe(queries[part], nprobe)
            questions = self.ask_for(queries[part], probed)
            answers = self._ask(questions, k)
            self._note(len(probed), {one.part for one, answer in zip(questions, answers, strict=True) if not answer})
            merge(questions, answers, probed.shape, ordered, distances[part], ids[part])
        return distances, ids

    def ask_for(self, queries: Floats, probed: Ints) -> list[Question]:
        """Say what each part is to be asked, for queries that look at these lists."""
        owner = np.searchsorted(self.bounds, probed, side="right") - 1
        owner[probed < 0] = -1
        found = []
        for part in np.unique(owner[owner >= 0]).tolist():
            rows = np.flatnonzero((owner == part).any(1))
            own = np.where(owner[rows] == part, probed[rows] - self.bounds[part], -1)
            found.append(Question(part, rows, np.ascontiguousarray(queries[rows]), own))
        return found

    def _ask(self, questions: Sequence[Question], k: int) -> list[Answer | None]:
        """Ask all parts at once, and those that do not answer again; None is given for them only if that is allowed."""
        asked = [self._parts[one.part].ask(one, k) for one in questions]
        answers = []
        for one, reference in zip(questions, asked, strict=True):
            answer = self._parts[one.part].get(one, k, reference, wait=not self._allow_partial)
            self.bytes += sum(column.nbytes for column in answer) if answer else 0
            answers.append(answer)
        return answers

    def _note(self, queries: int, silent: set[int]) -> None:
        """Keep count of what was searched, and say so when a part is lost, or is there again."""
        share = 1 - float(self.records[sorted(silent)].sum()) / max(1, int(self.records.sum()))
        self._asked += queries
        self._searched += queries * share
        if silent != self._silent:
            self._silent = silent
            lost = ", ".join(str(part + 1) for part in sorted(silent))
            said = f"part {lost} of {len(self._parts)} does not answer" if silent else "all parts answer again"
            warnings.warn(f"{said}: {share:.1%} of the records are searched", NearLMWarning, stacklevel=4)


class Replicas:
    """The actors that hold the same part: one is asked after the other, and those that failed lately last."""

    def __init__(self, ray: Any, names: Sequence[str], part: int):
        self._ray = ray
        self._actors = [ray.get_actor(name, namespace=NAMESPACE) for name in names]
        self._failed = [float("-inf")] * len(names)
        self._part = part
        self._turn = 0

    def ask(self, question: Question, k: int) -> tuple[int, Any]:
        """Ask the replica whose turn it is; return which that is, and a reference to its answer."""
        self._turn += 1
        order = [(self._turn + step) % len(self._actors) for step in range(len(self._actors))]
        well = [one for one in order if time.monotonic() - self._failed[one] > _AVOIDED]
        one = (well or sorted(order, key=lambda each: self._failed[each]))[0]
        return one, self._actors[one].answer.remote(question.queries, question.probed, k)

    def get(self, question: Question, k: int, asked: tuple[int, Any], *, wait: bool) -> Answer | None:
        """Return the answer, of another replica if need be; without `wait` None if none answers soon."""
        began = time.monotonic()
        said = False
        for tries in range(1, 1 << 30):
            answer = self._try(*asked)
            if answer is not None:
                return answer
            if tries >= len(self._actors):
                if not wait:
                    return None
                if time.monotonic() - began > _GIVE_UP:
                    raise ClusterError(f"part {self._part + 1} of the index did not answer for {_GIVE_UP:.0f} s")
                if not said:
                    said = True
                    warnings.warn(f"part {self._part + 1} does not answer; waiting for it", NearLMWarning, stacklevel=4)
                time.sleep(_PAUSE)
            asked = self.ask(question, k)
        return None

    def _try(self, one: int, reference: Any) -> Answer | None:
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(reference, timeout=PATIENCE)
        except errors.RayTaskError as error:
            raise reason(error) from None
        except (errors.RayError, TimeoutError):
            self._failed[one] = time.monotonic()
            return None
        self._failed[one] = float("-inf")
        return Answer(*answer)


def merge(
    questions: Sequence[Question],
    answers: Sequence[Answer | None],
    shape: tuple[int, ...],
    ordered: bool,
    distances: Floats,
    ids: Ids,
) -> None:
    """Write the nearest of what parts found, [n, k], as one search of all lists [n, nprobe] finds them.

    Each part's neighbours lie in the order of the lists, so that of equally near ones those come first that one search
    would meet first.
    """
    begins = np.zeros(shape, np.int64)
    counts = np.zeros(shape, np.int64)
    there = [(one, answer) for one, answer in zip(questions, answers, strict=True) if answer is not None]
    first = 0
    for one, answer in there:
        ends = first + np.cumsum(answer.counts.ravel(), dtype=np.int64).reshape(answer.counts.shape)
        begins[one.rows] = np.where(answer.counts > 0, ends - answer.counts, begins[one.rows])
        counts[one.rows] += answer.counts
        first += len(answer.ids)
    if first:
        near = np.concatenate([answer.distances for _, answer in there])
        found = np.concatenate([answer.ids for _, answer in there])
        _merge_kernel(near, found, begins, counts, ordered, distances, ids)


@numba.njit(cache=True, parallel=True, nogil=True)
def _merge_kernel(near, found, begins, counts, ordered, distances, ids):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(ids)):
        kept = counts[i].sum()
        values = np.empty(kept, np.float32)
        places = np.empty(kept, np.int64)
        at = 0
        for probe in range(counts.shape[1]):
            for j in range(begins[i, probe], begins[i, probe] + counts[i, probe]):
                values[at] = near[j]
                places[at] = j
                at += 1
        write_nearest(values, places, found, ordered, distances[i], ids[i])


def open_served(
    ray: Any, store: Datastore, name: str, *, allow_partial: bool = False
) -> tuple[SearchIndex, IndexInfo] | None:
    """Open an index that is served on this Ray as `open_index` does; None if it is not."""
    served = find_served(ray, store, name)
    if served is None:
        return None
    index, info = open_index(store, name, unread=True)
    parts = [
        Replicas(ray, [served.name_of(part, one) for one in range(served.replicas)], part)
        for part in range(served.parts)
    ]
    scan = ServedScan(index, parts, allow_partial=allow_partial)
    return SearchIndex(index.spec, index.transform, index.faiss, scan), info


@contextlib.contextmanager
def searching_on(where: SearchOn, reporter: Reporter, *stores: Datastore) -> Iterator[None]:
    """Let everything that is opened in a `with` block search indexes that are served on Ray, if that is wished.

    At least one index of each store must be served; others, e.g. those of stores that are made, are opened here.
    """
    if where.ray is None:
        yield
        return
    with joined(where.ray) as ray:
        for store in stores:
            store.refuse_forgotten("which a served index would find")
            names = [name for name in store.indexes if find_served(ray, store, name)]
            if not names:
                raise ClusterError(
                    f"no index of {store.path} is served on this Ray; start it with: nearlm serve-index {store.path}"
                )
            reporter.say(f"{store.path}: searching {', '.join(map(repr, names))} on Ray")

        def find(store: Datastore, name: str) -> tuple[SearchIndex, IndexInfo] | None:
            return open_served(ray, store, name, allow_partial=where.allow_partial)

        with indexes_from(find):
            yield
