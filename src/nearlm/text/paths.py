"""The files that a text stands for, each with the name it is known by: a file, a folder, a glob, a named corpus."""

import contextlib
import fnmatch
import glob as globbing
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from nearlm.base import OptionError, TextError
from nearlm.text.named import is_named, named_corpus

SUFFIXES = frozenset(
    """
    .txt .text .md .markdown .rst .adoc .org .tex .log .html .htm .xml .csv .tsv .jsonl .ndjson .parquet
    .py .pyi .js .ts .jsx .tsx .java .kt .scala .c .h .cc .cpp .hpp .cs .go .rs .rb .php .pl .lua .r .jl .sh .sql .css
    .toml .yaml .yml .ini .cfg
    """.split()
)
_WANTED = "give a file, a folder, a glob, a named corpus (spdx:train), hf:NAME or - for stdin"


def find_files(text: str, glob: str | None, skipped: Counter[str]) -> list[tuple[Path, str]]:
    """List the files that a text stands for, with their names; `glob` chooses files of a folder.

    Files that the text itself matches as a glob are named from the last folder on that it spells out. Files of a folder
    that are of no known kind are counted in `skipped`, by suffix.
    """
    if is_named(text):
        return _folder_files(named_corpus(text), f"{text}/", glob, Counter())
    shown = repr(text if len(text) <= 200 else f"{text[:199]}…")
    if not text:
        raise TextError(f"a text is empty (''); {_WANTED}")
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return _folder_files(path, f"{last_name(path)}/", glob, skipped)
        if path.exists():
            return [(path, printable(path.name))]
    except (OSError, RuntimeError) as error:  # too long a name, a folder that may not be entered, no such ~user
        raise TextError(f"{shown} cannot be read ({getattr(error, 'strerror', None) or error}); {_WANTED}") from None
    if not globbing.has_magic(text):
        raise TextError(f"{shown} does not exist; {_WANTED}")
    spelled = Path(*itertools.takewhile(lambda part: not globbing.has_magic(part), path.parts))
    found = _with_names(_matches(path), spelled, "" if spelled == Path() else f"{last_name(spelled)}/")
    if not found:
        raise TextError(f"no file matches {shown}; {_WANTED}")
    return found


def last_name(path: Path) -> str:
    """Return the last part of a path, also of `.` and `..`."""
    if path.name in ("", ".."):
        return path.resolve().name or "root"
    return path.name


def printable(name: str) -> str:
    """Write the bytes of a file's name that are not UTF-8 as \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_pipe(path: Path) -> bool:
    """Tell whether a path is something that is neither file nor folder, to be read once at most."""
    with contextlib.suppress(OSError):
        return path.exists() and not path.is_file() and not path.is_dir()
    return False


def _folder_files(folder: Path, prefix: str, glob: str | None, skipped: Counter[str]) -> list[tuple[Path, str]]:
    """List the text files of a folder, hidden ones left out."""
    if glob is None:
        paths = _text_files(folder, skipped)
        wanted = "of a known kind (.txt .md .rst .py .html .jsonl .parquet …)"
    else:
        if not glob or glob.startswith("/") or ".." in Path(glob).parts:
            raise OptionError(f"`glob` is {glob!r}, expected a pattern inside the folder, e.g. '**/*.txt'")
        paths = _matches(Path(globbing.escape(str(folder)), glob))
        wanted = f"matching {glob!r}"
    found = _with_names(paths, folder, prefix)
    if not found:
        raise TextError(f"folder {folder} has no file {wanted}; choose files with `glob`, e.g. `glob='**/*.txt'`")
    return found


def _with_names(paths: Iterable[Path], base: Path, prefix: str) -> list[tuple[Path, str]]:
    """Name files by their path from `base` on, sort them by name, and keep the first of those that are one file."""
    named = sorted((printable(f"{prefix}{path.relative_to(base).as_posix()}"), path) for path in paths)
    unique: dict[str, tuple[Path, str]] = {}
    for name, path in named:
        unique.setdefault(os.path.realpath(path), (path, name))
    return list(unique.values())


def _text_files(folder: Path, skipped: Counter[str]) -> Iterator[Path]:
    """Yield a folder's files with known suffixes; a subfolder that cannot be listed stands for its files."""
    unreadable: list[OSError] = []
    for path in _walk(folder, unreadable, hidden=False):
        if is_pipe(path):
            continue
        if path.suffix.lower() in SUFFIXES:
            yield path
        else:
            skipped[path.suffix.lower() or "no suffix"] += 1
    yield from (Path(error.filename) for error in unreadable)


def _matches(pattern: Path) -> Iterator[Path]:
    """Yield the files that a glob matches, like a shell; `**` follows links, but walks no folder twice."""
    # glob and wcmatch go round in circles of links 40 times, wcmatch's `*.*` fits hidden names, and pathlib follows no
    # link (before Python 3.13): see test_a_linked_file_counts_once_and_links_may_go_in_circles.
    parts = pattern.parts
    first = parts.index("**") if "**" in parts else len(parts)
    hidden = any(part.startswith(".") for part in parts[first:])
    for found in map(Path, globbing.glob(str(Path(*parts[:first])))):
        below = _walk(found, [], hidden) if first < len(parts) else (found,)
        yield from (path for path in below if path.is_file() and _fits(path.relative_to(found).parts, parts[first:]))


def _fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Tell whether a path's parts fit those of a glob; hidden ones fit only what begins with a dot."""
    if not pattern:
        return not parts
    if pattern[0] == "**" and _fits(parts, pattern[1:]):
        return True
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _walk(folder: Path, unreadable: list[OSError], hidden: bool) -> Iterator[Path]:
    """Yield all files below a folder; links to folders are followed, but none is walked twice."""
    seen = {os.path.realpath(folder)}
    for root, folders, names in os.walk(folder, onerror=unreadable.append, followlinks=True):
        wanted = (name for name in sorted(folders) if hidden or not name.startswith("."))
        folders[:] = [name for name in wanted if _is_new(Path(root, name), seen)]
        yield from (Path(root, name) for name in names if hidden or not name.startswith("."))


def _is_new(folder: Path, seen: set[str]) -> bool:
    """Tell whether a folder has not been walked yet under another name; links may go in circles."""
    real = os.path.realpath(folder)
    if real in seen:
        return False
    seen.add(real)
    return True
