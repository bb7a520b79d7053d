"""The rows of JSON, JSON lines, Parquet and Hugging Face datasets, and the text that each holds in a field."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nearlm.base import TextError, import_extra
from nearlm.text.pieces import UNDECODABLE, Note, replacements

SUFFIXES = frozenset((".json", ".jsonl", ".ndjson", ".parquet"))
_UNUSABLE = object()  # stands for a row that was noted already


def read_rows(path: Path, name: str, field: str, note: Note) -> Iterator[Any]:
    """Yield the rows of a file with one of `SUFFIXES`."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(path, name, field)
    if suffix == ".json":
        return _read_json(path, name, note)
    return _read_lines(path, name, note)


def row_texts(rows: Iterable[Any], name: str, field: str, note: Note) -> Iterator[tuple[int, str]]:
    """Yield number (from 1 on) and text of every row that has one; a first row without the field is an error."""
    first = True
    for number, row in enumerate(rows, start=1):
        if row is _UNUSABLE:
            continue
        text = _field(row, field)
        if isinstance(text, str):
            yield number, text
        elif first and text is not None:
            raise TextError(f"{name}:{number} {_no_text(row, text, field)}; name the field with `field`")
        else:
            note(f"row without a text in field {field!r}", f"{name}:{number}")
        first = False
    if first:
        note("file without rows", name)


def import_parquet() -> Any:
    """Return the library that reads Parquet, if it is installed."""
    return import_extra("pyarrow.parquet", "reading Parquet", "parquet")


def open_dataset(text: str, field: str) -> Any:
    """Open `hf:NAME[/CONFIG][:SPLIT]`; NAME may itself be `owner/name` or a local folder."""
    datasets = import_extra("datasets", f"reading {text}", "datasets")
    name, _, split = text.removeprefix("hf:").partition(":")
    if not name:
        raise TextError(f"{text!r} names no dataset; expected hf:NAME[/CONFIG][:SPLIT]")
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    errors = []
    for arguments in _dataset_arguments(name):
        try:
            rows = datasets.load_dataset(*arguments, split=split or "train")
        except Exception as error:
            lines = str(error).splitlines() or [""]
            errors.append(f"{type(error).__name__}: {lines[0]}")
        else:
            return rows.select_columns([_column(text, field, rows.column_names)])
    raise TextError(f"{text} cannot be loaded ({errors[0]}); expected hf:NAME[/CONFIG][:SPLIT]")


def _dataset_arguments(name: str) -> list[tuple[str, ...]]:
    parts = name.split("/")
    if Path(name).exists() or len(parts) == 1:
        return [(name,)]
    if len(parts) == 2:
        return [(name,), (parts[0], parts[1])]
    return [("/".join(parts[:2]), "/".join(parts[2:])), (name,)]


def _read_parquet(path: Path, name: str, field: str) -> Iterator[Any]:
    try:
        with open(path, "rb") as opened:
            file = import_parquet().ParquetFile(opened)
            column = _column(name, field, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                yield from batch.to_pylist()
    except ValueError as error:  # what pyarrow raises for all that is not as it should be
        raise TextError(f"{name} is not a readable Parquet file ({error}); mend or remove it") from None


def _column(name: str, field: str, columns: Sequence[str]) -> str:
    """Return the column that holds a field, which may be a part of it (`column.part`)."""
    for column in (field, field.split(".")[0]):
        if column in columns:
            return column
    raise TextError(f"{name} has no field {field!r} (it has {_list_names(columns)}); name the field with `field`")


def _read_json(path: Path, name: str, note: Note) -> Iterator[Any]:
    """Read the items of a JSON list, or one object, or one object per line."""
    try:
        value = _parse(path.read_bytes(), name, note)
    except ValueError:
        yield from _read_lines(path, name, note)
        return
    if isinstance(value, list):
        yield from value
    else:
        yield value


def _read_lines(path: Path, name: str, note: Note) -> Iterator[Any]:
    first = True
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                yield _UNUSABLE
                continue
            place = f"{name}:{number}"
            try:
                yield _parse(line, place, note)
            except ValueError as error:
                if first:
                    raise TextError(f"{place} is not JSON ({error}); expected one JSON object a line") from None
                note("line that is not JSON", place)
                yield _UNUSABLE
            first = False


def _parse(data: bytes, place: str, note: Note) -> Any:
    text = data.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if replacements(text, data) > 0:
        note(UNDECODABLE, place)
    return value


def _field(row: Any, field: str) -> Any:
    """Return what a row holds in a field (`a.b`: in field b of field a), or `_UNUSABLE` if it has no such field."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict) and field in row:
        return row[field]
    for name in field.split("."):
        if not isinstance(row, dict) or name not in row:
            return _UNUSABLE
        row = row[name]
    return row


def _no_text(row: Any, found: Any, field: str) -> str:
    if not isinstance(row, dict):
        return f"is a JSON {type(row).__name__}, expected an object with field {field!r}"
    if found is _UNUSABLE:
        return f"has no field {field!r} (it has {_list_names(row)})"
    return f"has a {type(found).__name__} in field {field!r}, expected a text"


def _list_names(names: Iterable[Any]) -> str:
    names = [str(name) for name in names]
    if len(names) > 10:
        names[10:] = ["…"]
    return ", ".join(names) or "nothing"
