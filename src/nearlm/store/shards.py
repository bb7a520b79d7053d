"""One shard of a build: its files reserved at once, its keys computed and written batch by batch."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from nearlm.base import Advance, Columns, FileInfo, Int32s, Ints, Job, ModelError, Pieces, Rate, Reporter, duration
from nearlm.model.lm import LM
from nearlm.store.layout import Layout
from nearlm.store.plan import BuildOptions
from nearlm.text import Windows, fill_batch, plan_batches, plan_shards

_ESTIMATE_BATCHES = 3


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


def plan_writers(layout: Layout, first: int, lm: LM, runs: Iterable[Run], options: BuildOptions) -> "list[ShardWriter]":
    """Cut runs into shards, which are numbered from `first` on; none holds records of two runs."""
    parts = [(run, rows) for run in runs for rows in plan_shards(run.windows, options.shard_records)]
    return [
        ShardWriter(layout, number, lm, run.windows[rows], run.tokens, run.base, options)
        for number, (run, rows) in enumerate(parts, start=first)
    ]


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

    def count_done(self, job: Job) -> int:
        """Return how many tokens earlier runs have done."""
        return job.count_done(self._step, self._sizes)

    def fill(self, job: Job, advance: Advance) -> dict[str, FileInfo]:
        """Compute the batches that are not there yet and return what the shard's files became."""
        position = self.windows.target_positions
        keys, values, origin = self._files.values()
        if not values.sound:
            values.write(self.tokens[position])
        if not origin.sound:
            origin.write(position + self.base)
        made = job.fill_files(self._step, {"keys": keys}, self._sizes, self._keys, advance)
        return made | FileInfo.by_name([values.path, origin.path])

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
        vectors = self.lm.keys(fill_batch(self.tokens, rows))
        keys = vectors.to(getattr(torch, str(self._files["keys"].dtype))).cpu()
        if not torch.isfinite(keys).all():
            self._refuse(vectors, rows)
        begin = 0
        for record, count in zip(self.windows.first_record[batch], rows.targets, strict=True):
            yield "keys", int(record), keys.numpy()[begin : begin + count]
            begin += count

    def _refuse(self, vectors: Tensor, rows: Windows) -> None:
        """Say why keys cannot be kept: they are not finite, or too large for their type."""
        if not torch.isfinite(vectors).all():
            raise ModelError(
                f"{self.lm.name} gives non-finite keys (near token {int(rows.start[0])} of the text, computing "
                f"in {self.lm.dtype}); try `dtype='float32'` or another `key_tap`, with `restart=True`"
            )
        largest = float(vectors.abs().max())
        raise ModelError(
            f"a key of {self.lm.name} reaches {largest:.0f}, more than float16's 65504; "
            "use `key_dtype='float32'`, with `restart=True`"
        )
