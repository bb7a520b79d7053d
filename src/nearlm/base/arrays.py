"""Arrays that lie on disk in several `.npy` files and are read as one."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import files
from nearlm.base.errors import StoreError
from nearlm.base.mapping import map_file

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Ids = npt.NDArray[np.integer[Any]]
FEW = 32  # rows that one thread has done before several are awake


@dataclass(frozen=True)
class ArrayFile:
    """An `.npy` file as it must be: its path, element type and shape."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def header(self) -> bytes:
        """The bytes the file begins with."""
        return files.npy_header(self.dtype, self.shape)

    @property
    def bytes(self) -> int:
        """The file's size."""
        return files.NPY_HEADER + math.prod(self.shape) * self.dtype.itemsize

    @property
    def sound(self) -> bool:
        """Whether the file is there in its full size."""
        return self.path.exists() and self.path.stat().st_size == self.bytes

    def check(self) -> None:
        """Refuse a file that is missing, cut, or of another type or shape."""
        if not self.path.is_file():
            raise StoreError(f"{self.path} is missing; restore it, or build the store again")
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != self.bytes:
                raise StoreError(f"{self.path} has {size:,} bytes, expected {self.bytes:,}; restore it or build again")
            if file.read(files.NPY_HEADER) != self.header:
                raise StoreError(f"{self.path} has a damaged header, expected {self.dtype} {list(self.shape)}")

    def offset(self, row: int) -> int:
        """Return where a row begins in the file."""
        return files.NPY_HEADER + row * self.dtype.itemsize * math.prod(self.shape[1:])

    def write(self, rows: npt.ArrayLike) -> None:
        """Replace the file by an array, whole or not at all."""
        files.write_array(self.path, self.dtype, self.shape, [np.asarray(rows)])

    def open(self) -> Array:
        """Map the file into memory, read-only."""
        whole = map_file(self.path)
        if len(whole) != self.bytes:
            raise StoreError(f"{self.path} has {len(whole):,} bytes, expected {self.bytes:,}; make it again")
        return whole[files.NPY_HEADER :].view(self.dtype).reshape(self.shape)


class ShardedArray:
    """Several arrays as one along their first axis; slices and `take` read from disk only what they return."""

    def __init__(self, shards: Sequence[Array]):
        self.shards = list(shards)
        self.dtype = self.shards[0].dtype
        self.shape = (sum(len(shard) for shard in self.shards), *self.shards[0].shape[1:])

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, item: int | slice) -> Any:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            cuts = [shard[max(start - first, 0) : max(stop - first, 0)] for first, shard in self.parts()]
            return np.asarray(np.concatenate(cuts))
        return self.take([item])[0]

    def parts(self) -> Iterator[tuple[int, Array]]:
        """Yield each shard with the number of its first element in the whole."""
        first = 0
        for shard in self.shards:
            yield first, shard
            first += len(shard)

    def ones(self) -> "ShardedArray":
        """Return an integer 1 for every element, in shards as long, without memory for them."""
        return ShardedArray([np.broadcast_to(np.ones((), np.int32), len(shard)) for shard in self.shards])

    def take(self, ids: npt.ArrayLike) -> Array:
        """Return the elements at `ids`, in their order; each shard is read once, front to back."""
        wanted = np.asarray(ids)
        if wanted.size and wanted.dtype.kind not in "iu":
            raise TypeError(f"ids are {wanted.dtype}, expected integers (for a mask use np.flatnonzero)")
        wanted = wanted.astype(np.int64)
        flat = wanted.reshape(-1)
        if flat.size and not -len(self) <= flat.min() <= flat.max() < len(self):
            raise IndexError(f"ids {flat.min()} to {flat.max()} are outside 0 to {len(self) - 1}")
        unique, inverse = np.unique(np.where(flat < 0, flat + len(self), flat), return_inverse=True)
        found = np.empty((len(unique), *self.shape[1:]), self.dtype)
        for first, shard in self.parts():
            begin, stop = np.searchsorted(unique, (first, first + len(shard)))
            if begin < stop:
                found[begin:stop] = shard[unique[begin:stop] - first]
        return found[inverse].reshape((*wanted.shape, *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def blocks(total: int, size: int) -> Iterator[slice]:
    """Cut a number of rows into blocks of at most `size`."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size))
