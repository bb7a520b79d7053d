"""Files that survive a kill: atomic writes, checksums, and a folder's lock.

Every change that a store makes on disk goes through the functions of this module, so that a test
can stop the program at any one of them.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from nearlm.base.errors import StoreError

Json = dict[str, Any]
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, what a user may have of it, or a file
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES)
NPY_HEADER = 128  # bytes: the same for every array, so that a length can be filled in later


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, whole or not at all, also after a power cut."""
    _write(path, data)


def write_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...], parts: Iterable[npt.NDArray[Any]]) -> None:
    """Replace `path` by an `.npy` file made of parts, whole or not at all; only one part is held at a time."""
    _write(path, npy_header(dtype, shape), (np.ascontiguousarray(rows, dtype).data for rows in parts))


def sync_file(path: Path) -> None:
    """Put a file that somebody else wrote on the disk itself."""
    with open(path, "r+b") as file:
        sync(file)


@contextlib.contextmanager
def opened(path: Path, mode: str) -> Iterator[BinaryIO]:
    """Open a file for writing; an error, also that of the last bytes when it is closed, names the file."""
    try:
        with open(path, mode) as file:
            yield file  # type: ignore[misc]
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """Replace `path` by what is appended to the file that is yielded, whole or not at all.

    What a full disk could not hold does not stay there.
    """
    part = path.with_name(path.name + ".part")
    try:
        with opened(part, "wb") as file:
            yield file
            sync(file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    replace(part, path)


def write_json(path: Path, value: Json) -> None:
    """Replace `path` by `value` as JSON, whole or not at all."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Json) -> bytes:
    """Return the bytes that `write_json` writes; a file name that is not UTF-8 (lone surrogates) passes through."""
    return json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def check_links(folder: Path) -> None:
    """Refuse a folder with links that lead out of it, or with what is neither file nor folder (opening it may hang)."""
    root = os.path.realpath(folder)
    for entry in _entries(folder):
        link = entry.is_symlink()
        if link and not Path(os.path.realpath(entry.path)).is_relative_to(root):
            raise StoreError(f"{entry.path} is a link that leads out of {folder}; put there what it leads to")
        if not (link or entry.is_file() or entry.is_dir()):
            raise StoreError(f"{entry.path} is a pipe, socket or device, expected a file; remove it")


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Yield all that lies in a folder, whatever others remove meanwhile; links are not followed."""
    left = [str(folder)]
    while left:
        with contextlib.suppress(FileNotFoundError), os.scandir(left.pop()) as found:
            for entry in found:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)


def read_json(path: Path) -> Json:
    """Read one JSON object; anything else is an error that names the file."""
    return _parse(_read(path), path)


def _read(path: Path) -> bytes:
    if not path.is_file() and path.exists():
        raise StoreError(f"{path} is no file, expected JSON; remove it, or make it again")
    return path.read_bytes()


def _parse(data: bytes, path: Path) -> Json:
    try:
        value = json.loads(data)
    except RecursionError:
        raise StoreError(f"{path} is nested too deeply; the file is damaged: restore it or make it again") from None
    except ValueError as error:
        raise StoreError(f"{path} is not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise StoreError(f"{path} holds a JSON {type(value).__name__}, expected an object; the file is damaged")
    return value


def write_stamped(path: Path, value: Json) -> None:
    """Replace `path` by `value` as JSON with a checksum of its own."""
    write_bytes(path, stamped_bytes(value))


def stamped_bytes(value: Json) -> bytes:
    """Return the bytes that `write_stamped` writes."""
    value = {name: item for name, item in value.items() if name != "checksum"}
    return json_bytes({**value, "checksum": canonical_hash(value)})


def read_stamped(path: Path) -> Json:
    """Read what `write_stamped` wrote; a file that was damaged or edited is an error."""
    data = _read(path)
    value = _parse(data, path)
    unstamped = {name: item for name, item in value.items() if name != "checksum"}
    try:
        sound = json_bytes(value) == data and canonical_hash(unstamped) == value.get("checksum")
    except RecursionError:  # nested too deeply
        sound = False
    if not sound:
        raise StoreError(f"{path} does not match its own checksum; it was damaged or edited by hand")
    return value


def replace(source: Path, target: Path) -> None:
    """Rename `source` over `target` and make the rename durable."""
    source.replace(target)
    _sync_folder(target.parent)


def append(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write `data` at the end of `file`."""
    with _named(file):
        file.write(data)


def write_at(file: BinaryIO, data: bytes | memoryview, offset: int) -> None:
    """Write `data` into `file` at `offset`, past any buffering."""
    view = memoryview(data).cast("B")
    if not hasattr(os, "pwrite"):  # Windows
        place = file.tell()
        file.seek(offset)
        file.write(view)
        file.seek(place)
        return
    while view:
        with _named(file):
            written = os.pwrite(file.fileno(), view, offset)
        view, offset = view[written:], offset + written


def sync(file: BinaryIO) -> None:
    """Put what was written to `file` on the disk itself."""
    with _named(file):
        file.flush()
        getattr(os, "fdatasync", os.fsync)(file.fileno())  # macOS and Windows have no fdatasync


@contextlib.contextmanager
def _named(file: BinaryIO) -> Iterator[None]:
    """Let an error say which file could not be written."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or file.name
        raise


def allocate(path: Path, header: bytes, size: int) -> None:
    """Make `path` a file of `size` bytes that begins with `header`, with its disk space reserved."""
    with opened(path, "wb") as file:
        append(file, header)
        file.flush()
        try:
            if size > len(header):
                os.posix_fallocate(file.fileno(), 0, size)
        except (AttributeError, OSError) as error:  # macOS and Windows have none, and not every file system can
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                error.filename = str(path)
                raise
            os.ftruncate(file.fileno(), size)
        sync(file)
    _sync_folder(path.parent)


def truncate(path: Path, size: int) -> None:
    """Cut `path` down to `size` bytes."""
    os.truncate(path, size)


def link(source: Path, target: Path) -> None:
    """Give a file that never changes a second name, or copy it where the file system has no hard links."""
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    part = target.with_name(target.name + ".part")
    remove(part)
    try:
        part.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy(source, part)
    replace(part, target)


def copy(source: Path, target: Path) -> None:
    """Write a copy of a file, and put it on the disk itself."""
    with open(source, "rb") as old, opened(target, "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        sync(new)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_hash(value: Any) -> str:
    """Return the sha256 of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def npy_header(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> bytes:
    """Return the header of an `.npy` file, `NPY_HEADER` bytes as numpy writes it for one or two dimensions."""
    plain = tuple(int(length) for length in shape)
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": plain})
    return file.getvalue()


@contextlib.contextmanager
def lock(folder: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the one writer's lock of `folder`, which goes away with the process.

    If another has it, that is an error, or is said to `wait` before waiting for it.
    """
    own = FileLock(folder / ".lock")
    busy = f"another nearlm process is writing to {folder}"
    try:
        held = own.acquire(blocking=False)
    except Timeout:
        if wait is None:
            raise StoreError(f"{busy}; wait for it or stop it") from None
        wait(f"{busy}; waiting for it")
        held = own.acquire()
    with held:
        yield


def _write(path: Path, begin: bytes, rest: Iterable[memoryview] = ()) -> None:
    with rewriting(path) as file:
        append(file, begin)
        for chunk in rest:
            append(file, chunk)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
