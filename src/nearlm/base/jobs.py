"""Long jobs that resume after a kill: a plan, notes of its steps, and arrays filled batch by batch."""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from nearlm.base import files
from nearlm.base.arrays import Array, ArrayFile
from nearlm.base.errors import StoreError, check_at_least
from nearlm.base.files import Json
from nearlm.base.progress import Advance
from nearlm.base.records import FileInfo, check_names, from_json, to_json

CHECKPOINT_SECONDS = 2.0
Columns = dict[str, ArrayFile]
Pieces = Iterable[tuple[str, int, Array]]
Compute = Callable[[int], Pieces]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Filled:
    """What is noted of arrays that are filled: how many batches are done, and in the end what each file became."""

    batches: int | None = None
    files: dict[str, FileInfo] | None = None

    def __post_init__(self) -> None:
        check_at_least(0, batches=self.batches)


class Job:
    """A long job in a folder that resumes after a kill.

    The job has a plan, which must be the same each time, and steps; what is noted of a step
    (how far it got, or its result) is there again after a kill. `close` forgets all of it.
    """

    def __init__(self, folder: Path, name: str):
        self.folder = folder / f"{name}.job"
        self._plan = self.folder / "plan.json"

    @property
    def started(self) -> bool:
        """Whether an earlier run left its plan here."""
        return self._plan.exists()

    def plan(self) -> Json:
        """Return the plan that the job was begun with."""
        return files.read_json(self._plan)

    def begin(self, plan: Json) -> None:
        """Note the plan of a new job."""
        files.remove(self.folder)
        self.folder.mkdir(parents=True)
        files.write_json(self._plan, plan)

    def resumes(self, plan: Json) -> bool:
        """Tell whether an earlier run left this very plan."""
        return self.started and self.plan() == plan

    def resume(self, plan: Json) -> None:
        """Resume a job of this very plan, or begin a new one in place of what is there."""
        if not self.resumes(plan):
            self.begin(plan)

    def note(self, step: str, state: Json) -> None:
        """Remember the state of a step."""
        files.write_json(self._note_of(step), state)

    def state(self, step: str) -> Json:
        """Return what was last noted of a step, empty if nothing was."""
        path = self._note_of(step)
        return files.read_json(path) if path.exists() else {}

    def once(self, step: str, kind: type[Result], make: Callable[[], Result]) -> Result:
        """Return the result of a step that an earlier run noted, or make and note it."""
        noted = self.state(step)
        if "result" not in noted:
            noted = {"result": to_json(make())}
            self.note(step, noted)
        return from_json(kind, noted["result"], self._note_of(step))

    def read(self, step: str, kind: type[Result]) -> Result:
        """Return what was last noted of a step as a record, one without values if nothing was."""
        return from_json(kind, self.state(step), self._note_of(step))

    def _note_of(self, step: str) -> Path:
        return self.folder / f"{step}.json"

    def fill(self, step: str, columns: Columns, sizes: Sequence[int], compute: Compute, advance: Advance) -> None:
        """Fill arrays from `compute(batch)`, which yields (column, first row, rows), for the batches not done yet.

        The files are reserved at full size first, so that a full disk shows before the work. `advance` is told the
        size of each batch when it is written.
        """
        done = self.read(step, Filled).batches
        if done is None or not all(column.sound for column in columns.values()):
            for column in columns.values():
                files.allocate(column.path, column.header, column.bytes)
            done = 0
            self.note(step, {"batches": done})
        if done > len(sizes):
            raise StoreError(f"{self._note_of(step)} counts {done} of {len(sizes)} batches; remove it, and begin again")
        with contextlib.ExitStack() as stack:
            opened = {name: stack.enter_context(open(column.path, "r+b")) for name, column in columns.items()}
            noted = time.monotonic()
            for batch in range(done, len(sizes)):
                for name, row, rows in compute(batch):
                    column = columns[name]
                    files.write_at(opened[name], np.ascontiguousarray(rows, column.dtype).data, column.offset(row))
                advance(sizes[batch])
                if batch + 1 == len(sizes) or time.monotonic() - noted >= CHECKPOINT_SECONDS:
                    for file in opened.values():
                        files.sync(file)
                    self.note(step, {"batches": batch + 1})
                    noted = time.monotonic()

    def fill_files(
        self, step: str, columns: Columns, sizes: Sequence[int], compute: Compute, advance: Advance
    ) -> dict[str, FileInfo]:
        """Fill arrays as `fill` does, unless that has been done, and return what each file became."""
        made = self.read(step, Filled).files
        if made is None or not all(column.sound for column in columns.values()):
            self.fill(step, columns, sizes, compute, advance)
            made = FileInfo.by_name(column.path for column in columns.values())
            self.note(step, {**self.state(step), "files": to_json(made)})
        check_names(self._note_of(step), made, {column.path.name for column in columns.values()})
        return made

    def count_done(self, step: str, sizes: Sequence[int]) -> int:
        """Return the size of all batches of arrays that have been filled."""
        return sum(sizes[: self.read(step, Filled).batches or 0])

    def forget_plan(self) -> None:
        """Forget the plan alone: what is left of the folder belongs to no job."""
        files.remove(self._plan)

    def discard(self, left: Iterable[Path]) -> None:
        """Forget the job and what it has left; its folder goes last: without it the rest would be foreign files."""
        self.forget_plan()
        for path in left:
            files.remove(path)
        self.close()

    def check_folder(self) -> None:
        """Refuse a folder around the job that holds something which no earlier run can have left."""
        around = self.folder.parent
        if self.folder.is_dir() or not around.exists():
            return
        strangers = sorted(path.name for path in around.iterdir() if path.name != ".lock")
        if strangers:
            raise StoreError(f"{around} holds {strangers[0]!r}, not made by nearlm; move it, or choose another `out`")

    def remove_folder(self) -> None:
        """Remove the folder around the job, unless it is somebody else's; the job, which proves it, goes last."""
        around = self.folder.parent
        if self.folder.is_dir():
            for path in around.iterdir():
                if path != self.folder:
                    files.remove(path)
            files.remove(self.folder)
        with contextlib.suppress(OSError):  # not there, or not empty
            around.rmdir()

    def close(self) -> None:
        """Forget the job; the plan goes first, so that a kill in between leaves no job."""
        self.forget_plan()
        files.remove(self.folder)
