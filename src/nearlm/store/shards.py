"""One shard of a build: its files reserved at once, its keys computed and written batch by batch."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearlm.base import (
    Advance,
    Array,
    Columns,
    FileInfo,
    Floats,
    Int32s,
    Ints,
    Job,
    ModelError,
    Pieces,
    Rate,
    Reporter,
    check_at_least,
    check_that,
    duration,
    from_json,
)
from nearlm.model.lm import LM
from nearlm.store.key_codes import INT8, KeyCodec, count_clipped
from nearlm.store.layout import Layout
from nearlm.store.manifest import ShardInfo
from nearlm.store.plan import BuildOptions
from nearlm.text import Windows, fill_batch, plan_batches, plan_shards

_ESTIMATE_BATCHES = 3
_FEWEST_FITTED, _MOST_FITTED = 1 << 10, 1 << 13  # records that 8-bit keys are fitted to
_SHARE_FITTED = 16  # one record of so many, between these bounds
Made = dict[str, FileInfo]  # what the files of a shard became
Fill = Callable[["Sequence[ShardWriter]", Job, Advance], list[Made]]
_MOST_THREADS = 1 << 12


def planned_threads(job: Job) -> int | None:
    """Return with how many threads an unfinished build computes, None if there is none."""
    if not job.started:
        return None
    threads = from_json(int, job.plan().get("threads"), job.folder)
    check_that(0 < threads <= _MOST_THREADS, job.folder, "a number of threads")
    return threads


@contextlib.contextmanager
def threads_of(job: Job, wish: int | None) -> Iterator[None]:
    """Compute with as many threads as the unfinished build did, so that every byte comes out the same."""
    check_at_least(1, threads=wish)
    before = torch.get_num_threads()
    torch.set_num_threads(planned_threads(job) or wish or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def estimate_time(reporter: Reporter, advance: Advance, total: int) -> Advance:
    """Return a function that advances by a batch's tokens, and says once how long the rest will take."""
    rate = Rate()
    batches = itertools.count(1)

    def tick(tokens: int) -> None:
        speed = rate(tokens)
        advance(tokens)
        if next(batches) == _ESTIMATE_BATCHES:
            left = duration((total - rate.count) / speed)
            reporter.say(f"about {left} to go ({speed:,.0f} tokens/s in the first {_ESTIMATE_BATCHES} batches)")

    return tick


class Run(NamedTuple):
    """Windows over a token stream of which records are made, and the stream's first position in the whole."""

    tokens: Int32s
    windows: Windows
    base: int


def ready_codec(layout: Layout, lm: LM, run: Run, options: BuildOptions) -> KeyCodec | None:
    """Fit the scales of 8-bit keys to windows from all over a run, unless they are there; None for other keys.

    They are kept when all are known, and an append finds those of its store.
    """
    if options.key_dtype != INT8:
        return None
    file = layout.scales(lm.dim)
    if not file.sound:
        KeyCodec.fit(_some_keys(lm, run, options)).write(file)
    return KeyCodec.read(file)


