"""A store made from another: what it takes over, how it goes on after a kill, and what its manifest says."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import (
    Advance,
    ArrayFile,
    Job,
    Json,
    OptionError,
    Pieces,
    Reporter,
    ShardedArray,
    StoreError,
    files,
    size,
    store_folder,
)
from nearlm.store.datastore import DERIVE_JOB, MANIFEST, Datastore, describe, worded, write_manifest
from nearlm.store.writing import portable_path, writing

BLOCK = 1 << 14  # records that are read, computed and written at a time
RECORD_FILES = ("keys-", "values-", "origin-", "weights-")


@dataclass(frozen=True)
class Made:
    """What a step made: records a shard, its files, what differs in the manifest, and what there is to report."""

    shards: list[int]
    files: Json
    changed: Json
    result: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Derivation:
    """A store in the making: its parent, its folder, and the job that goes on after a kill."""

    parent: Datastore
    folder: Path
    job: Job
    reporter: Reporter

    def take_over(self, names: Iterable[str]) -> Json:
        """Take over files of the parent as they are, and return what the manifest says of them."""
        listed = {name: self.parent.manifest["files"][name] for name in names}
        for name in listed:
            (self.folder / name).parent.mkdir(exist_ok=True)
            files.link(self.parent.path / name, self.folder / name)
        return listed

    def fill(
        self,
        step: str,
        columns: dict[str, ArrayFile],
        compute: Callable[[slice], Iterable[tuple[str, npt.NDArray[Any]]]],
        advance: Advance,
    ) -> Json:
        """Fill arrays of equal length block by block from `compute(rows)`, and return what they became."""
        state = self.job.state(step)
        records = next(iter(columns.values())).shape[0]
        if not (state.get("files") and all(column.sound for column in columns.values())):
            blocks = list(_blocks(records))

            def pieces(number: int) -> Pieces:
                for name, rows in compute(blocks[number]):
                    yield name, blocks[number].start, rows

            def ticked(number: int) -> None:
                advance(blocks[number].stop - blocks[number].start)

            self.job.fill(step, columns, len(blocks), pieces, ticked)
            state = {"files": {column.path.name: describe(column.path) for column in columns.values()}}
            self.job.note(step, {**self.job.state(step), **state})
        else:
            advance(records)
        return dict(state["files"])

    def announce(self, disk: float, ram: float, at_most: bool = False) -> None:
        """Say what the work will need, and refuse it if the disk cannot hold it, unless it may need less."""
        there = sum(path.stat().st_blocks * 512 for path in self.folder.glob("*.npy") if path.stat().st_nlink == 1)
        free = shutil.disk_usage(self.folder).free
        most = "at most " if at_most else ""
        self.reporter.say(f"needs {most}{size(disk)} of disk ({size(free)} free) and about {size(ram)} of RAM")
        if disk > free + there and not at_most:
            raise StoreError(f"{self.folder} needs {size(disk)}, its disk has {size(free)} free; free some")


def derive(
    parent: Datastore,
    out: str | Path,
    step: Json,
    work: Callable[[Derivation], Made],
    reporter: Reporter,
    *,
    prepare: Callable[[], Json] = dict,
    restart: bool = False,
) -> Datastore:
    """Make a new store by one step (`command` and `options`), go on with it, or find that it is done.

    `prepare` makes what the work rests on (an index) and returns what tells it from another.
    """
    folder = store_folder(out)
    if folder.resolve() == parent.path.resolve():
        raise StoreError(f"--out is the store itself ({folder}), and a store is never changed; choose another folder")
    with writing(folder, DERIVE_JOB):
        if (folder / MANIFEST).exists():
            return _finished(folder, parent, step, reporter)
        job = Job(folder, DERIVE_JOB)
        if restart:
            _discard(folder, job)
        plan = {**step, "parent": parent.manifest["checksum"], "rests_on": prepare()}
        _begin(folder, job, plan, reporter)
        try:
            made = work(Derivation(parent, folder, job, reporter))
        except OptionError:  # what cannot be done leaves nothing behind
            _discard(folder, job)
            raise
        write_manifest(folder, _manifest(folder, parent, step, made))
        job.close()
        store = Datastore.open(folder)
        reporter.say(f"{folder}: {len(store):,} records, {size(store.bytes)}")
        return store


def read_keys(keys: ShardedArray, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]:
    """Return some keys as float32, read block by block so that nothing else is held."""
    out = np.empty((len(ids), *keys.shape[1:]), np.float32)
    for rows in _blocks(len(ids)):
        out[rows] = keys.take(ids[rows])
    return out


def result_of(store: Datastore) -> Json:
    """Return what the last step of a derived store's making has to report."""
    step = store.manifest["transforms"][-1]
    sizes = {"records": len(store), "dim": store.dim, "bytes": store.bytes}
    return {"store": str(store.path), "made_by": worded(step), **sizes, **step["result"]}


def _blocks(records: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, records)) for start in range(0, records, BLOCK))


def _finished(folder: Path, parent: Datastore, step: Json, reporter: Reporter) -> Datastore:
    """Return a store that this very command has made; any other is refused."""
    store = Datastore.open(folder)
    steps = store.manifest["transforms"]
    same = bool(steps) and {name: steps[-1][name] for name in step} == step
    if not same or store.manifest["parent"]["checksum"] != parent.manifest["checksum"]:
        raise StoreError(f"{folder} is a finished store, made in another way; choose another --out")
    Job(folder, DERIVE_JOB).close()
    reporter.say(f"{folder} is complete already: {len(store):,} records")
    return store


def _discard(folder: Path, job: Job) -> None:
    """Throw away what an unfinished derivation has left; its job folder goes last."""
    files.remove(job.folder / "plan.json")
    for path in folder.iterdir():
        if path not in (job.folder, folder / ".lock"):
            files.remove(path)
    job.close()


def _begin(folder: Path, job: Job, plan: Json, reporter: Reporter) -> None:
    if not job.started:
        _discard(folder, job)
        job.begin(plan)
        return
    begun = job.plan()
    if begun != plan:
        old, new = worded(begun), worded(plan)
        both = f"`{old}`, now `{new}`" if old != new else "the same options, but its parent or index has changed"
        raise StoreError(
            f"the unfinished store in {folder} was begun with {both}; "
            "repeat the first command, or throw it away with --restart"
        )
    reporter.say(f"going on with the unfinished store in {folder}")


def _manifest(folder: Path, parent: Datastore, step: Json, made: Made) -> Json:
    old = parent.manifest
    model = dict(old["model"])
    for name in ("name_path", "adapter_path"):
        if model[name] is not None:
            model[name] = portable_path(parent.path / model[name], folder)
    return {
        **old,
        "model": model,
        "records": sum(made.shards),
        "shards": [{"records": records} for records in made.shards],
        "files": made.files,
        **made.changed,
        "parent": {
            "name": parent.path.resolve().name,
            "path": portable_path(parent.path, folder),
            "checksum": old["checksum"],
        },
        "transforms": [*old["transforms"], {**step, "result": made.result}],
    }
