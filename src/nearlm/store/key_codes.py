"""8-bit keys: every axis has a middle and a step, which are fitted to a sample before the first key is written.

A code c stands for middle + step · c. The codes -127 and 127 are those of all that lies 6 standard deviations or more
from the middle; how many there are is counted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Array, ArrayFile, Doubles, Floats, Reals, ShardedArray, StoreError, blocks

INT8 = "int8"
SPAN = 6.0  # standard deviations that codes reach
_MOST = 127
_BLOCK = 1 << 16
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class KeyCodec:
    """The middle and the step of every axis, [dim] each."""

    middle: Floats
    step: Floats

    @classmethod
    def fit(cls, keys: Reals) -> "KeyCodec":
        """Fit middles and steps to some keys, [n, dim]; an axis on which they are alike gets a small step."""
        middle = keys.mean(0, dtype=np.float64)
        spread = _not_too_small(keys.std(0, dtype=np.float64), middle)
        return cls(middle.astype(np.float32), (spread * SPAN / (_MOST - 0.5)).astype(np.float32))

    @classmethod
    def read(cls, file: ArrayFile) -> "KeyCodec":
        """Read middles and steps; numbers that no keys can have are refused."""
        file.check()
        middle, step = np.array(file.open())
        if not (np.isfinite(middle).all() and np.isfinite(step).all() and (step > 0).all()):
            raise StoreError(f"{file.path} has scales that cannot be; restore it, or build the store again")
        return cls(middle, step)

    def write(self, file: ArrayFile) -> None:
        """Keep middles and steps, whole or not at all."""
        file.write(np.stack([self.middle, self.step]))

    def encode(self, keys: Floats) -> Codes:
        """Round keys to codes; what lies beyond the last one gets that."""
        steps = np.rint((keys - self.middle) / self.step)
        codes: Codes = np.clip(steps, -_MOST, _MOST, out=steps).astype(np.int8)
        return codes

    def decode(self, codes: Codes) -> Floats:
        """Return what codes stand for."""
        keys = codes.astype(np.float32)
        keys *= self.step
        keys += self.middle
        return keys


class CodedKeys(ShardedArray):
    """Keys that are kept as codes and read as numbers; `shards` and `parts` are the codes."""

    def __init__(self, codes: ShardedArray, codec: KeyCodec):
        self.codes = codes
        self.codec = codec
        self.shards = codes.shards
        self.shape = codes.shape
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, item: int | slice) -> Any:
        return self.codec.decode(self.codes[item])

    def take(self, ids: npt.ArrayLike) -> Array:
        """Return the keys at `ids`, in their order."""
        return self.codec.decode(self.codes.take(ids))


def count_clipped(keys: ArrayFile) -> int:
    """Count the codes of a file that are the last ones of their axis; keys that are no codes have none."""
    if keys.dtype != np.int8:
        return 0
    codes = keys.open()
    return sum(int(np.count_nonzero(np.abs(codes[rows]) == _MOST)) for rows in blocks(len(codes), _BLOCK))


def _not_too_small(spread: Doubles, middle: Doubles) -> Doubles:
    """Widen the spread of an axis that hardly varies: others show what numbers are, float32 how near two can be."""
    least = np.maximum(1e-3 * spread.mean(), 1e-6 * np.abs(middle))
    return np.where(np.maximum(spread, least) > 0, np.maximum(spread, least), 1.0)
