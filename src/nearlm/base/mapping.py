"""Files in memory, read-only, without a descriptor for each: a process may have only some hundreds of those open.

Python's own mmap keeps a copy of the descriptor (until 3.13 there is no choice), so the system's is called here.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_FAILED = ctypes.c_void_p(-1).value


class MappedFile:
    """All of a file's bytes, for as long as an array over them is used."""

    def __init__(self, path: Path):
        with open(path, "rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            self._address = _map(file.fileno(), self.size, path)
        unmap = weakref.finalize(self, _SYSTEM.munmap, self._address, self.size)
        unmap.atexit = False  # a thread may still read
        self.__array_interface__ = {
            "version": 3,
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self._address, True),
        }

    def read_ahead(self, begin: int, length: int) -> None:
        """Ask for some pages, which are soon to be read."""
        _SYSTEM.madvise(self._address + begin, min(length, self.size - begin), mmap.MADV_WILLNEED)


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """Return a file's bytes as an array that is read from disk where it is looked at."""
    if os.name == "nt":  # where open files are hardly limited
        return np.memmap(path, np.uint8, "r")
    return np.asarray(MappedFile(path))


def mapped_file(array: npt.NDArray[Any]) -> MappedFile | None:
    """Return the file that an array is a view of, if it is one."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, MappedFile) else None


def _map(descriptor: int, size: int, path: Path) -> int:
    address: int | None = _SYSTEM.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return address


def _load_system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    system.mmap.restype = pointer
    system.mmap.argtypes = [pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    system.munmap.argtypes = [pointer, size]
    system.madvise.argtypes = [pointer, size, ctypes.c_int]
    return system


_SYSTEM: Any = None if os.name == "nt" else _load_system()
