"""One shard of a build: its files reserved at once, its keys computed and written batch by batch."""

import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearlm import files
from nearlm.datastore import describe, shard_files
from nearlm.errors import ModelError
from nearlm.files import Json
from nearlm.lm import LM
from nearlm.progress import Advance, Rate, Reporter, duration
from nearlm.windows import Ints, Windows, fill_batch, plan_batches

CHECKPOINT_SECONDS = 2.0
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
        key_dtype: str,
    ):
        self._lm, self._windows, self._tokens, self._base = lm, windows, tokens, base
        self._files = shard_files(folder, number, windows.records, lm.dim, key_dtype)
        self._step = step_name(number)

    def fill(self, batch_tokens: int, job: files.Job, clock: Clock) -> Json:
        """Compute the batches that are not there yet and return what the shard holds."""
        state = job.state(self._step)
        sound = all(file.path.exists() and file.path.stat().st_size == file.bytes for file in self._files.values())
        if state.get("files") and sound:
            return state
        if not state or not sound:
            self._allocate()
            state = {"batches": 0, "tokens": 0}
            job.note(self._step, state)
        state = self._write_batches(plan_batches(self._windows, batch_tokens), state, job, clock)
        listed = {file.path.name: describe(file.path) for file in self._files.values()}
        state = {**state, "records": self._windows.records, "files": listed}
        job.note(self._step, state)
        return state

    def _write_batches(self, batches: list[Ints], state: Json, job: files.Job, clock: Clock) -> Json:
        noted = time.monotonic()
        with open(self._files["keys"].path, "r+b") as file:
            for number in range(state["batches"], len(batches)):
                tokens = self._write_keys(file, batches[number])
                clock.tick(tokens)
                state = {"batches": number + 1, "tokens": state["tokens"] + tokens}
                if time.monotonic() - noted >= CHECKPOINT_SECONDS:
                    files.sync(file)
                    job.note(self._step, state)
                    noted = time.monotonic()
            files.sync(file)
        return state

    def _allocate(self) -> None:
        """Reserve the keys' space, and write values and origins, which need no LM."""
        keys, values, origin = (self._files[name] for name in ("keys", "values", "origin"))
        files.allocate(keys.path, keys.header, keys.bytes)
        position = self._windows.target_positions
        for file, column in ((values, self._tokens[position]), (origin, position + self._base)):
            files.write_bytes(file.path, file.header + np.ascontiguousarray(column, file.dtype).tobytes())

    def _write_keys(self, file: BinaryIO, batch: Ints) -> int:
        """Compute one batch, put each window's keys in their place, and return the number of tokens."""
        rows = self._windows[batch]
        vectors = self._lm.keys(fill_batch(self._tokens, rows))
        keys = vectors.to(getattr(torch, str(self._files["keys"].dtype))).cpu()
        if not torch.isfinite(keys).all():
            self._refuse(vectors, rows)
        data, width = keys.numpy(), keys.shape[1] * keys.element_size()
        begin = 0
        for record, count in zip(self._windows.first_record[batch], rows.targets, strict=True):
            files.write_at(file, data[begin : begin + count].data, files.NPY_HEADER + int(record) * width)
            begin += count
        return int(rows.inputs.sum())

    def _refuse(self, vectors: Tensor, rows: Windows) -> None:
        """Say why keys cannot be kept: they are not finite, or too large for their type."""
        if not torch.isfinite(vectors).all():
            raise ModelError(
                f"{self._lm.name} gives non-finite keys (near token {int(rows.start[0])} of the text, computing "
                f"in {self._lm.dtype}); try --dtype float32 or another --key-tap"
            )
        largest = float(vectors.abs().max())
        raise ModelError(
            f"a key of {self._lm.name} reaches {largest:.0f}, more than float16's 65504; use --key-dtype float32"
        )


def step_name(shard: int) -> str:
    """Return the name of a shard's step in the build's job."""
    return f"shard-{shard:05d}"
