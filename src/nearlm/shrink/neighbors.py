"""The neighbours of every record of a store among its own records, from one of its indexes.

Merging keeps them beside the index (`neighbors.npy`, `neighbors.json`), since the search takes far longer than all
else and serves every smaller number of neighbours.
"""

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nearlm.base import (
    ArrayFile,
    Job,
    Json,
    OptionError,
    Pieces,
    Reporter,
    StoreError,
    duration,
    files,
    size,
)
from nearlm.search import PAPER_K, SearchIndex, build_index, index_folder, memory_needed, open_index
from nearlm.store import Datastore, describe

MOST = 101  # a record and the paper's 100 neighbours
SEARCH_BLOCK = 1 << 13
_ARRAY, _ABOUT, _JOB = "neighbors.npy", "neighbors.json", "neighbors"


def ready_index(store: Datastore, name: str, quiet: bool) -> Json:
    """Make the index, or bring it up to date, if need be; return what tells it from another."""
    described = build_index(store, name=name, quiet=quiet or name in store.indexes)
    return {"index": described["files"], "nprobe": described["spec"]["nprobe"]}


def index_ram(store: Datastore, name: str) -> float:
    """Return how many bytes of RAM an index takes that is ready, and a block of searches in it."""
    described = files.read_stamped(index_folder(store, name) / "index.json")
    return memory_needed(described)[0] + 12 * SEARCH_BLOCK * PAPER_K


def search_seconds(store: Datastore, described: Json) -> float:
    """Estimate how long it takes to search for every record, from what was measured when the index was made."""
    return len(store) / float(described["queries_per_second"])


def search_block(store: Datastore, index: SearchIndex, start: int, k: int) -> npt.NDArray[np.int64]:
    """Return the k nearest records of one block of records, [block, k], as the index gives them."""
    block = store.keys[start : start + SEARCH_BLOCK]
    return index.search(block.astype(np.float32), k)[1]


def saved_neighbors(store: Datastore, name: str, k: int, reporter: Reporter) -> npt.NDArray[np.int32]:
    """Return at least the k nearest records of every record, [records, k or more], from disk or from a search."""
    if len(store) > np.iinfo(np.int32).max:
        raise OptionError(f"{store.path} has {len(store):,} records, merging takes up to 2^31 - 1; reduce it first")
    index, described = open_index(store, name)
    k = min(k, index.records)
    folder = index_folder(store, name)
    of = made_from(store, index, described)
    with files.lock(folder):
        about = _about(store, name)
        if about.get("of") != of or about["k"] < k:
            about = _search(store, index, search_seconds(store, described), name, {"of": of, "k": k}, reporter)
        return _file(store, name, about["k"]).open()


def made_from(store: Datastore, index: SearchIndex, described: Json) -> Json:
    """Say what the searches for all records depend on."""
    return {"manifest": store.manifest["checksum"], "index": described["files"], "nprobe": index.nprobe}


def verify_neighbors(store: Datastore, name: str) -> None:
    """Read every byte of what was kept beside an index and refuse it if it is not as it was written."""
    about = _about(store, name)
    path = index_folder(store, name) / _ARRAY
    if about and (not path.is_file() or describe(path) != about["file"]):
        raise StoreError(f"{path} is damaged (its checksum differs); remove it and {_ABOUT} beside it")


def _search(store: Datastore, index: SearchIndex, seconds: float, name: str, plan: Json, reporter: Reporter) -> Json:
    """Search for every record, block by block, going on after a kill."""
    folder, k = index_folder(store, name), plan["k"]
    job, file = Job(folder, _JOB), _file(store, name, k)
    if not (job.started and job.plan() == plan):
        files.remove(folder / _ABOUT)
        job.begin(plan)
        files.remove(file.path)  # a merge that still reads it keeps what it has open
    starts = range(0, len(store), SEARCH_BLOCK)
    done = min(len(store), job.state("fill").get("batches", 0) * SEARCH_BLOCK)
    reporter.say(
        f"searching for {k} neighbours of every record takes about {duration(seconds)} "
        f"and {size(file.bytes)} of disk, kept beside the index"
    )

    def compute(number: int) -> Pieces:
        found = np.full((min(SEARCH_BLOCK, len(store) - starts[number]), k), -1, np.int32)
        ids = search_block(store, index, starts[number], k)
        found[:, : ids.shape[1]] = ids
        yield "ids", starts[number], found

    began = time.monotonic()
    with reporter.bar("searching", len(store), "records", done) as advance:
        job.fill(
            "fill",
            {"ids": file},
            len(starts),
            compute,
            lambda n: advance(min(SEARCH_BLOCK, len(store) - starts[n])),
        )
    speed = (len(store) - done) / max(time.monotonic() - began, 1e-9)
    reporter.say(f"searched {len(store) - done:,} records at {speed:,.0f} records/s")
    about = {**plan, "file": describe(file.path)}
    files.write_stamped(folder / _ABOUT, about)
    job.close()
    return about


def streamed_neighbors(
    store: Datastore, index: SearchIndex, k: int, first: int = 0
) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the k nearest records of block after block, with each block's first record, and save nothing."""
    for start in range(first, len(store), SEARCH_BLOCK):
        yield start, search_block(store, index, start, k)


def _about(store: Datastore, name: str) -> Json:
    folder = index_folder(store, name)
    if not (folder / _ABOUT).exists():
        return {}
    about = files.read_stamped(folder / _ABOUT)
    return about if _file(store, name, about["k"]).sound else {}


def _file(store: Datastore, name: str, k: int) -> ArrayFile:
    return ArrayFile(index_folder(store, name) / _ARRAY, np.dtype("int32"), (len(store), k))
