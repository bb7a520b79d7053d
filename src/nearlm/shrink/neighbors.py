"""The neighbours of every record of a store among its own records, from one of its indexes.

What such a search gives is kept beside the index, since it takes far longer than all else: merging keeps the neighbours
themselves, which serve every smaller number of them, ranking its scores, which serve every share to keep.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearlm.base import ArrayFile, Int32s, Ints, Job, Json, OptionError, Pieces, check_before_use, files
from nearlm.base.progress import Reporter, duration, size
from nearlm.base.records import FileInfo, check_files, read_if_there, to_json, write_record
from nearlm.search import PAPER_K, build_index, open_index, read_index_info
from nearlm.store import Datastore, IndexFiles, check_ids

SEARCH_BLOCK = 1 << 13


@dataclass(frozen=True)
class KeptArray:
    """What is known of an array beside an index: what it depends on, its file, and the neighbours of a record."""

    of: Json
    file: FileInfo
    k: int = 0


def ready_index(store: Datastore, name: str, reporter: Reporter) -> Json:
    """Make the index, or bring it up to date, if need be; return what tells it from another.

    One that is ready is left alone: its store may be one that can only be read.
    """
    ready = name in store.indexes and not Job(store.layout.index(name).folder, "index").started
    info = read_index_info(store, name) if ready else None
    if info is None or info.manifest != store.checksum:
        info = build_index(store, name=name, reporter=Reporter(quiet=reporter.quiet or name in store.indexes))
    return {"index": to_json(info.files), "nprobe": info.spec.nprobe}


def index_ram(store: Datastore, name: str) -> float:
    """Return how many bytes of RAM an index takes that is ready, and a block of searches in it."""
    return read_index_info(store, name).held_bytes + 12 * SEARCH_BLOCK * PAPER_K


class SelfSearch:
    """Searches in one of a store's indexes for the store's own records, block by block.

    What it finds is kept beside the index, or, where that may only be read, in a spare folder.
    """

    def __init__(self, store: Datastore, name: str, spare: Path | None = None):
        self.store = store
        self.place = store.layout.index(name)
        if spare is not None and not _may_write(self.place.folder):
            spare.mkdir(exist_ok=True)
            self.place = IndexFiles(spare)
        self.index, self.info = open_index(store, name)
        self.starts = range(0, len(store), SEARCH_BLOCK)
        self.sizes = [min(SEARCH_BLOCK, len(store) - start) for start in self.starts]
        made_from = {"manifest": store.checksum, "index": to_json(self.info.files)}
        self.depends_on: Json = {**made_from, "nprobe": self.index.nprobe}
        self.seconds = len(store) / self.info.queries_per_second  # about, for all, by what was measured with the index

    def block(self, start: int, k: int) -> Ints:
        """Return the k nearest records of one block of records, [block, k], as the index gives them."""
        return self.index.search(self.store.keys[start : start + SEARCH_BLOCK].astype(np.float32), k)[1]


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def saved_neighbors(store: Datastore, name: str, k: int, reporter: Reporter, spare: Path | None = None) -> Int32s:
    """Return at least the k nearest records of every record, [records, k or more], from disk or from a search."""
    if len(store) > np.iinfo(np.int32).max:
        raise OptionError(f"{store.path} has {len(store):,} records, merging takes up to 2^31 - 1; reduce it first")
    search = SelfSearch(store, name, spare)
    k = min(k, search.index.records)
    with files.lock(search.place.folder):
        known = read_if_there(KeptArray, search.place.neighbors_description)
        if known and known.of == search.depends_on and known.k >= k and _file(search, known.k).sound:
            k = known.k
            array = search.place.neighbors
            kept = _file(search, k)
            kept.check()
            check_before_use(
                array.parent,
                {array.name: known.file},
                _remedy(array),
                lambda: check_ids(kept.open(), array, -1, len(store), "ids of records"),
            )
        else:
            _search(search, k, reporter)
        _job(search).close()
        return _file(search, k).open()


def _search(search: SelfSearch, k: int, reporter: Reporter) -> None:
    """Search for every record, block by block, resuming after a kill, and keep the neighbours."""
    place = search.place
    file = _file(search, k)
    job = _job(search)
    plan = {"of": search.depends_on, "k": k}
    if not job.resumes(plan):
        files.remove(place.neighbors_description)
        job.begin(plan)
        files.remove(file.path)  # a merge that still reads it keeps what it has open
    records = len(search.store)
    done = job.count_done("fill", search.sizes)
    reporter.say(
        f"searching for {k} neighbours of every record takes about {duration(search.seconds)} "
        f"and {size(file.bytes)} of disk, kept beside the index"
    )

    def compute(number: int) -> Pieces:
        start = search.starts[number]
        found = np.full((search.sizes[number], k), -1, np.int32)
        ids = search.block(start, k)
        found[:, : ids.shape[1]] = ids
        yield "ids", start, found

    began = time.monotonic()
    with reporter.bar("searching", records, "records", done) as advance:
        job.fill("fill", {"ids": file}, search.sizes, compute, advance)
    speed = (records - done) / max(time.monotonic() - began, 1e-9)
    reporter.say(f"searched {records - done:,} records at {speed:,.0f} records/s")
    write_record(place.neighbors_description, KeptArray(search.depends_on, FileInfo.of(file.path), k))


def _job(search: SelfSearch) -> Job:
    return Job(search.place.folder, "neighbors")


def verify_neighbors(store: Datastore, name: str) -> None:
    """Read every byte of the neighbours and ranks kept beside an index; refuse the first that is not as written."""
    place = store.layout.index(name)
    kept = {place.neighbors: place.neighbors_description, place.ranks: place.ranks_description}
    for array, description in kept.items():
        known = read_if_there(KeptArray, description)
        if known:
            check_files(place.folder, {array.name: known.file}, _remedy(array), every_byte=True)


def _remedy(array: Path) -> str:
    return f"remove it and {array.stem}.json beside it"


def _file(search: SelfSearch, k: int) -> ArrayFile:
    return ArrayFile(search.place.neighbors, np.dtype("int32"), (len(search.store), k))
