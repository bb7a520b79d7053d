"""Arrays on disk that a long job fills batch by batch, each piece in its own place, going on after a kill."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import files
from nearlm.base.arrays import ArrayFile
from nearlm.base.files import Json

CHECKPOINT_SECONDS = 2.0
Pieces = Iterable[tuple[str, int, npt.NDArray[Any]]]


def fill_columns(
    job: files.Job,
    step: str,
    columns: Mapping[str, ArrayFile],
    batches: int,
    compute: Callable[[int], Pieces],
    ticked: Callable[[int], None],
) -> None:
    """Fill arrays from `compute(batch)`, which yields (column, first row, rows), for the batches not done yet.

    The files are reserved at full size first, so that a full disk shows before the work. `ticked` is told the
    number of each batch when it is written.
    """
    state = job.state(step)
    if state.get("batches") is None or not all(column.sound for column in columns.values()):
        for column in columns.values():
            files.allocate(column.path, column.header, column.bytes)
        state = _note(job, step, 0)
    noted = time.monotonic()
    with contextlib.ExitStack() as stack:
        opened = {name: stack.enter_context(open(column.path, "r+b")) for name, column in columns.items()}
        for batch in range(state["batches"], batches):
            for name, row, data in compute(batch):
                column = columns[name]
                at = files.NPY_HEADER + row * column.dtype.itemsize * int(np.prod(column.shape[1:]))
                files.write_at(opened[name], np.ascontiguousarray(data, column.dtype).data, at)
            ticked(batch)
            if time.monotonic() - noted >= CHECKPOINT_SECONDS and batch + 1 < batches:
                for file in opened.values():
                    files.sync(file)
                _note(job, step, batch + 1)
                noted = time.monotonic()
        for file in opened.values():
            files.sync(file)
    _note(job, step, batches)


def _note(job: files.Job, step: str, batches: int) -> Json:
    state = {"batches": batches}
    job.note(step, state)
    return state
