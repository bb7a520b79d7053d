"""Rank-based pruning: records that are rarely, or only distantly, anyone's neighbour are dropped.

A record's score is g = Σ 1/rank over the searches for all records of the store that find it.
"""

import time

import numba
import numpy as np

from nearlm.base import ArrayFile, Doubles, FileInfo, Job, Json, duration, files, read_if_there, write_record
from nearlm.search import PAPER_K
from nearlm.shrink.neighbors import KeptArray, SelfSearch
from nearlm.shrink.options import PruneOptions
from nearlm.shrink.selection import Selection, target
from nearlm.store import DEFAULT, Derivation

RANKS_SAVE_SECONDS = 30.0


def select(work: Derivation, options: PruneOptions) -> Selection:
    """Keep the records with the highest scores; of equal ones the first."""
    g = _scores(work, options)
    best = np.argsort(-g, kind="stable")[: target(options.keep or 1.0, len(g))]
    return Selection.of_survivors(np.sort(best), len(g), {})


def _scores(work: Derivation, options: PruneOptions) -> Doubles:
    """Return the scores that were kept beside the index, if they are whole and of the same searches, or new ones."""
    search = SelfSearch(work.parent, options.index or DEFAULT, work.job.folder / "search")
    k = min(options.k or PAPER_K, len(work.parent))
    place = search.place
    file = ArrayFile(place.ranks, np.dtype("float64"), (len(work.parent),))
    of: Json = {**search.depends_on, "k": k, "count_self": options.count_self}
    known = read_if_there(KeptArray, place.ranks_description)
    if known and known.of == of and file.sound and FileInfo.of(file.path) == known.file:
        return np.array(file.open())
    g = _compute(work, search, k, options.count_self)
    with files.lock(place.folder):
        files.remove(place.ranks_description)
        file.write(g)
        write_record(place.ranks_description, KeptArray(of, FileInfo.of(file.path)))
    return g


def _compute(work: Derivation, search: SelfSearch, k: int, count_self: bool) -> Doubles:
    """Search for every record and add up 1/rank; the sums are noted now and then."""
    records = len(work.parent)
    done = work.job.read("rank", dict[str, int]).get("searched", 0)
    g = np.zeros(records)
    if done:
        file = _file(work.job, done, records)
        file.check()
        g += file.open()
    if not done:
        work.reporter.say(f"searching for {k} neighbours of every record takes about {duration(search.seconds)}")
    noted = time.monotonic()
    with work.reporter.bar("ranking", records, "records", done) as advance:
        for start in range(done, records, search.starts.step):
            ids = search.block(start, k)
            _add_ranks(ids, start, count_self, g)
            advance(len(ids))
            searched = start + len(ids)
            if time.monotonic() - noted >= RANKS_SAVE_SECONDS or searched == records:
                _file(work.job, searched, records).write(g)
                work.job.note("rank", {"searched": searched})
                if done:
                    files.remove(_file(work.job, done, records).path)
                done = searched
                noted = time.monotonic()
    return g


def _file(job: Job, searched: int, records: int) -> ArrayFile:
    return ArrayFile(job.folder / f"rank-{searched}.npy", np.dtype("float64"), (records,))


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
