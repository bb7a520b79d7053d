"""Any text as a stream of documents: files, folders, globs, JSON(L), Parquet, Hugging Face datasets, stdin."""

import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nearlm.base import TextError
from nearlm.text import rows
from nearlm.text.named import is_named
from nearlm.text.paths import find_files, is_pipe, last_name, printable
from nearlm.text.pieces import file_pieces, text_pieces

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
    `hf:NAME[/CONFIG][:SPLIT]`. Within one text a file counts once, however many links lead to it. `strings` are
    documents in memory, which then have the name of the one text.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        field: str = "text",
        glob: str | None = None,
        strict: bool = False,
        stdin: BinaryIO | None = None,
        strings: Sequence[str] | None = None,
    ):
        if not texts:
            raise TextError("no text was given; name at least one file, folder or corpus with `text`")
        self.texts = [str(text) for text in texts]
        if self.texts.count("-") > 1:
            raise TextError("- (stdin) was given as text more than once, but it can be read only once")
        self.field = field
        self.glob = glob
        self.strict = strict
        self.repeatable = True  # whether the documents can be read a second time
        self.skipped: Counter[str] = Counter()  # files of folders that are of other kinds, by suffix
        self._stdin = stdin
        if strings is None:
            self._sources = [self._open(text) for text in self.texts]
        else:
            self._sources = [lambda: self._rows(self.texts[0], [{field: text} for text in strings])]
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
                yield Document(text, name, row, self._watch(text, name, row, pieces))

    def note(self, problem: str, example: str) -> None:
        """Count something unusable, or refuse it when strict."""
        if self.strict:
            raise TextError(f"{example}: {problem}; mend it, or leave out `strict` to skip such things")
        self.problems[problem] += 1
        self.examples.setdefault(problem, example)

    def _watch(self, text: int, name: str, row: int, pieces: Iterator[str]) -> Iterator[str]:
        digest = self._digests[text]
        digest.update(f"{name}\0{row}\0".encode())
        empty = True
        for piece in pieces:
            digest.update(piece.encode())
            empty = empty and not piece.strip()
            yield piece
        if empty:
            self.note("empty document", name if row < 0 else f"{name}:{row}")

    def _open(self, text: str) -> Callable[[], Iterator[Found]]:
        """Find what a text stands for, so that mistakes show at once; the result reads it."""
        if text == "-":
            self.repeatable = False
            return lambda: self._stream("stdin", self._stdin or _stdin())
        if text.startswith("hf:"):
            dataset = rows.open_dataset(text, self.field)
            return lambda: self._rows(_label(text), dataset)
        found = find_files(text, self.glob, self.skipped)
        if any(is_pipe(path) for path, _ in found):
            self.repeatable = False
        if any(path.suffix.lower() == ".parquet" for path, _ in found):
            rows.import_parquet()
        return lambda: itertools.chain.from_iterable(self._file(path, name) for path, name in found)

    def _file(self, path: Path, name: str) -> Iterator[Found]:
        try:
            if path.suffix.lower() in rows.SUFFIXES:
                yield from self._rows(name, rows.read_rows(path, name, self.field, self.note))
            else:
                with open(path, "rb") as file:
                    yield from self._stream(name, file)
        except OSError as error:
            self.note(f"unreadable file ({error.strerror or error})", name)

    def _stream(self, name: str, file: BinaryIO) -> Iterator[Found]:
        pieces = file_pieces(file, name, self.note)
        if pieces is not None:
            yield name, -1, pieces

    def _rows(self, name: str, found: Iterable[Any]) -> Iterator[Found]:
        for row, text in rows.row_texts(found, name, self.field, self.note):
            yield name, row, text_pieces(text, f"{name}:{row}", self.note)


def _label(text: str) -> str:
    if text == "-":
        return "stdin"
    if is_named(text):
        return text
    if not text.startswith("hf:"):
        return printable(last_name(Path(text)))
    name, colon, split = text.removeprefix("hf:").partition(":")
    if Path(name).is_absolute():
        name = last_name(Path(name))
    return printable(f"hf:{name}{colon}{split}")


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise TextError("- was given as text, but stdin is closed; pipe a text in, or name a file")
    return sys.stdin.buffer
