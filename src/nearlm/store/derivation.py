"""A store made from another: what it takes over, how it resumes after a kill, and what its manifest says."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import (
    Advance,
    ArrayFile,
    FileInfo,
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
    to_json,
)
from nearlm.store.datastore import Datastore
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, ModelInfo, ParentInfo, ShardInfo, Step, write_manifest
from nearlm.store.writing import announce_needs, portable_path, writing

BLOCK = 1 << 14  # records that are read, computed and written at a time


@dataclass(frozen=True)
class Made:
    """What a step made: records a shard, its files, what differs in the manifest, and what there is to report."""

    shards: list[int]
    files: dict[str, FileInfo]
    changed: dict[str, Any]
    result: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Derivation:
    """A store in the making: its parent, its place, the job that resumes after a kill, and whom to tell."""

    parent: Datastore
    layout: Layout
    job: Job
    reporter: Reporter

    def take_over(self, wanted: Callable[[str], bool]) -> dict[str, FileInfo]:
        """Take over the wanted files of the parent as they are, and return what the manifest says of them."""
        listed = {name: file for name, file in self.parent.manifest.files.items() if wanted(name)}
        for name in listed:
            target = self.layout.folder / name
            target.parent.mkdir(exist_ok=True)
            files.link(self.parent.path / name, target)
        return listed

    def fill(
        self,
        number: int,
        columns: dict[str, ArrayFile],
        compute: Callable[[slice], Iterable[tuple[str, npt.NDArray[Any]]]],
        advance: Advance,
    ) -> dict[str, FileInfo]:
        """Fill the arrays of one shard block by block from `compute(rows)`, and return what they became."""
        step = f"shard-{number:05d}"
        records = next(iter(columns.values())).shape[0]
        blocks = list(_blocks(records))
        advance(min(records, (self.job.batches(step) or 0) * BLOCK))

        def pieces(block: int) -> Pieces:
            for name, rows in compute(blocks[block]):
                yield name, blocks[block].start, rows

        def tick(block: int) -> None:
            advance(blocks[block].stop - blocks[block].start)

        return self.job.fill_files(step, columns, len(blocks), pieces, tick)

    def announce(self, disk: float, ram: float, at_most: bool = False) -> None:
        """Say what the work will need, and refuse it if the disk cannot hold it, unless it may need less."""
        folder = self.layout.folder
        made = [path for path in folder.glob("*.npy") if path.stat().st_nlink == 1]
        announce_needs(folder, disk, ram, made, self.reporter, at_most=at_most)


def derive(
    parent: Datastore,
    out: str | Path,
    step: Step,
    work: Callable[[Derivation], Made],
    reporter: Reporter,
    *,
    prepare: Callable[[], Json] = dict,
    restart: bool = False,
) -> Datastore:
    """Make a new store by one step, resume it, or find that it is done.

    `prepare` makes what the work rests on (an index) and returns what tells it from another.
    """
    folder = store_folder(out)
    if folder.resolve() == parent.path.resolve():
        raise StoreError(f"--out is the store itself ({folder}), and a store is never changed; choose another folder")
    layout = Layout(folder)
    job = layout.derive_job
    with writing(folder, job):
        if layout.is_store:
            return _finished(layout, parent, step, reporter)
        if restart:
            _discard(folder, job)
        _begin(folder, job, step, {"parent": parent.checksum, "rests_on": prepare()}, reporter)
        try:
            made = work(Derivation(parent, layout, job, reporter))
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
    step = store.manifest.transforms[-1]
    sizes = {"records": len(store), "dim": store.dim, "bytes": store.bytes}
    return {"store": str(store.path), "made_by": str(step), **sizes, **step.result}


def _blocks(records: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, records)) for start in range(0, records, BLOCK))


def _finished(layout: Layout, parent: Datastore, step: Step, reporter: Reporter) -> Datastore:
    """Return a store that this very command has made; any other is refused."""
    store = Datastore.open(layout.folder)
    steps = store.manifest.transforms
    made_from = store.manifest.parent and store.manifest.parent.checksum
    if not (steps and steps[-1].same_as(step)) or made_from != parent.checksum:
        raise StoreError(f"{layout.folder} is a finished store, made in another way; choose another --out")
    layout.derive_job.close()
    reporter.say(f"{layout.folder} is complete already: {len(store):,} records")
    return store


def _discard(folder: Path, job: Job) -> None:
    """Throw away what an unfinished derivation has left; its job folder goes last."""
    job.forget_plan()
    for path in folder.iterdir():
        if path not in (job.folder, folder / ".lock"):
            files.remove(path)
    job.close()


def _begin(folder: Path, job: Job, step: Step, depends_on: Json, reporter: Reporter) -> None:
    plan = {"command": step.command, "options": to_json(step.options), **depends_on}
    if not job.started:
        _discard(folder, job)
        job.begin(plan)
        return
    begun = job.plan()
    if begun != plan:
        old = str(Step(begun["command"], begun["options"]))
        changed = f"`{old}`, now `{step}`"
        both = changed if old != str(step) else "the same options, but its parent or index has changed"
        raise StoreError(
            f"the unfinished store in {folder} was begun with {both}; "
            "repeat the first command, or throw it away with --restart"
        )
    reporter.say(f"going on with the unfinished store in {folder}")


def _manifest(folder: Path, parent: Datastore, step: Step, made: Made) -> Manifest:
    old = parent.manifest
    return replace(
        old,
        model=_moved(old.model, parent.path, folder),
        records=sum(made.shards),
        shards=[ShardInfo(records) for records in made.shards],
        files=made.files,
        parent=ParentInfo(parent.path.resolve().name, portable_path(parent.path, folder), old.checksum),
        transforms=[*old.transforms, replace(step, result=made.result)],
        **made.changed,
    )


def _moved(model: ModelInfo, old: Path, new: Path) -> ModelInfo:
    """Return a model whose paths are seen from another store's folder."""
    paths = {name: getattr(model, name) for name in ("name_path", "adapter_path")}
    seen: dict[str, Any] = {name: portable_path(old / path, new) for name, path in paths.items() if path is not None}
    return replace(model, **seen)
