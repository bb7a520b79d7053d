"""Any text as a stream of documents: files, folders, globs, JSON(L), Parquet, Hugging Face datasets, stdin."""

import codecs
import contextlib
import fnmatch
import glob as globbing
import hashlib
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nearlm.base import MissingExtraError, OptionError, TextError
from nearlm.text.named import is_named, named_corpus

TEXT_SUFFIXES = frozenset(
    [
        ".txt",
        ".text",
        ".md",
        ".markdown",
        ".rst",
        ".adoc",
        ".org",
        ".tex",
        ".log",
        ".html",
        ".htm",
        ".xml",
        ".csv",
        ".tsv",
        ".py",
        ".pyi",
        ".js",
        ".ts",
        ".jsx",
        ".tsx",
        ".java",
        ".kt",
        ".scala",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".cs",
        ".go",
        ".rs",
        ".rb",
        ".php",
        ".pl",
        ".lua",
        ".r",
        ".jl",
        ".sh",
        ".sql",
        ".css",
        ".toml",
        ".yaml",
        ".yml",
        ".ini",
        ".cfg",
    ]
)
ROW_SUFFIXES = frozenset((".jsonl", ".ndjson", ".parquet"))
PIECE = 1 << 16
_SUFFIXES = TEXT_SUFFIXES | ROW_SUFFIXES
_BLOCK = 1 << 20
_REPLACEMENT = "\ufffd".encode()
_SURROGATE = re.compile("[\ud800-\udfff]")
_LAST_LINE_END = re.compile(r"(?s:.*)\S\n(?=\S)")
_LAST_WORD_END = re.compile(r"(?s:.*)\S(?= \S)")
_UNDECODABLE = "document with undecodable bytes (replaced by U+FFFD)"
_WANTED = "give a file, a folder, a glob, a named corpus (spdx:train), hf:NAME or - for stdin"
_UNUSABLE = object()  # stands for a row that was noted already

Found = tuple[str, int, Iterator[str]]


@dataclass(frozen=True)
class Document:
    """One file or row: its source's name, its row there (-1: the whole source), and its text in pieces."""

    text: int
    source: str
    row: int
    pieces: Iterator[str]


