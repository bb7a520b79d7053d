"""Records on disk: frozen dataclasses as JSON files with a checksum of their own, validated when they are read."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from nearlm.base import files
from nearlm.base.errors import StoreError

Record = TypeVar("Record")


def to_json(record: Any) -> Any:
    """Return a record, or several in a list or dict, as plain values."""
    return msgspec.to_builtins(record)


def from_json(kind: type[Record], value: Any, where: str | Path) -> Record:
    """Turn plain values into a record; one that lacks something or has it of another type is an error."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"{where} is not as this nearlm writes it ({error}); restore it or make it again") from None


def write_record(path: Path, record: Any) -> None:
    """Replace `path` by a record with a checksum."""
    files.write_stamped(path, to_json(record))


def read_record(kind: type[Record], path: Path) -> Record:
    """Read what `write_record` wrote; a file that was damaged or edited is an error."""
    return from_json(kind, files.read_stamped(path), path)


def read_if_there(kind: type[Record], path: Path) -> Record | None:
    """Read a record, or return None if there is no such file."""
    return read_record(kind, path) if path.exists() else None
