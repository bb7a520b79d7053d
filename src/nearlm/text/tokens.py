"""Documents to one token stream on disk, in parallel and piece by piece, so that no corpus is too large.

A document begins with what the tokenizer puts before a text (BOS, or nothing), and ends with the separator.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from nearlm.base import Advance, Ints, Job, Reporter, StoreError, TextError, from_json, to_json
from nearlm.base.jobs import CHECKPOINT_SECONDS
from nearlm.text.corpus import Corpus
from nearlm.text.pieces import PIECE
from nearlm.text.segments import Framing, Piece, Progress, Segment, Writer, open_writer
from nearlm.text.windows import Windows

_BATCH_CHARACTERS = PIECE * (os.cpu_count() or 1)  # a piece for each core
_STEP = "tokens"
_KINDS = 6  # of files that were skipped, to be named
_Noted = TypeVar("_Noted")


@dataclass(frozen=True)
class TokenStream:
    """What a finished stream holds: tokens, documents, how many were read for it, the texts' checksums, problems.

    `skipped` counts files of folders that are of other kinds, by suffix.
    """

    tokens: int
    documents: int
    read: int
    sha256: list[str]
    problems: dict[str, int]
    examples: dict[str, str]
    skipped: dict[str, int] = field(default_factory=dict)

    def warn(self, reporter: Reporter) -> None:
        """Say what was skipped, what could not be used, and of each an example."""
        if self.skipped:
            reporter.say(f"warning: {_count_skipped(self.skipped)}; choose files with `glob`")
        for problem, count in self.problems.items():
            reporter.say(f"warning: {count:,} × {problem}, e.g. {self.examples[problem]}")


def tokenise(
    corpus: Corpus,
    tokenizer: Any,
    framing: Framing,
    segment: Segment,
    job: Job,
    max_tokens: int | None,
    reporter: Reporter,
) -> TokenStream:
    """Write a corpus's token stream, resuming where an earlier run stopped, and return what it holds."""
    stream = finished_stream(job)
    if stream is not None:
        used = stream.read if stream.tokens == max_tokens else 0
        if corpus.repeatable and read_checksums(corpus, used) != stream.sha256:
            raise _text_changed()
        return stream
    state = _read_note(Progress, job) if corpus.repeatable else Progress()
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(open_writer(segment, framing, max_tokens, state))
        if not writer.state.pieces:  # one that is resumed keeps its count: a store may stand in its text's folder
            writer.state.skipped = dict(corpus.skipped)
        advance = stack.enter_context(reporter.bar("tokenising", max_tokens, "tokens", writer.state.tokens))
        _write(corpus, tokenizer, writer, job, advance)
        writer.finish()
    if writer.full and corpus.repeatable:  # more was read than was used
        read_checksums(corpus, writer.state.read)
    _note(writer.state, corpus, job, done=True)
    return _read_note(TokenStream, job)


def finished_stream(job: Job) -> TokenStream | None:
    """Return the stream that a job has finished, None if it has not."""
    return _read_note(TokenStream, job) if _read_note(Progress, job).done else None


