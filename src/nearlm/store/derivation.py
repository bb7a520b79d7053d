"""A store made from another: what it takes over, how it resumes after a kill, and how its parent is found again."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import FileInfo, Json, NearLMWarning, OptionError, StoreError, files, from_json, store_folder, to_json
from nearlm.base.arrays import Array, Ints, blocks
from nearlm.base.jobs import Columns, Job, Pieces
from nearlm.base.progress import Advance, Reporter
from nearlm.store.datastore import Datastore
from nearlm.store.key_codes import count_clipped
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, ModelInfo, ParentInfo, ShardInfo, Step
from nearlm.store.writing import (
    announce_needs,
    begin_or_resume,
    finish,
    is_elsewhere,
    portable_path,
    throw_away,
    writing,
)

BLOCK = 1 << 14  # records that are read, computed and written at a time
Compute = Callable[[slice], Iterable[tuple[str, Array]]]


@dataclass(frozen=True)
class Made:
    """What a step made: records per shard, its files, what differs in the manifest, and what there is to report."""

    shards: list[int]
    files: dict[str, FileInfo]
    changed: dict[str, Any]
    result: Json = field(default_factory=dict)
    numbers: list[int] | None = None  # in the shards' names, if not from 0 on


@dataclass(frozen=True)
class Derivation:
    """A store in the making: its parent, its place, the job that resumes after a kill, and the reporter."""

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

    def fill(self, label: str, shards: list[Columns], compute: Compute) -> dict[str, FileInfo]:
        """Fill the arrays of all shards block by block from `compute(rows)`, and return what they became."""
        listed: dict[str, FileInfo] = {}
        lengths = [columns["keys"].shape[0] for columns in shards]
        with self.reporter.bar(label, sum(lengths), "records") as advance:
            for number, columns in enumerate(shards):
                listed |= self._fill_shard(number, sum(lengths[:number]), columns, compute, advance)
        return listed

    def _fill_shard(
        self, number: int, first: int, columns: Columns, compute: Compute, advance: Advance
    ) -> dict[str, FileInfo]:
        step = f"shard-{number:05d}"
        parts = list(blocks(columns["keys"].shape[0], BLOCK))
        sizes = [part.stop - part.start for part in parts]
        advance(self.job.count_done(step, sizes))

        def pieces(part: int) -> Pieces:
            start = parts[part].start
            for name, rows in compute(slice(first + start, first + parts[part].stop)):
                yield name, start, rows

        return self.job.fill_files(step, columns, sizes, pieces, advance)

    def announce(self, disk: float, ram: float, at_most: bool = False) -> None:
        """Say what the work will need, and refuse it if the disk cannot hold it, unless it may need less."""
        folder = self.layout.folder
        made = [path for path in folder.glob("*.npy") if path.stat().st_nlink == 1]
        announce_needs(made, disk, ram, self.reporter, folder, "free some", at_most)


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
    parent.need_stored_keys()
    parent.refuse_forgotten("which a store that is made from it would hold too")
    folder = store_folder(out)
    if folder.resolve() == parent.path.resolve():
        raise StoreError(f"`out` is the store itself ({folder}), and a store is never changed; choose another folder")
    layout = Layout(folder)
    job = layout.derive_job
    with writing(folder, job):
        if restart:
            throw_away(job, _left(job), finished=layout.is_store)
        if layout.is_store:
            return _open_finished(layout, parent, step, reporter)
        asked = {"command": step.command, "options": to_json(step.options)}
        plan = {**asked, "parent": parent.checksum, "rests_on": prepare()}
        begin_or_resume(job, "store", plan, _left(job), lambda begun: _change(begun, plan, job.folder), reporter)
        try:
            made = work(Derivation(parent, layout, job, reporter))
        except OptionError:  # what cannot be done leaves nothing behind
            job.discard(_left(job))
            raise
        return finish(folder, _manifest(folder, parent, step, made), job, reporter)


def result_of(store: Datastore) -> Json:
    """Return what the last step of a derived store's making has to report."""
    step = store.manifest.transforms[-1]
    sizes = {"records": len(store), "dim": store.dim, "bytes": store.bytes}
    return {"store": str(store.path), "made_by": str(step), **sizes, **step.result}


