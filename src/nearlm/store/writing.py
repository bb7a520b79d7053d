"""The folder that a store is written into: whether it may be, its lock, and what the disk refuses."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from nearlm.base import Job, Json, Reporter, StoreError, files, size
from nearlm.store.datastore import Datastore
from nearlm.store.key_codes import SPAN
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, stamped, write_manifest


@contextlib.contextmanager
def writing(folder: Path, job: Job) -> Iterator[None]:
    """Lock a folder that is, or may become, a store by way of `job`; turn a disk error into one line."""
    try:
        refuse_foreign(folder, job)
        folder.mkdir(parents=True, exist_ok=True)
        files.check_links(folder)
        with files.lock(folder):
            yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not _is_inside(error.filename, folder):
            raise
        full = error.errno in files.FULL
        hint = "free some space and repeat the command: it resumes" if full else "choose another `out`"
        raise StoreError(f"cannot write to {error.filename or folder}: {error.strerror or error}; {hint}") from error


def refuse_foreign(folder: Path, job: Job) -> None:
    """Refuse a place that is neither a store, nor one that `job` has begun, nor empty."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected a folder to make a store in; choose another `out`")
    if not folder.is_dir() or Layout(folder).is_store or job.folder.exists():
        return
    strangers = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    if strangers:
        raise StoreError(f"{folder} is not a store but holds {strangers[0]!r}; choose an empty or new folder for `out`")


def throw_away(job: Job, left: Iterable[Path], *, finished: bool) -> None:
    """Forget an unfinished job and what it has left, as `restart` asks; a store that is finished is refused."""
    if finished:
        raise StoreError(f"{job.folder.parent} is a finished store; `restart=True` throws away unfinished ones only")
    job.discard(left)


def begin_or_resume(
    job: Job, what: str, plan: Json, left: Iterable[Path], change: Callable[[Json], str | None], reporter: Reporter
) -> None:
    """Begin a job in place of what others have left, or make sure that the one that was begun is this one.

    `change` says what differs in the plan that was begun, None if nothing does.
    """
    folder = job.folder.parent
    if not job.started:
        job.discard(left)
        job.begin(plan)
        return
    changed = change(job.plan())
    if changed:
        raise StoreError(
            f"the unfinished {what} in {folder} was begun with {changed}; "
            "repeat the first command, or throw it away with `restart=True`"
        )
    reporter.say(f"resuming the unfinished {what} in {folder}")


def finish(folder: Path, manifest: Manifest, job: Job, reporter: Reporter) -> Datastore:
    """Make a folder a store by its manifest, and forget the job."""
    write_manifest(folder, stamped(manifest))
    job.close()
    store = Datastore.open(folder)
    reporter.say(f"{folder}: {store.contents}, {size(store.bytes)}")
    if manifest.clipped:
        share = manifest.clipped / (len(store) * store.dim)
        reporter.say(f"{share:.4%} of the numbers in keys lie beyond {SPAN:g} standard deviations and were clipped")
    return store


def announce_needs(
    made: Iterable[Path], disk: float, ram: float, reporter: Reporter, folder: Path, remedy: str, at_most: bool = False
) -> None:
    """Report what the work will need, and refuse it if the disk cannot hold it, unless it may need less.

    `made` are files that are there already and count towards what is needed.
    """
    there = sum(path.stat().st_blocks * 512 for path in made)
    free = shutil.disk_usage(folder).free
    most = "at most " if at_most else ""
    reporter.say(f"needs {most}{size(disk)} of disk ({size(free)} free) and about {size(ram)} of RAM")
    if disk > free + there and not at_most:
        raise StoreError(f"{folder} needs {size(disk)}, its disk has {size(free)} free; {remedy}")


def portable_path(path: Path, folder: Path) -> str:
    """Return where something lies as seen from a store's folder, so that the two can be moved together."""
    return os.path.relpath(path.resolve(), folder.resolve())


def is_elsewhere(path: Path, store: Path) -> bool:
    """Tell whether an absolute path leads away from the folder that a store lies in, so that its user shall know."""
    return path.is_absolute() and not path.is_relative_to(store.resolve().parent)


def _is_inside(name: Any, folder: Path) -> bool:
    """Tell whether an error is about a folder or something in it; one without a name may be."""
    return name is None or Path(os.fsdecode(name)).resolve().is_relative_to(folder.resolve())
