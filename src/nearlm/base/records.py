"""Records on disk: frozen dataclasses as JSON files with a checksum of their own, validated when they are read."""

import os
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nearlm.base import files
from nearlm.base.errors import OptionError, StoreError
from nearlm.base.progress import Advance

Record = TypeVar("Record")


def to_json(record: Any) -> Any:
    """Return a record, or several in a list or dict, as plain values."""
    return msgspec.to_builtins(record)


def from_json(kind: type[Record], value: Any, where: str | Path) -> Record:
    """Turn plain values into a record; one that lacks something or has it of another type or range is an error."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OptionError) as error:
        why = str(error).replace("`", "")  # no parameters, which a caller could mend
        raise StoreError(f"{where} is not as this nearlm writes it ({why}); restore it or make it again") from None


def write_record(path: Path, record: Any) -> None:
    """Replace `path` by a record with a checksum."""
    files.write_stamped(path, to_json(record))


def read_record(kind: type[Record], path: Path) -> Record:
    """Read what `write_record` wrote; a file that was damaged or edited is an error."""
    return from_json(kind, files.read_stamped(path), path)


def read_if_there(kind: type[Record], path: Path) -> Record | None:
    """Read a record, or return None if there is no such file."""
    return read_record(kind, path) if path.exists() else None


@dataclass(frozen=True)
class FileInfo:
    """What a record says of a file: its size and the sha256 of its bytes."""

    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileInfo":
        """Describe a file as it is."""
        return cls(path.stat().st_size, files.checksum(path))

    @classmethod
    def by_name(cls, paths: Iterable[Path]) -> "dict[str, FileInfo]":
        """Describe files as they are, by their names."""
        return {path.name: cls.of(path) for path in paths}


def check_names(where: Path, named: Iterable[str], known: Collection[str]) -> None:
    """Refuse a record that names another file than the layout has: it could lie outside of the folder."""
    for name in named:
        if name not in known:
            raise StoreError(f"{where} names a file {name!r}, which it cannot have; restore it or make it again")


def check_files(
    folder: Path, listed: dict[str, FileInfo], remedy: str, *, every_byte: bool = False, advance: Advance | None = None
) -> None:
    """Refuse the first listed file that is missing or cut, or, if every byte is read, not as it was written."""
    for name, stated in listed.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != stated.bytes:
            raise StoreError(f"{path} is missing or cut, expected {stated.bytes:,} bytes; {remedy}")
    if not every_byte:
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        several = len(listed) > 1  # for one file no thread is started
        checksums = (pool.map if several else map)(lambda name: files.checksum(folder / name), listed)
        for (name, stated), found in zip(listed.items(), checksums, strict=True):
            if found != stated.sha256:
                raise StoreError(f"{folder / name} is damaged (its checksum differs); {remedy}")
            if advance:
                advance(stated.bytes)
