"""Any text as a stream of documents: files, folders, globs, JSON(L), Parquet, Hugging Face datasets, stdin."""

import codecs
import glob as globbing
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nearlm.errors import MissingExtraError, TextError
from nearlm.named import is_named, named_corpus

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
PIECE = 1 << 18
_BLOCK = 1 << 20
_REPLACEMENT = "\ufffd".encode()
_LINE_END = re.compile(r"\S\n(?=\S)")


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
    `hf:NAME[/CONFIG][:SPLIT]`.
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
        self.field, self.glob, self.strict = field, glob, strict
        self._stdin = stdin
        self._sources = [self._open(text) for text in self.texts]
        self.reset()

    def reset(self) -> None:
        """Forget the counts and checksums of an earlier pass."""
        self.problems: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self._digests = [hashlib.sha256() for _ in self.texts]

    @property
    def repeatable(self) -> bool:
        """Whether the documents can be read a second time."""
        return "-" not in self.texts

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
            for name, row, pieces in source:
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
            digest.update(piece.encode("utf-8", "surrogatepass"))
            empty = empty and not piece.strip()
            yield piece
        if empty:
            self.note("empty document", name if row < 0 else f"{name}:{row}")

    def _open(self, text: str) -> "_Source":
        if text == "-":
            return _Source(lambda: self._stream("stdin", self._stdin or sys.stdin.buffer))
        if text.startswith("hf:"):
            rows = _open_dataset(text)
            return _Source(lambda: self._rows(text, rows))
        if is_named(text):
            return _Source(lambda: self._files(_walk(named_corpus(text), self.glob), text))
        paths = _find(text, self.glob)
        return _Source(lambda: self._files(paths, None))

    def _files(self, paths: Sequence[tuple[Path, str]], root: str | None) -> Iterator[tuple[str, int, Iterator[str]]]:
        for path, name in paths:
            yield from self._file(path, f"{root}/{name.split('/', 1)[1]}" if root else name)

    def _file(self, path: Path, name: str) -> Iterator[tuple[str, int, Iterator[str]]]:
        try:
            if path.suffix in (".jsonl", ".ndjson"):
                yield from self._rows(name, _read_lines(path, name, self))
            elif path.suffix == ".json":
                yield from self._rows(name, _read_json(path, name, self))
            elif path.suffix == ".parquet":
                yield from self._rows(name, _read_parquet(path, name, self.field))
            else:
                with open(path, "rb") as file:
                    yield from self._stream(name, file)
        except OSError as error:
            self.note(f"unreadable file ({error.strerror or error})", name)

    def _stream(self, name: str, file: BinaryIO) -> Iterator[tuple[str, int, Iterator[str]]]:
        head = file.read(_BLOCK)
        if b"\0" in head[:4096]:
            self.note("binary file (it holds NUL bytes)", name)
            return
        yield name, -1, _pieces(_decoded(head, file, name, self))

    def _rows(self, name: str, rows: Iterator[Any] | Any) -> Iterator[tuple[str, int, Iterator[str]]]:
        for row, value in enumerate(rows, start=1):
            text = _field(value, self.field)
            if isinstance(text, str):
                yield name, row, _pieces(iter((text,)))
            elif row == 1:
                raise TextError(f"{name}: {_no_field(value, self.field)}; name the field with --field")
            elif value is not None:
                self.note(f"row without a text in field {self.field!r}", f"{name}:{row}")


class _Source:
    """Something that can be iterated again."""

    def __init__(self, make: Any):
        self._make = make

    def __iter__(self) -> Iterator[tuple[str, int, Iterator[str]]]:
        return iter(self._make())


def _label(text: str) -> str:
    if text == "-":
        return "stdin"
    if text.startswith("hf:") or is_named(text):
        return text if not Path(text[3:]).is_absolute() else f"hf:{Path(text[3:]).name}"
    return Path(text).name or Path(text).resolve().name


def _find(text: str, glob: str | None) -> list[tuple[Path, str]]:
    path = Path(text).expanduser()
    if path.is_dir():
        return _walk(path, glob)
    if path.exists():
        return [(path, path.name)]
    if globbing.has_magic(text):
        found = [Path(match) for match in sorted(globbing.glob(str(path), recursive=True))]
        files = [(match, _below(match)) for match in found if match.is_file()]
        if files:
            return files
        raise TextError(f"no file matches {text!r}; give a file, a folder, a glob or a named corpus")
    raise TextError(f"{text!r} does not exist; give a file, a folder, a glob, a named corpus or - for stdin")


def _below(path: Path) -> str:
    return path.name if path.is_absolute() else path.as_posix()