def read_checksums(corpus: Corpus, documents: int) -> list[str]:
    """Read the first documents of a corpus again (0: all of them), only for their checksums."""
    for number, document in enumerate(corpus.documents(), start=1):
        for _ in document.pieces:
            pass
        if number == documents:
            break
    return corpus.checksums()


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts without special tokens; a fast tokenizer uses every core."""
    if not texts:  # which transformers does not take
        return []
    return tokenizer(  # type: ignore[no-any-return]
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]


def check_not_empty(stream: TokenStream, texts: Sequence[str]) -> None:
    """Refuse a corpus that holds no token to predict."""
    if stream.tokens >= 2 and stream.documents:
        return
    problems = "; ".join(f"{count} × {problem}" for problem, count in stream.problems.items())
    noted = f" ({problems})" if problems else ""
    raise TextError(
        f"the text ({', '.join(texts)}) holds {stream.tokens} tokens in {stream.documents} documents{noted}; "
        "expected at least two tokens, a context and what follows it"
    )


def check_predictable(windows: Windows, texts: Sequence[str]) -> None:
    """Refuse a corpus none of whose documents has a token that follows another."""
    if not windows.records:
        raise TextError(f"no document of {', '.join(texts)} has two tokens: a context and what follows it")


def document_bounds(docs: Ints, tokens: int) -> Ints:
    """Return where each document begins, and the end of the last."""
    return np.append(docs[:, 0], tokens)


def _count_skipped(skipped: dict[str, int]) -> str:
    """Say how many files were skipped, the most frequent kinds first."""
    counts = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    kinds = [f"{count:,} × {suffix}" for suffix, count in counts]
    named = ", ".join([*kinds[:_KINDS], *(["…"] if kinds[_KINDS:] else [])])
    total = sum(skipped.values())
    return f"skipped {total:,} file{'s' if total > 1 else ''} of other kinds ({named})"


def _read_note(kind: type[_Noted], job: Job) -> _Noted:
    return from_json(kind, job.state(_STEP), job.folder / f"{_STEP}.json")


def _note(state: Progress, corpus: Corpus, job: Job, *, done: bool = False) -> None:
    state.sha256 = corpus.checksums()
    state.problems = dict(corpus.problems)
    state.examples = corpus.examples
    state.done = done
    job.note(_STEP, to_json(state))


def _write(corpus: Corpus, tokenizer: Any, writer: Writer, job: Job, advance: Advance) -> None:
    """Encode the pieces that are not written yet, with a checkpoint every few seconds."""
    state = writer.state
    characters = _BATCH_CHARACTERS
    if writer.limit is not None:
        characters = min(characters, 8 * writer.limit)
    due = time.monotonic() + CHECKPOINT_SECONDS
    for batch in _batches(corpus, state.pieces, state.sha256, characters):
        ids = encode(tokenizer, [text for _, text in batch])
        before = state.tokens
        for (piece, _), tokens in zip(batch, ids, strict=True):
            writer.add(piece, tokens)
            if writer.full:
                break
        advance(state.tokens - before)
        if writer.full:
            return
        began = time.monotonic()
        if began >= due:
            writer.sync()
            _note(state, corpus, job)
            cost = time.monotonic() - began  # grows with the number of sources
            due = time.monotonic() + max(CHECKPOINT_SECONDS, 20 * cost)


def _batches(corpus: Corpus, skip: int, sha256: list[str], characters: int) -> Iterator[list[tuple[Piece, str]]]:
    """Group pieces so that the tokenizer can work on many at once; the first `skip` must have these checksums."""
    batch: list[tuple[Piece, str]] = []
    count = 0
    length = 0
    for count, (piece, text) in enumerate(_number_pieces(corpus), start=1):
        if count <= skip:
            if count == skip and corpus.checksums() != sha256:
                raise _text_changed()
            continue
        batch.append((piece, text))
        length += len(text) + 1
        if length >= characters:
            yield batch
            batch = []
            length = 0
    if count < skip:
        raise _text_changed()
    if batch:
        yield batch


def _number_pieces(corpus: Corpus) -> Iterator[tuple[Piece, str]]:
    """Yield every piece of every document, one that is blank and all of its document as no text."""
    for number, document in enumerate(corpus.documents(), start=1):
        first = True
        for text, last in _mark_last(document.pieces):
            if first and last and not text.strip():
                text = ""
            yield Piece(number, document.source, document.row, first, last), text
            first = False


def _mark_last(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """Yield every piece with whether it is the last."""
    previous = None
    for piece in pieces:
        if previous is not None:
            yield previous, False
        previous = piece
    if previous is not None:
        yield previous, True


def _text_changed() -> StoreError:
    return StoreError("the text has changed since the build began; restore it, or begin again with `restart=True`")