def _some_keys(lm: LM, run: Run, options: BuildOptions) -> Floats:
    """Return the keys of some windows, evenly spread: enough to know how widely each axis varies."""
    records = run.windows.records
    wanted = min(max(records // _SHARE_FITTED, _FEWEST_FITTED), _MOST_FITTED, records)
    count = -(-wanted * len(run.windows.start) // records)
    some = run.windows[np.linspace(0, len(run.windows.start) - 1, count).round().astype(np.int64)]
    found = []
    for batch in plan_batches(some, int(options.batch_tokens or 1)):
        found.append(_finite(lm, lm.keys(fill_batch(run.tokens, some[batch])), some[batch]).cpu().numpy())
    return np.concatenate(found)


def plan_writers(
    layout: Layout, first: int, lm: LM, runs: Iterable[Run], options: BuildOptions, codec: KeyCodec | None = None
) -> "list[ShardWriter]":
    """Cut runs into shards, which are numbered from `first` on; none holds records of two runs."""
    parts = [(run, rows) for run in runs for rows in plan_shards(run.windows, options.shard_records)]
    return [
        ShardWriter(layout, number, lm, run.windows[rows], run.tokens, run.base, options, codec)
        for number, (run, rows) in enumerate(parts, start=first)
    ]


def fill_here(writers: "Sequence[ShardWriter]", job: Job, advance: Advance) -> list[Made]:
    """Fill shards one after the other in this process; others may do it elsewhere, to the same bytes."""
    return [writer.fill(job, advance) for writer in writers]


@dataclass(frozen=True)
class ShardWriter:
    """Fills one shard's files from some windows over a token stream; `base` is the stream's first position."""

    layout: Layout
    number: int
    lm: LM
    windows: Windows
    tokens: Int32s
    base: int
    options: BuildOptions
    codec: KeyCodec | None = None

    def cut(self) -> "ShardWriter":
        """Return the same with no more of the stream than its own tokens, to be sent elsewhere."""
        begin = int(self.windows.start.min())
        end = int((self.windows.start + self.windows.inputs).max()) + 1
        windows = replace(self.windows, start=self.windows.start - begin)
        return replace(self, windows=windows, tokens=np.array(self.tokens[begin:end]), base=self.base + begin)

    def count_done(self, job: Job) -> int:
        """Return how many tokens earlier runs have done."""
        return job.count_done(self._step, self._sizes)

    def fill(self, job: Job, advance: Advance) -> Made:
        """Compute the batches that are not there yet and return what the shard's files became."""
        position = self.windows.target_positions
        keys, values, origin = self._files.values()
        if not values.sound:
            values.write(self.tokens[position])
        if not origin.sound:
            origin.write(position + self.base)
        made = job.fill_files(self._step, {"keys": keys}, self._sizes, self._keys, advance)
        scales = [] if self.codec is None else [self.layout.scales(self.lm.dim).path]
        return made | FileInfo.by_name([values.path, origin.path, *scales])

    @property
    def info(self) -> ShardInfo:
        """What the manifest says of the shard, once it is filled."""
        return ShardInfo(self.windows.records, count_clipped(self._files["keys"]))

    @property
    def _step(self) -> str:
        return f"shard-{self.number:05d}"

    @cached_property
    def _files(self) -> Columns:
        return self.layout.shard(self.number, self.windows.records, self.lm.dim, str(self.options.key_dtype))

    @cached_property
    def _batches(self) -> list[Ints]:
        return plan_batches(self.windows, int(self.options.batch_tokens or 1))

    @cached_property
    def _sizes(self) -> list[int]:
        return [int(self.windows.inputs[batch].sum()) for batch in self._batches]

    def _keys(self, number: int) -> Pieces:
        """Compute one batch and yield each window's keys with their place."""
        batch = self._batches[number]
        rows = self.windows[batch]
        keys = self._stored(_finite(self.lm, self.lm.keys(fill_batch(self.tokens, rows)), rows))
        begin = 0
        for record, count in zip(self.windows.first_record[batch], rows.targets, strict=True):
            yield "keys", int(record), keys[begin : begin + count]
            begin += count

    def _stored(self, vectors: Tensor) -> Array:
        """Return keys as they are kept; those too large for their type are refused."""
        if self.codec is not None:
            return self.codec.encode(vectors.cpu().numpy())
        keys = vectors.to(getattr(torch, str(self._files["keys"].dtype)))
        if not torch.isfinite(keys).all():
            raise ModelError(
                f"a key of {self.lm.name} reaches {float(vectors.abs().max()):.0f}, more than float16's 65504; "
                "use `key_dtype='float32'`, with `restart=True`"
            )
        return keys.cpu().numpy()


def _finite(lm: LM, vectors: Tensor, rows: Windows) -> Tensor:
    """Return keys in float32; those that are not finite are refused."""
    if not torch.isfinite(vectors).all():
        raise ModelError(
            f"{lm.name} gives non-finite keys (near token {int(rows.start[0])} of the text, computing "
            f"in {lm.dtype}); try `dtype='float32'` or another `key_tap`, with `restart=True`"
        )
    return vectors.float()
