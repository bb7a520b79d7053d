"""Rank-based pruning: records that are rarely, or only distantly, anyone's neighbour are dropped.

A record's score is g = Σ 1/rank over the searches for all records of the store that find it. Scores, not neighbours,
are kept beside the index (`ranks.npy`, `ranks.json`): they serve every other share to keep.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, Job, Json, OptionError, Reporter, duration, files
from nearlm.search import DEFAULT, PAPER_K, index_folder, open_index
from nearlm.shrink.neighbors import index_ram, made_from, ready_index, search_seconds, streamed_neighbors
from nearlm.shrink.selection import Selection, Work, check_keep, target
from nearlm.store import Datastore, describe

CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class RankOptions:
    """Which share stays, and how scores are computed: from k neighbours as the index returns them."""

    keep: float
    k: int = PAPER_K
    count_self: bool = False
    index: str = DEFAULT

    def __post_init__(self) -> None:
        check_keep(self.keep)
        if self.k < 2:
            raise OptionError(f"--k is {self.k}, expected at least 2 (the record itself is one)")

    def prepare(self, store: Datastore, reporter: Reporter) -> Json:
        """Make the index if it is missing."""
        return ready_index(store, self.index, reporter.quiet)

    def ram(self, store: Datastore) -> float:
        """Return what the index and a block of searches take."""
        return index_ram(store, self.index)


def select(work: Work, options: RankOptions) -> Selection:
    """Keep the records with the highest scores; of equal ones the first."""
    g = _known_scores(work.store, options)
    if g is None:
        g = _scores(work, options)
        _keep_scores(work.store, options, g)
    best = np.argsort(-g, kind="stable")[: target(options.keep, len(g))]
    return Selection.of_survivors(np.sort(best), len(g), {})


def _known_scores(store: Datastore, options: RankOptions) -> npt.NDArray[np.float64] | None:
    """Return the scores that were kept beside the index, if they are whole and of the same searches."""
    about, file = _beside(store, options.index)
    if not about.exists():
        return None
    noted = files.read_stamped(about)
    if noted["of"] != _searches(store, options) or not file.sound or describe(file.path) != noted["file"]:
        return None
    return np.array(file.open())


def _keep_scores(store: Datastore, options: RankOptions, g: npt.NDArray[np.float64]) -> None:
    about, file = _beside(store, options.index)
    with files.lock(about.parent):
        files.remove(about)
        files.write_bytes(file.path, file.header + g.tobytes())
        files.write_stamped(about, {"of": _searches(store, options), "file": describe(file.path)})


def _beside(store: Datastore, index: str) -> tuple[Path, ArrayFile]:
    folder = index_folder(store, index)
    return folder / "ranks.json", ArrayFile(folder / "ranks.npy", np.dtype("float64"), (len(store),))


def _searches(store: Datastore, options: RankOptions) -> Json:
    made = made_from(store, *open_index(store, options.index))
    return {**made, "k": min(options.k, len(store)), "count_self": options.count_self}


def _scores(work: Work, options: RankOptions) -> npt.NDArray[np.float64]:
    """Search for every record and add up 1/rank; the sums are noted now and then."""
    store, job = work.store, work.job
    index, described = open_index(store, options.index)
    k = min(options.k, index.records)
    state = job.state("rank") or {"searched": 0}
    g = _read(job.folder, state["searched"], len(store))
    if not state["searched"]:
        work.reporter.say(
            f"searching for {k} neighbours of every record takes about {duration(search_seconds(store, described))}"
        )
    noted = time.monotonic()
    with work.reporter.bar("ranking", len(store), "records", state["searched"]) as advance:
        for start, ids in streamed_neighbors(store, index, k, state["searched"]):
            _add_ranks(ids, start, options.count_self, g)
            advance(len(ids))
            searched = start + len(ids)
            if time.monotonic() - noted >= CHECKPOINT_SECONDS or searched == len(store):
                _note(job, searched, g)
                noted = time.monotonic()
    return g


def _read(folder: Path, searched: int, records: int) -> npt.NDArray[np.float64]:
    return np.array(_file(folder, searched, records).open()) if searched else np.zeros(records)


def _note(job: Job, searched: int, g: npt.NDArray[np.float64]) -> None:
    file, before = _file(job.folder, searched, len(g)), job.state("rank").get("searched")
    files.write_bytes(file.path, file.header + g.tobytes())
    job.note("rank", {"searched": searched})
    if before:
        files.remove(_file(job.folder, before, len(g)).path)


def _file(folder: Path, searched: int, records: int) -> ArrayFile:
    return ArrayFile(folder / f"rank-{searched}.npy", np.dtype("float64"), (records,))


@numba.njit(cache=True, nogil=True)
def _add_ranks(ids, first, count_self, g):  # type: ignore[no-untyped-def]
    """Add 1/rank for every neighbour of some records; without `count_self` a record is not in its own list."""
    for row in range(len(ids)):
        rank = 0
        for t in ids[row]:
            if t < 0 or (t == first + row and not count_self):
                continue
            rank += 1
            g[t] += 1.0 / rank