def _walk(folder: Path, glob: str | None) -> list[tuple[Path, str]]:
    """List the text files of a folder as (path, name from the folder's own name on), sorted by name."""
    name = folder.name or folder.resolve().name
    candidates = folder.glob(glob) if glob else _text_files(folder)
    found = [path for path in candidates if path.is_file()]
    if not found:
        wanted = f"matching {glob!r}" if glob else f"ending in {' '.join(sorted(TEXT_SUFFIXES | ROW_SUFFIXES))}"
        raise TextError(f"folder {folder} has no file {wanted}; choose files with --glob, e.g. --glob '**/*.txt'")
    return sorted(((path, f"{name}/{path.relative_to(folder).as_posix()}") for path in found), key=lambda f: f[1])


def _text_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in TEXT_SUFFIXES | ROW_SUFFIXES:
                yield Path(root, name)


def _decoded(head: bytes, file: BinaryIO, name: str, corpus: Corpus) -> Iterator[str]:
    """Decode UTF-8 block by block; bytes that are no UTF-8 become U+FFFD and are counted."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    block, tail, replaced = head, b"", 0
    while block:
        text = decoder.decode(block)
        replaced += text.count("\ufffd") - (tail + block).count(_REPLACEMENT)
        yield text.replace("\r\n", "\n")
        tail, block = block[-2:], file.read(_BLOCK)
    rest = decoder.decode(b"", final=True)
    replaced += rest.count("\ufffd")
    yield rest
    if replaced > 0:
        corpus.note("document with undecodable bytes (each replaced by U+FFFD)", name)


def _pieces(blocks: Iterator[str]) -> Iterator[str]:
    """Cut text into pieces of at most `PIECE` characters, at line ends where there are some."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > PIECE:
            cut = _cut(rest)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def _cut(text: str) -> int:
    """Find where a long text may be cut without changing how it is tokenised, if there is such a place."""
    ends = [match.end() for match in _LINE_END.finditer(text, PIECE - 4096, PIECE)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", PIECE // 2, PIECE)
    return space if space > 0 else PIECE


def _field(row: Any, field: str) -> Any:
    if isinstance(row, str):
        return row
    for name in field.split("."):
        row = row.get(name) if isinstance(row, dict) else None
    return row


def _no_field(row: Any, field: str) -> str:
    if isinstance(row, dict):
        return f"the first row has no text in field {field!r} (it has {', '.join(map(str, row)) or 'nothing'})"
    return f"the first row is a {type(row).__name__}, expected an object with field {field!r}"


def _read_lines(path: Path, name: str, corpus: Corpus) -> Iterator[Any]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                yield None if number > 1 else ""
                continue
            try:
                yield json.loads(line)
            except ValueError:
                if number == 1:
                    raise TextError(f"{name}: its first line is not JSON; expected one JSON object a line") from None
                corpus.note("line that is not JSON", f"{name}:{number}")
                yield None


def _read_json(path: Path, name: str, corpus: Corpus) -> Iterator[Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        yield from _read_lines(path, name, corpus)
        return
    yield from value if isinstance(value, list) else [value]


def _read_parquet(path: Path, name: str, field: str) -> Iterator[Any]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("reading Parquet", "parquet") from None
    try:
        file = parquet.ParquetFile(path)
    except OSError:
        raise
    except Exception as error:
        raise TextError(f"{name} is not a Parquet file ({error})") from None
    column = field.split(".")[0]
    if column not in file.schema_arrow.names:
        raise TextError(f"{name} has no column {column!r} (it has {', '.join(file.schema_arrow.names)}); use --field")
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        yield from batch.to_pylist()


def _open_dataset(text: str) -> Any:
    """Open `hf:NAME[/CONFIG][:SPLIT]`; NAME may itself be `owner/name` or a local folder."""
    try:
        import datasets
    except ImportError:
        raise MissingExtraError(f"reading {text}", "datasets") from None
    name, _, split = text.removeprefix("hf:").partition(":")
    errors = []
    for arguments in _dataset_arguments(name):
        try:
            return datasets.load_dataset(*arguments, split=split or "train")
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    raise TextError(f"{text} cannot be loaded ({errors[0]}); expected hf:NAME[/CONFIG][:SPLIT]")


def _dataset_arguments(name: str) -> list[tuple[str, ...]]:
    parts = name.split("/")
    if Path(name).exists() or len(parts) == 1:
        return [(name,)]
    if len(parts) == 2:
        return [(name,), (parts[0], parts[1])]
    return [("/".join(parts[:2]), "/".join(parts[2:])), (name,)]
