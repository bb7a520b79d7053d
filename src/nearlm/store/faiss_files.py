"""FAISS's own files, read only after a look at their structure: a store may come from a stranger.

FAISS follows a path to lists in another file (`ilod`), and believes sizes. So it reads a file first by way of
`_Reader`, which sees every code and size that FAISS asks for, and only then for good. A file that was read so before,
and is still the same, is `known`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nearlm.base import StoreError, files

_LEAVES = (b"IxF2", b"IxFI", b"IxFl")  # plain vectors: they hold no other index
_UNCHECKED = (b"INS", b"INN")  # NSG and NNDescent, which FAISS also makes and reads badly
_NESTED = 16  # indexes in each other, at most
_ROOM = 16  # times its file's size may an array take that FAISS reads from it
_WHOLE = 1 << 62  # FAISS asks for an array at once
_one_at_a_time = threading.Lock()  # FAISS has one limit for all threads


def read_faiss_index(path: Path, flags: int, remedy: str, *, known: bool = False) -> Any:
    """Read an index, which must lie in this one file; `flags` are FAISS's own."""
    import faiss

    with _reading(path, remedy):
        if not known:
            _look_into(path)
        return faiss.read_index(str(path), flags | faiss.IO_FLAG_READ_ONLY)


def _look_into(path: Path) -> None:
    """Let FAISS read an index under watch; one of plain vectors holds nothing that leads elsewhere."""
    import faiss

    with open(path, "rb") as file:
        if file.read(4) not in _LEAVES:
            file.seek(0)
            faiss.read_index(_watched(file))


def read_linear(path: Path, d_in: int, d_out: int, remedy: str, *, known: bool = False) -> Any:
    """Read a linear transform between vectors of these widths."""
    import faiss

    with _reading(path, remedy), open(path, "rb") as file:
        read = faiss.read_VectorTransform(str(path) if known else _watched(file))
        if not isinstance(read, faiss.LinearTransform) or (read.d_in, read.d_out) != (d_in, d_out):
            raise ValueError(f"{type(read).__name__} of {read.d_in} × {read.d_out}, expected {d_in} × {d_out}")
        if not read.is_trained or read.A.size() != d_in * d_out or read.b.size() != d_out * read.have_bias:
            raise ValueError("a matrix of another size than its header says")
    return read


def write_faiss_index(index: Any, path: Path) -> None:
    """Replace a file by an index, whole or not at all."""
    import faiss

    with files.rewriting(path) as file:
        faiss.write_index(index, _appending(file))


def write_linear(transform: Any, path: Path) -> None:
    """Replace a file by a linear transform, whole or not at all."""
    import faiss

    with files.rewriting(path) as file:
        faiss.write_VectorTransform(transform, _appending(file))


def _appending(file: BinaryIO) -> Any:
    """Let FAISS write by way of `base.files`, whose errors name the file."""
    import faiss

    def append(data: bytes) -> int:
        files.append(file, data)
        return len(data)

    return faiss.PyCallbackIOWriter(append)  # type: ignore[attr-defined]


@contextmanager
def _reading(path: Path, remedy: str) -> Iterator[None]:
    """Keep FAISS from allocating more than a file can hold, and turn what it says of damage into one line."""
    import faiss

    with _one_at_a_time:
        before = faiss.get_deserialization_vector_byte_limit()
        try:
            faiss.set_deserialization_vector_byte_limit(_ROOM * path.stat().st_size + (1 << 16))
            yield
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            why = str(error).split("failed: ")[-1].split("\n")[0][:200] or type(error).__name__
            raise StoreError(f"{path} is not as nearlm writes it ({why}); {remedy}") from None
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


class _Reader:
    """Gives FAISS the bytes of a file as it asks for them, but lists of records as if they were empty."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.size = os.fstat(file.fileno()).st_size
        self.indexes = 0
        self.lists: list[bytes] = []  # what was read since the beginning of inverted lists

    def __call__(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > self.size - self.file.tell():
            raise ValueError(f"it ends before {count:,} bytes that it should have")
        data = self.file.read(count)
        if data == b"ilod":
            raise ValueError("its lists lie in another file")
        if count == 4 and data[:3] in _UNCHECKED:
            raise ValueError("a graph of a kind that is not looked into; HNSW is")
        self.indexes += count == 4 and data[:1] == b"I" and data.isalnum()  # no number, as of a link
        if self.indexes > _NESTED:
            raise ValueError("too many indexes in each other")
        self.lists = [data] if data == b"ilar" else [*self.lists[:5], data]
        return self._pass_over() if self._at_sizes else data

    @property
    def _at_sizes(self) -> bool:
        """Whether the sizes of lists were read, after the lists' number, the bytes of a code, their kind and number."""
        lengths = [len(data) for data in self.lists]
        if lengths[:2] == [4, 8] and self.lists[0] == b"ilar" and _number(self.lists[1]) > self.size:
            raise ValueError("more lists than it has bytes")
        return lengths[:5] == [4, 8, 8, 4, 8] and len(lengths) == 6 and self.lists[3] in (b"full", b"sprs")

    def _pass_over(self) -> bytes:
        """Go to the end of the lists, and return sizes of 0."""
        step = 1 if self.lists[3] == b"full" else 2  # sparse: each list's number and size
        sizes = np.frombuffer(self.lists[5], np.uint64).copy()
        records = sum(sizes[step - 1 :: step].tolist())
        end = self.file.tell() + records * (_number(self.lists[2]) + 8)
        if end > self.size:
            raise ValueError(f"it ends before the {records:,} records that its lists should have")
        self.file.seek(end)
        sizes[step - 1 :: step] = 0
        return sizes.tobytes()


def _watched(file: BinaryIO) -> Any:
    import faiss

    return faiss.PyCallbackIOReader(_Reader(file), _WHOLE)  # type: ignore[attr-defined]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