class Corpus:
    """The documents of some texts, in a fixed order, with a count of what could not be used.

    Each text is a path, a glob, `-` for standard input, a named corpus (`spdx:train`) or
    `hf:NAME[/CONFIG][:SPLIT]`. Within one text a file counts once, however many links lead to it.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        field: str = "text",
        glob: str | None = None,
        strict: bool = False,
        stdin: BinaryIO | None = None,
    ):
        if not texts:
            raise TextError("no text was given; name at least one file, folder or corpus with --text")
        self.texts = [str(text) for text in texts]
        if self.texts.count("-") > 1:
            raise TextError("- (stdin) was given as text more than once, but it can be read only once")
        self.field, self.glob, self.strict = field, glob, strict
        self.repeatable = True  # whether the documents can be read a second time
        self._stdin = stdin
        self._sources = [self._open(text) for text in self.texts]
        self.reset()

    def reset(self) -> None:
        """Forget the counts and checksums of an earlier pass."""
        self.problems: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self._digests = [hashlib.sha256() for _ in self.texts]

    @property
    def labels(self) -> list[str]:
        """A name for each text that holds no absolute path."""
        return [_label(text) for text in self.texts]

    def checksums(self) -> list[str]:
        """Return, for each text, the sha256 of the names and texts of the documents read so far."""
        return [digest.copy().hexdigest() for digest in self._digests]

    def documents(self) -> Iterator[Document]:
        """Yield every document; its pieces must be read before the next one is asked for."""
        self.reset()
        for text, source in enumerate(self._sources):
            for name, row, pieces in source():
                yield Document(text, name, row, self._watched(text, name, row, pieces))

    def note(self, problem: str, example: str) -> None:
        """Count something unusable, or refuse it when strict."""
        if self.strict:
            raise TextError(f"{example}: {problem}; mend it, or leave out --strict to skip such things")
        self.problems[problem] += 1
        self.examples.setdefault(problem, example)

    def _watched(self, text: int, name: str, row: int, pieces: Iterator[str]) -> Iterator[str]:
        digest = self._digests[text]
        digest.update(f"{name}\0{row}\0".encode())
        empty = True
        for piece in pieces:
            digest.update(piece.encode())
            empty = empty and not piece.strip()
            yield piece
        if empty:
            self.note("empty document", _place(name, row))

    def _open(self, text: str) -> Callable[[], Iterator[Found]]:
        """Find what a text stands for, so that mistakes show at once; the result reads it."""
        if text == "-":
            self.repeatable = False
            return lambda: self._stream("stdin", self._stdin or _stdin())
        if text.startswith("hf:"):
            rows = _open_dataset(text, self.field)
            return lambda: self._rows(_label(text), rows)
        paths = _walk(named_corpus(text), f"{text}/", self.glob) if is_named(text) else _find(text, self.glob)
        self.repeatable = self.repeatable and not any(_is_pipe(path) for path, _ in paths)
        if any(path.suffix.lower() == ".parquet" for path, _ in paths):
            _parquet()
        return lambda: itertools.chain.from_iterable(self._file(path, name) for path, name in paths)

    def _file(self, path: Path, name: str) -> Iterator[Found]:
        suffix = path.suffix.lower()
        try:
            if suffix in (".jsonl", ".ndjson"):
                yield from self._rows(name, _read_lines(path, name, self))
            elif suffix == ".json":
                yield from self._rows(name, _read_json(path, name, self))
            elif suffix == ".parquet":
                yield from self._rows(name, _read_parquet(path, name, self.field))
            else:
                with open(path, "rb") as file:
                    yield from self._stream(name, file)
        except OSError as error:
            self.note(f"unreadable file ({error.strerror or error})", name)

    def _stream(self, name: str, file: BinaryIO) -> Iterator[Found]:
        head = file.read(_BLOCK)
        if b"\0" in head[:4096]:
            self.note("binary file (it holds NUL bytes, expected UTF-8 text)", name)
            return
        yield name, -1, _pieces(_decoded(head, file, name, self))

    def _rows(self, name: str, rows: Iterable[Any]) -> Iterator[Found]:
        first = True
        for row, value in enumerate(rows, start=1):
            if value is _UNUSABLE:
                continue
            text = _field(value, self.field)
            if isinstance(text, str):
                yield name, row, _pieces(self._blocks(text, _place(name, row)))
            elif first and text is not None:
                raise TextError(f"{_place(name, row)} {_no_text(value, text, self.field)}; name the field with --field")
            else:
                self.note(f"row without a text in field {self.field!r}", _place(name, row))
            first = False
        if first:
            self.note("file without rows", name)

    def _blocks(self, text: str, place: str) -> Iterator[str]:
        if _SURROGATE.search(text):  # half a character, which JSON can write as \\ud800
            self.note(_UNDECODABLE, place)
        for begin in range(0, len(text), _BLOCK):
            yield _SURROGATE.sub("\ufffd", text[begin : begin + _BLOCK])


def _place(name: str, row: int) -> str:
    return name if row < 0 else f"{name}:{row}"


def _label(text: str) -> str:
    if text == "-":
        return "stdin"
    if text.startswith("hf:"):
        name, colon, split = text.removeprefix("hf:").partition(":")
        return _printable(f"hf:{_name(Path(name)) if Path(name).is_absolute() else name}{colon}{split}")
    return text if is_named(text) else _printable(_name(Path(text)))


def _name(path: Path) -> str:
    return path.name if path.name not in ("", "..") else path.resolve().name or "root"


def _printable(name: str) -> str:
    """Write the bytes of a file's name that are no UTF-8 as \\xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise TextError("- was given as text, but stdin is closed; pipe a text in, or name a file")
    return sys.stdin.buffer


def _find(text: str, glob: str | None) -> list[tuple[Path, str]]:
    shown = repr(text if len(text) <= 200 else f"{text[:199]}…")
    if not text:
        raise TextError(f"a text is empty (''); {_WANTED}")
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            return _walk(path, f"{_name(path)}/", glob)
        if path.exists():
            return [(path, _printable(path.name))]
    except (OSError, RuntimeError) as error:  # too long a name, a folder that may not be entered, no such ~user
        raise TextError(f"{shown} cannot be read ({getattr(error, 'strerror', None) or error}); {_WANTED}") from None
    if not globbing.has_magic(text):
        raise TextError(f"{shown} does not exist; {_WANTED}")
    found = _match(path)
    if not found:
        raise TextError(f"no file matches {shown}; {_WANTED}")
    return found


