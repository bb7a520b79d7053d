"""One shard of a build: its files reserved at once, its keys computed and written batch by batch."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearlm.base import Advance, Job, Json, ModelError, Pieces, Rate, Reporter, duration, files
from nearlm.model import LM
from nearlm.store.datastore import describe, shard_files
from nearlm.store.plan import BuildOptions
from nearlm.text import Ints, Windows, fill_batch, plan_batches

_ESTIMATE_BATCHES = 3


class Clock:
    """Counts tokens, and says once how long the rest will take."""

    def __init__(self, reporter: Reporter, advance: Advance, total: int):
        self._reporter, self._advance, self._total = reporter, advance, total
        self._rate, self._batches = Rate(), 0

    def tick(self, tokens: int) -> None:
        """Count one batch."""
        speed = self._rate(tokens)
        self._advance(tokens)
        self._batches += 1
        if self._batches == _ESTIMATE_BATCHES:
            left = duration((self._total - self._rate.count) / speed)
            self._reporter.say(f"about {left} to go ({speed:,.0f} tokens/s in the first {self._batches} batches)")


class ShardWriter:
    """Fills one shard's files from some windows over a token stream; `base` is the stream's first position."""

    def __init__(
        self,
        folder: Path,
        number: int,
        lm: LM,
        windows: Windows,
        tokens: npt.NDArray[np.int32],
        base: int,
        options: BuildOptions,
    ):
        self._lm, self._windows, self._tokens, self._base = lm, windows, tokens, base
        self._files = shard_files(folder, number, windows.records, lm.dim, str(options.key_dtype))
        self._step = f"shard-{number:05d}"
        self._batch_tokens = int(options.batch_tokens or 1)

    def done(self, job: Job) -> int:
        """Return how many tokens earlier runs have done."""
        batches = job.state(self._step).get("batches", 0)
        return int(sum(self._windows.inputs[rows].sum() for rows in self._batches()[:batches])) if batches else 0

    def fill(self, job: Job, clock: Clock) -> Json:
        """Compute the batches that are not there yet and return what the shard holds."""
        state = job.state(self._step)
        if state.get("files") and all(file.sound for file in self._files.values()):
            return state
        self._write_values()
        batches = self._batches()
        job.fill(
            self._step,
            {"keys": self._files["keys"]},
            len(batches),
            lambda number: self._keys(batches[number]),
            lambda number: clock.tick(int(self._windows.inputs[batches[number]].sum())),
        )
        listed = {file.path.name: describe(file.path) for file in self._files.values()}
        state = {**job.state(self._step), "records": self._windows.records, "files": listed}
        job.note(self._step, state)
        return state

    def _batches(self) -> list[Ints]:
        return plan_batches(self._windows, self._batch_tokens)

    def _write_values(self) -> None:
        """Write values and origins, which need no LM."""
        values, origin = self._files["values"], self._files["origin"]
        if values.sound and origin.sound:
            return
        position = self._windows.target_positions
        for file, column in ((values, self._tokens[position]), (origin, position + self._base)):
            files.write_bytes(file.path, file.header + np.ascontiguousarray(column, file.dtype).tobytes())

    def _keys(self, batch: Ints) -> Pieces:
        """Compute one batch and yield each window's keys with their place."""
        rows = self._windows[batch]
        vectors = self._lm.keys(fill_batch(self._tokens, rows))
        keys = vectors.to(getattr(torch, str(self._files["keys"].dtype))).cpu()
        if not torch.isfinite(keys).all():
            self._refuse(vectors, rows)
        data, begin = keys.numpy(), 0
        for record, count in zip(self._windows.first_record[batch], rows.targets, strict=True):
            yield "keys", int(record), data[begin : begin + count]
            begin += count

    def _refuse(self, vectors: Tensor, rows: Windows) -> None:
        """Say why keys cannot be kept: they are not finite, or too large for their type."""
        if not torch.isfinite(vectors).all():
            raise ModelError(
                f"{self._lm.name} gives non-finite keys (near token {int(rows.start[0])} of the text, computing "
                f"in {self._lm.dtype}); try --dtype float32 or another --key-tap, with --restart"
            )
        largest = float(vectors.abs().max())
        raise ModelError(
            f"a key of {self._lm.name} reaches {largest:.0f}, more than float16's 65504; "
            "use --key-dtype float32, with --restart"
        )
