"""Windows over a token stream, and batches of windows: pure functions of lengths and options.

A window has inputs t[i : i+W] and targets t[i+1 : i+W+1]; every target of a document but its
first token belongs to exactly one window. Build, trace and evaluation all use `plan_windows`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearlm.base import Int32s, Ints, OptionError


@dataclass(frozen=True)
class Windows:
    """Windows in corpus order: where each starts, how many inputs it has, how many last targets it owns."""

    start: Ints
    inputs: Ints
    targets: Ints

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: slice | Ints) -> "Windows":
        return Windows(self.start[rows], self.inputs[rows], self.targets[rows])

    @property
    def first_record(self) -> Ints:
        """The number of targets before each window: its first record, counted from the first window."""
        return np.cumsum(self.targets) - self.targets

    @property
    def target_positions(self) -> Ints:
        """The stream position of every target that the windows own, in order."""
        within = np.arange(self.records) - np.repeat(self.first_record, self.targets)
        return np.repeat(self.start + self.inputs - self.targets + 1, self.targets) + within

    @property
    def records(self) -> int:
        """How many targets all windows own."""
        return int(self.targets.sum())


def plan_windows(bounds: Ints, window: int, stride: int, pack: bool = False) -> Windows:
    """Lay windows over documents that begin at `bounds[:-1]` and end where the next begins.

    With `stride` < `window` each window after a document's first owns its last `stride` targets
    only. With `pack` the whole stream is one document.
    """
    check_window(window, stride)
    if pack:
        bounds = bounds[[0, -1]]
    predictions = np.diff(bounds) - 1
    begin = bounds[:-1][predictions > 0]
    predictions = predictions[predictions > 0]
    count = 1 + np.maximum(0, -(-(predictions - window) // stride))
    document = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    offset = nth * stride
    inputs = np.minimum(window, predictions[document] - offset)
    targets = np.where(nth == 0, inputs, inputs - (window - stride))
    return Windows(begin[document] + offset, inputs, targets)


def check_window(window: int, stride: int) -> None:
    """Refuse windows and strides that cannot be laid."""
    if window < 1:
        raise OptionError(f"`window` is {window}, expected at least 1")
    if not 1 <= stride <= window:
        raise OptionError(f"`stride` is {stride}, expected 1 to the window's {window}")


def plan_shards(windows: Windows, shard_records: int) -> list[slice]:
    """Cut the windows into runs of at most `shard_records` targets, never inside a window."""
    first = windows.first_record
    ends = first + windows.targets
    records = windows.records
    runs = []
    begin = 0
    while begin < len(windows):
        limit = min(int(first[begin]) + shard_records, records)
        end = int(np.searchsorted(ends, limit, side="right"))
        runs.append(slice(begin, max(end, begin + 1)))
        begin = runs[-1].stop
    return runs


def plan_batches(windows: Windows, batch_tokens: int) -> list[Ints]:
    """Group windows of like length so that rows x longest row is at most `batch_tokens` (or one row)."""
    order = np.argsort(-windows.inputs, kind="stable")
    batches = []
    begin = 0
    while begin < len(order):
        rows = max(1, batch_tokens // int(windows.inputs[order[begin]]))
        batches.append(order[begin : begin + rows])
        begin += rows
    return batches


@dataclass(frozen=True)
class Batch:
    """Padded windows: token ids and the positions that are recorded, [rows, longest]; their targets, flat.

    Padding stands at the end of a row and is known by `recorded` only, never by its id.
    """

    ids: Ints
    recorded: npt.NDArray[np.bool_]
    targets: Int32s


def fill_batch(tokens: Int32s, windows: Windows) -> Batch:
    """Read the tokens of some windows into one padded batch."""
    column = np.arange(windows.inputs.max())
    inside = column < windows.inputs[:, None]
    recorded = inside & (column >= (windows.inputs - windows.targets)[:, None])
    position = windows.start[:, None] + column
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = tokens[position[inside]]
    return Batch(ids, recorded, np.asarray(tokens[position[recorded] + 1]))