def _match(pattern: Path) -> list[tuple[Path, str]]:
    """List the files that a glob matches, named from the last folder that it spells out on."""
    base = Path(*itertools.takewhile(lambda part: not globbing.has_magic(part), pattern.parts))
    return _named(_expand(pattern), base, "" if base == Path() else f"{_name(base)}/")


def _expand(pattern: Path) -> Iterator[Path]:
    """Yield the files that a glob matches, like a shell; unlike glob's own, `**` goes down no folder twice."""
    parts = pattern.parts
    first = parts.index("**") if "**" in parts else len(parts)
    hidden = any(part.startswith(".") for part in parts[first:])
    for found in map(Path, globbing.glob(str(Path(*parts[:first])))):
        below = _walked(found, [], hidden) if first < len(parts) else (found,)
        yield from (path for path in below if path.is_file() and _fits(path.relative_to(found).parts, parts[first:]))


def _fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Tell whether a path's parts fit those of a glob; hidden ones fit only what begins with a dot."""
    if not pattern or pattern == ("**",):
        return not parts or (bool(pattern) and not any(part.startswith(".") for part in parts))
    if pattern[0] == "**" and _fits(parts, pattern[1:]):
        return True
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _fits(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _walk(folder: Path, prefix: str, glob: str | None) -> list[tuple[Path, str]]:
    """List the text files of a folder, hidden ones left out."""
    found = _named(_text_files(folder) if glob is None else _chosen_files(folder, glob), folder, prefix)
    if not found:
        wanted = "of a known kind (.txt .md .rst .py .html .jsonl .parquet …)" if glob is None else f"matching {glob!r}"
        raise TextError(f"folder {folder} has no file {wanted}; choose files with --glob, e.g. --glob '**/*.txt'")
    return found


def _named(paths: Iterable[Path], base: Path, prefix: str) -> list[tuple[Path, str]]:
    """Name files by their path from `base` on, sort them by name, and keep the first of those that are one file."""
    named = sorted((_printable(f"{prefix}{path.relative_to(base).as_posix()}"), path) for path in paths)
    unique: dict[str, tuple[Path, str]] = {}
    for name, path in named:
        unique.setdefault(os.path.realpath(path), (path, name))
    return list(unique.values())


def _chosen_files(folder: Path, glob: str) -> Iterator[Path]:
    if not glob or glob.startswith("/") or ".." in Path(glob).parts:
        raise OptionError(f"--glob is {glob!r}, expected a pattern inside the folder, e.g. '**/*.txt'")
    return _expand(Path(globbing.escape(str(folder)), glob))


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield a folder's files with known suffixes; a subfolder that cannot be listed stands for its files."""
    unreadable: list[OSError] = []
    for path in _walked(folder, unreadable, hidden=False):
        if path.suffix.lower() in _SUFFIXES and not _is_pipe(path):
            yield path
    yield from (Path(error.filename) for error in unreadable)


def _walked(folder: Path, unreadable: list[OSError], hidden: bool) -> Iterator[Path]:
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


def _is_pipe(path: Path) -> bool:
    """Tell whether a path is something that is neither file nor folder, to be read once at most."""
    with contextlib.suppress(OSError):
        return path.exists() and not path.is_file() and not path.is_dir()
    return False


def _decoded(head: bytes, file: BinaryIO, name: str, corpus: Corpus) -> Iterator[str]:
    """Decode UTF-8 block by block; bytes that are no UTF-8 become U+FFFD and are counted."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    tail, replaced = b"", 0
    for block in itertools.chain((head.removeprefix(codecs.BOM_UTF8),), _read_blocks(file, name)):
        text = decoder.decode(block)
        replaced += text.count("\ufffd") - (tail + block).count(_REPLACEMENT)
        yield text
        tail = (tail + block)[-2:]
    rest = decoder.decode(b"", final=True)
    yield rest
    if replaced + rest.count("\ufffd") > 0:
        corpus.note(_UNDECODABLE, name)


def _read_blocks(file: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        while block := file.read(_BLOCK):
            yield block
    except OSError as error:
        raise TextError(f"{name} can be read only in part ({error.strerror or error}); mend or remove it") from error


def _pieces(blocks: Iterator[str]) -> Iterator[str]:
    """Cut text into pieces of at most `PIECE` characters, at line ends where there are some."""
    rest = ""
    for block in _unix_lines(blocks):
        rest += block
        while len(rest) > PIECE:
            cut = _cut(rest)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def _unix_lines(blocks: Iterator[str]) -> Iterator[str]:
    """Make every CR LF one LF, also one that stands across two blocks."""
    held = ""
    for block in blocks:
        text = held + block
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix(held).replace("\r\n", "\n")
    yield held


def _cut(text: str) -> int:
    """Find where a long text may be cut without changing how it is tokenised, if there is such a place."""
    for place in (_LAST_LINE_END, _LAST_WORD_END):
        if found := place.match(text, PIECE // 2, PIECE):
            return found.end()
    return PIECE


def _field(row: Any, field: str) -> Any:
    """Return what a row holds in a field (`a.b`: in field b of field a), or `_UNUSABLE` if it has no such field."""
    if isinstance(row, str):
        return row
    for name in (field,) if isinstance(row, dict) and field in row else field.split("."):
        if not isinstance(row, dict) or name not in row:
            return _UNUSABLE
        row = row[name]
    return row


def _no_text(row: Any, found: Any, field: str) -> str:
    if not isinstance(row, dict):
        return f"is a JSON {type(row).__name__}, expected an object with field {field!r}"
    if found is _UNUSABLE:
        return f"has no field {field!r} (it has {_listed(row)})"
    return f"has a {type(found).__name__} in field {field!r}, expected a text"


def _listed(names: Iterable[Any]) -> str:
    names = [str(name) for name in names]
    return f"{', '.join(names[:10])}{', …' if len(names) > 10 else ''}" or "nothing"


def _read_lines(path: Path, name: str, corpus: Corpus) -> Iterator[Any]:
    first = True
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            value = _UNUSABLE
            if line.strip():
                try:
                    value = _parse(line, f"{name}:{number}", corpus)
                except ValueError as error:
                    if first:
                        raise TextError(
                            f"{name}:{number} is not JSON ({error}); expected one JSON object a line"
                        ) from None
                    corpus.note("line that is not JSON", f"{name}:{number}")
                first = False
            yield value


def _read_json(path: Path, name: str, corpus: Corpus) -> Iterator[Any]:
    """Read the items of a JSON list, or one object, or one object a line."""
    try:
        value = _parse(path.read_bytes(), name, corpus)
    except ValueError:
        yield from _read_lines(path, name, corpus)
        return
    yield from value if isinstance(value, list) else [value]


def _parse(data: bytes, place: str, corpus: Corpus) -> Any:
    text = data.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if text.count("\ufffd") > data.count(_REPLACEMENT):
        corpus.note(_UNDECODABLE, place)
    return value


def _parquet() -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    return parquet


def _read_parquet(path: Path, name: str, field: str) -> Iterator[Any]:
    try:
        with open(path, "rb") as opened:
            file = _parquet().ParquetFile(opened)
            column = _column(name, field, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                yield from batch.to_pylist()
    except ValueError as error:  # what pyarrow raises for all that is not as it should be
        raise TextError(f"{name} is no sound Parquet file ({error}); mend or remove it") from None


def _column(name: str, field: str, columns: Sequence[str]) -> str:
    """Return the column that holds a field, which may be a part of it (`column.part`)."""
    for column in (field, field.split(".")[0]):
        if column in columns:
            return column
    raise TextError(f"{name} has no field {field!r} (it has {_listed(columns)}); name the field with --field")


def _open_dataset(text: str, field: str) -> Any:
    """Open `hf:NAME[/CONFIG][:SPLIT]`; NAME may itself be `owner/name` or a local folder."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(f"reading {text}", "datasets") from None
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
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
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
