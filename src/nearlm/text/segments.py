"""The files of one build's or append's token stream, and what is written to them document by document.

The stream is `tokens-N.npy` (int32); `docs-N.npy` (int64, one row a document: start, source, row) and
`docs-N.json` (the sources' names) say where documents begin and what they are called.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nearlm.base import ArrayFile, OptionError, files

_WORD = "a"  # any text, to see what a tokenizer puts before it


@dataclass(frozen=True)
class Framing:
    """The token ids that stand before and after every document."""

    bos: tuple[int, ...]
    separator: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any, separator: str, bos: bool | None = None) -> "Framing":
        """Read what `separator` means for a tokenizer: `eos`, `none`, or a text of its own.

        Documents begin with what the tokenizer itself puts before a text, unless `bos` says otherwise.
        """
        begin = _begin(tokenizer, bos)
        if separator == "none":
            return cls(begin, ())
        if separator == "eos":
            return cls(begin, _special(tokenizer.eos_token_id))
        ids = tokenizer(separator, add_special_tokens=False)["input_ids"]
        if not ids:
            raise OptionError(f"`separator={separator!r}` gives no token; expected eos, none or a text")
        return cls(begin, tuple(ids))


def _begin(tokenizer: Any, bos: bool | None) -> tuple[int, ...]:
    if bos is None:
        plain = tokenizer(_WORD, add_special_tokens=False)["input_ids"]
        whole = tokenizer(_WORD)["input_ids"]
        places = (at for at in range(len(whole) - len(plain), -1, -1) if whole[at : at + len(plain)] == plain)
        at = next(places, 0) if plain else int(whole[:1] == [tokenizer.bos_token_id])
        return tuple(whole[:at])
    if bos and tokenizer.bos_token_id is None:
        raise OptionError("`bos=True` was asked for, but the tokenizer has no BOS token; leave it out")
    return _special(tokenizer.bos_token_id) if bos else ()


def _special(token: int | None) -> tuple[int, ...]:
    return () if token is None else (int(token),)


class Segment:
    """The files of one build's or append's token stream."""

    def __init__(self, folder: Path, number: int):
        self.folder = folder
        self.tokens = folder / f"tokens-{number:05d}.npy"  # the stream
        self.docs = folder / f"docs-{number:05d}.npy"  # the table of documents
        self.sources = folder / f"docs-{number:05d}.json"  # the names of their sources
        self.files = (self.tokens, self.docs, self.sources)

    def arrays(self, tokens: int, documents: int) -> tuple[ArrayFile, ArrayFile]:
        """Return the stream and the table as they are with so many tokens and documents."""
        stream = ArrayFile(self.tokens, np.dtype("int32"), (tokens,))
        table = ArrayFile(self.docs, np.dtype("int64"), (documents, 3))
        return stream, table


@dataclass(frozen=True)
class Piece:
    """Where a piece of text stands: its document's number, source and row; first and last of its document."""

    number: int
    source: str
    row: int
    first: bool
    last: bool


@dataclass
class Progress:
    """How far a stream has got; `read` counts documents without tokens too."""

    tokens: int = 0
    documents: int = 0
    read: int = 0
    pieces: int = 0
    open: bool = False  # whether the document that is being read has tokens already
    sources: list[str] = field(default_factory=list)
    sha256: list[str] = field(default_factory=list)
    problems: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    done: bool = False


@dataclass
class Writer:
    """Appends documents to a segment's open files, up to a limit of tokens."""

    segment: Segment
    framing: Framing
    limit: int | None
    state: Progress
    tokens: BinaryIO
    docs: BinaryIO

    def __post_init__(self) -> None:
        self._sources = {name: number for number, name in enumerate(self.state.sources)}

    @property
    def full(self) -> bool:
        """Whether no token more is wanted."""
        return self.limit is not None and self.state.tokens >= self.limit

    def add(self, piece: Piece, ids: list[int]) -> None:
        """Add a piece; a document without any token leaves nothing behind."""
        if piece.first:
            self.state.open = False
        if ids and not self.state.open:
            self._begin(piece)
        self._put(ids)
        if piece.last and self.state.open:
            self._put(self.framing.separator)
        self.state.read = piece.number
        self.state.pieces += 1

    def sync(self) -> None:
        """Put all that was added on the disk itself."""
        files.sync(self.tokens)
        files.sync(self.docs)

    def finish(self) -> None:
        """Put the final lengths in the files' headers and write the sources' names."""
        stream, table = self.segment.arrays(self.state.tokens, self.state.documents)
        files.write_at(self.tokens, stream.header, 0)
        files.write_at(self.docs, table.header, 0)
        self.sync()
        files.write_json(self.segment.sources, {"sources": self.state.sources})

    def _begin(self, piece: Piece) -> None:
        self.state.open = True
        self.state.documents += 1
        if piece.source not in self._sources:
            self._sources[piece.source] = len(self._sources)
            self.state.sources.append(piece.source)
        row = [self.state.tokens, self._sources[piece.source], piece.row]
        files.append(self.docs, np.array(row, np.int64).tobytes())
        self._put(self.framing.bos)

    def _put(self, ids: Sequence[int]) -> None:
        if self.limit is not None:
            ids = ids[: max(0, self.limit - self.state.tokens)]
        files.append(self.tokens, np.asarray(ids, np.int32).tobytes())
        self.state.tokens += len(ids)


@contextlib.contextmanager
def open_writer(segment: Segment, framing: Framing, limit: int | None, state: Progress) -> Iterator[Writer]:
    """Open a segment's files where `state` says that they end, or from the start if they are not that long."""
    arrays = segment.arrays(state.tokens, state.documents)
    if state.pieces and all(array.path.exists() and array.path.stat().st_size >= array.bytes for array in arrays):
        for array in arrays:
            files.truncate(array.path, array.bytes)
    else:
        state = Progress()
        for array in arrays:
            files.write_bytes(array.path, files.npy_header(array.dtype, (0,)))
    with files.opened(segment.tokens, "r+b") as tokens, files.opened(segment.docs, "r+b") as docs:
        tokens.seek(0, 2)
        docs.seek(0, 2)
        yield Writer(segment, framing, limit, state, tokens, docs)
