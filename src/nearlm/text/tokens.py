"""Documents to one token stream on disk, in parallel and piece by piece, so that no corpus is too large.

A document begins with the tokenizer's BOS, if it has one, and ends with the separator. The stream is
`tokens-N.npy` (int32); `docs-N.npy` (int64, one row a document: start, source, row) and `docs-N.json`
(the sources' names) say where documents begin and what they are called.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from nearlm.base import Job, OptionError, Reporter, StoreError, TextError, files
from nearlm.text.corpus import PIECE, Corpus
from nearlm.text.windows import Windows

CHECKPOINT_SECONDS = 2.0
_BATCH_CHARACTERS = PIECE * (os.cpu_count() or 1)  # a piece for each core
_STEP = "tokens"


@dataclass(frozen=True)
class Framing:
    """The token ids that stand before and after every document."""

    bos: tuple[int, ...]
    separator: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any, separator: str) -> "Framing":
        """Read what `--separator` means for a tokenizer: `eos`, `none`, or a text of its own."""
        bos = () if tokenizer.bos_token_id is None else (int(tokenizer.bos_token_id),)
        if separator == "none":
            return cls(bos, ())
        if separator == "eos":
            return cls(bos, () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),))
        ids = tokenizer(separator, add_special_tokens=False)["input_ids"]
        if not ids:
            raise OptionError(f"--separator {separator!r} gives no token; expected eos, none or a text")
        return cls(bos, tuple(ids))


@dataclass(frozen=True)
class Segment:
    """The files of one build's or append's token stream."""

    folder: Path
    number: int

    @property
    def tokens(self) -> Path:
        """The token stream."""
        return self.folder / f"tokens-{self.number:05d}.npy"

    @property
    def docs(self) -> Path:
        """The table of documents."""
        return self.folder / f"docs-{self.number:05d}.npy"

    @property
    def sources(self) -> Path:
        """The names of the documents' sources."""
        return self.folder / f"docs-{self.number:05d}.json"

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return self.tokens, self.docs, self.sources


def tokenise(
    corpus: Corpus,
    tokenizer: Any,
    framing: Framing,
    segment: Segment,
    job: Job,
    max_tokens: int | None,
    reporter: Reporter,
) -> files.Json:
    """Write a corpus's token stream, going on where an earlier run stopped, and return what it holds."""
    state = job.state(_STEP)
    if state.get("done"):
        cut = state["tokens"] == max_tokens
        if corpus.repeatable and read_checksums(corpus, state["read"] if cut else 0) != state["sha256"]:
            raise _changed()
        return state
    if not corpus.repeatable:
        state = {}
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_writer(segment, state, framing, max_tokens))
        advance = stack.enter_context(reporter.bar("tokenising", max_tokens, "tokens", writer.count))
        _write(corpus, tokenizer, writer, state, job, advance)
        writer.finish()
    if writer.full and corpus.repeatable:  # more was read than was used
        read_checksums(corpus, writer.read)
    state = {**writer.state(corpus), "done": True}
    job.note(_STEP, state)
    return state


def read_checksums(corpus: Corpus, documents: int) -> list[str]:
    """Read the first documents of a corpus again (0: all of them), only for their checksums."""
    for number, document in enumerate(corpus.documents(), start=1):
        for _ in document.pieces:
            pass
        if number == documents:
            break
    return corpus.checksums()


def _write(corpus: Corpus, tokenizer: Any, writer: "_Writer", state: files.Json, job: Job, advance: Any) -> None:
    """Encode the pieces that `state` does not know yet, with a checkpoint every few seconds."""
    due = time.monotonic() + CHECKPOINT_SECONDS
    for batch in _batches(corpus, state, writer.batch_characters):
        ids = encode(tokenizer, [piece for _, piece in batch])
        before = writer.count
        for (piece, _), tokens in zip(batch, ids, strict=True):
            writer.add(piece, tokens)
            if writer.full:
                break
        advance(writer.count - before)
        if writer.full:
            return
        began = time.monotonic()
        if began >= due:
            writer.sync()
            job.note(_STEP, writer.state(corpus))
            cost = time.monotonic() - began  # grows with the number of sources
            due = time.monotonic() + max(CHECKPOINT_SECONDS, 20 * cost)


@dataclass(frozen=True)
class _Piece:
    """Where a piece of text stands: its document's number, source and row; first and last of its document."""

    number: int
    source: str
    row: int
    first: bool
    last: bool


def _batches(corpus: Corpus, state: files.Json, characters: int) -> Iterator[list[tuple[_Piece, str]]]:
    """Group the pieces that `state` does not know yet, so that the tokenizer can work on many at once."""
    batch: list[tuple[_Piece, str]] = []
    count, length, skip = 0, 0, state.get("pieces", 0)
    for count, (piece, text) in enumerate(_numbered(corpus), start=1):
        if count <= skip:
            if count == skip and corpus.checksums() != state["sha256"]:
                raise _changed()
            continue
        batch.append((piece, text))
        length += len(text) + 1
        if length >= characters:
            yield batch
            batch, length = [], 0
    if count < skip:
        raise _changed()
    if batch:
        yield batch