def open_parent(store: Datastore) -> Datastore:
    """Open the store that this one was made from, if it is still where it was and as it was."""
    parent = store.manifest.parent
    if parent is None:
        raise OptionError(f"{store.path} was built from text and has no parent; use `distances='store'`")
    path = (store.path / parent.path).resolve()
    if not path.exists():
        raise StoreError(f"the parent of {store.path} is no longer at {path}; put it back or use `distances='store'`")
    if is_elsewhere(path, store.path):
        warnings.warn(f"opening the parent at {path}, as {store.path} says", NearLMWarning, stacklevel=3)
    opened = Datastore.open(path)
    if opened.checksum != parent.checksum:
        raise StoreError(f"{path} has changed since {store.path} was made from it; make that one again")
    return opened


def parent_records(store: Datastore, parent: Datastore) -> Ints:
    """Return the id in the parent of every record: the one with the same origin, and, but for PCA, the same key."""
    if store.manifest.transforms[-1].options.get("method") == "kmeans":
        raise OptionError(
            f"the records of {store.path} are centroids, which its parent does not hold; use `distances='store'`"
        )
    ids: Ints = np.searchsorted(parent.origin[:], store.origin[:])
    return ids


def _open_finished(layout: Layout, parent: Datastore, step: Step, reporter: Reporter) -> Datastore:
    """Return a store that this very command has made; any other is refused."""
    store = Datastore.open(layout.folder)
    steps = store.manifest.transforms
    made_from = store.manifest.parent and store.manifest.parent.checksum
    if steps[-1:] != [step] or made_from != parent.checksum:
        raise StoreError(f"{layout.folder} is a finished store, made in another way; choose another `out`")
    layout.derive_job.close()
    reporter.say(f"{layout.folder} is complete already: {len(store):,} records")
    return store


def _left(job: Job) -> list[Path]:
    """List what an unfinished derivation has left."""
    return [path for path in job.folder.parent.iterdir() if path not in (job.folder, job.folder.with_name(".lock"))]


def _change(begun: Json, plan: Json, place: Path) -> str | None:
    """Say what differs between two plans, if anything does."""
    old, new = (str(from_json(Step, each, place)) for each in (begun, plan))
    if old != new:
        return f"`{old}`, now `{new}`"
    return "the same options, but its parent or index has changed" if begun != plan else None


def _manifest(folder: Path, parent: Datastore, step: Step, made: Made) -> Manifest:
    old = parent.manifest
    return replace(
        old,
        model=_relocate(old.model, parent.path, folder),
        records=sum(made.shards),
        shards=_shards(Layout(folder), parent, made),
        compacted=[],
        files=made.files,
        parent=ParentInfo(parent.path.resolve().name, portable_path(parent.path, folder), old.checksum),
        transforms=[*old.transforms, replace(step, result=made.result)],
        **made.changed,
    )


def _shards(layout: Layout, parent: Datastore, made: Made) -> list[ShardInfo]:
    dim = made.changed.get("dim", parent.dim)
    numbers = made.numbers or list(range(len(made.shards)))
    found = []
    for place, (records, number) in enumerate(zip(made.shards, numbers, strict=True)):
        file = layout.shard(number, records, dim, parent.manifest.key_dtype)["keys"]
        found.append(ShardInfo(records, count_clipped(file), None if number == place else number))
    return found


def _relocate(model: ModelInfo, old: Path, new: Path) -> ModelInfo:
    """Return a model whose paths are seen from another store's folder."""
    paths = {name: getattr(model, name) for name in ("name_path", "adapter_path")}
    seen: dict[str, Any] = {name: portable_path(old / path, new) for name, path in paths.items() if path is not None}
    return replace(model, **seen)