def _numbered(corpus: Corpus) -> Iterator[tuple[_Piece, str]]:
    """Yield every piece of every document, one that is blank and all of its document as no text."""
    for number, document in enumerate(corpus.documents(), start=1):
        first = True
        for text, last in _marked(document.pieces):
            blank = first and last and not text.strip()
            yield _Piece(number, document.source, document.row, first, last), "" if blank else text
            first = False


def _changed() -> StoreError:
    return StoreError("the text has changed since the build began; restore it, or begin again with --restart")


def _marked(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    previous = None
    for piece in pieces:
        if previous is not None:
            yield previous, False
        previous = piece
    if previous is not None:
        yield previous, True


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts without special tokens; a fast tokenizer uses every core."""
    return tokenizer(  # type: ignore[no-any-return]
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]


class _Writer:
    """Appends documents to a segment's files."""

    def __init__(self, tokens: BinaryIO, docs: BinaryIO, segment: Segment, framing: Framing, limit: int | None):
        self._tokens, self._docs, self._segment, self._framing = tokens, docs, segment, framing
        self._limit = limit
        self.count, self.documents, self.read, self.pieces = 0, 0, 0, 0
        self._sources: dict[str, int] = {}
        self._open = False  # whether the document that is being read has tokens already

    @property
    def full(self) -> bool:
        return self._limit is not None and self.count >= self._limit

    @property
    def batch_characters(self) -> int:
        return _BATCH_CHARACTERS if self._limit is None else min(_BATCH_CHARACTERS, 8 * self._limit)

    def resume(self, state: files.Json) -> None:
        self.count, self.documents, self.read = state["tokens"], state["documents"], state["read"]
        self.pieces, self._open = state["pieces"], state["open"]
        self._sources = {name: number for number, name in enumerate(state["sources"])}

    def add(self, piece: _Piece, ids: list[int]) -> None:
        """Add a piece; a document without any token leaves nothing behind."""
        if piece.first:
            self._open = False
        if ids and not self._open:
            self._begin(piece)
        self._put(ids)
        if piece.last and self._open:
            self._put(self._framing.separator)
        self.read, self.pieces = piece.number, self.pieces + 1

    def _begin(self, piece: _Piece) -> None:
        self._open = True
        self.documents += 1
        source = self._sources.setdefault(piece.source, len(self._sources))
        files.append(self._docs, np.array([self.count, source, piece.row], np.int64).tobytes())
        self._put(self._framing.bos)

    def _put(self, ids: Sequence[int]) -> None:
        if self._limit is not None:
            ids = ids[: max(0, self._limit - self.count)]
        files.append(self._tokens, np.asarray(ids, np.int32).tobytes())
        self.count += len(ids)

    def sync(self) -> None:
        files.sync(self._tokens)
        files.sync(self._docs)

    def state(self, corpus: Corpus) -> files.Json:
        return {
            "tokens": self.count,
            "documents": self.documents,
            "read": self.read,
            "pieces": self.pieces,
            "open": self._open,
            "sources": list(self._sources),
            "sha256": corpus.checksums(),
            "problems": dict(corpus.problems),
            "examples": corpus.examples,
        }

    def finish(self) -> None:
        """Put the final lengths in the files' headers and write the sources' names."""
        files.write_at(self._tokens, files.npy_header(np.int32, (self.count,)), 0)
        files.write_at(self._docs, files.npy_header(np.int64, (self.documents, 3)), 0)
        self.sync()
        files.write_json(self._segment.sources, {"sources": list(self._sources)})


@contextlib.contextmanager
def _writer(segment: Segment, state: files.Json, framing: Framing, limit: int | None) -> Iterator[_Writer]:
    """Open a segment's files at the place that `state` notes."""
    sizes = {segment.tokens: 4 * state.get("tokens", 0), segment.docs: 24 * state.get("documents", 0)}
    for path, size in sizes.items():
        if not state or not path.exists() or path.stat().st_size < files.NPY_HEADER + size:
            state.clear()
    for path, size in sizes.items():
        if not state:
            files.write_bytes(path, files.npy_header(np.int32, (0,)))
        else:
            files.truncate(path, files.NPY_HEADER + size)
    with open(segment.tokens, "r+b") as tokens, open(segment.docs, "r+b") as docs:
        tokens.seek(0, 2)
        docs.seek(0, 2)
        writer = _Writer(tokens, docs, segment, framing, limit)
        if state:
            writer.resume(state)
        yield writer


def check_not_empty(state: files.Json, texts: Sequence[str]) -> None:
    """Refuse a corpus that holds no token to predict."""
    if state["tokens"] >= 2 and state["documents"]:
        return
    problems = "; ".join(f"{count} × {problem}" for problem, count in state["problems"].items())
    raise TextError(
        f"the text ({', '.join(texts)}) holds {state['tokens']} tokens in {state['documents']} documents"
        f"{f' ({problems})' if problems else ''}; expected at least two tokens, a context and what follows it"
    )


def check_predictable(windows: Windows, texts: Sequence[str]) -> None:
    """Refuse a corpus none of whose documents has a token that follows another."""
    if not windows.records:
        raise TextError(f"no document of {', '.join(texts)} has two tokens: a context and what follows it")


def document_bounds(docs: npt.NDArray[np.int64], tokens: int) -> npt.NDArray[np.int64]:
    """Return where each document begins, and the end of the last."""
    return np.append(docs[:, 0], tokens)
