"""RAG for a causal LM: passages of the training text, found by BM25, stand before what was read (in-context RALM).

A text is predicted in stretches. For each, the last tokens that were read before it are the query; the LM then reads
the best passages, the window as far as it was read, and the stretch. Nothing of the stretch itself is in the query.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import QUIET, Ints, Reporter, import_extra
from nearlm.model.lm import LM
from nearlm.paper.continuation import Predictions
from nearlm.text import SCORE_BATCH_TOKENS, Batch, TokenText

_QUERY_TOKENS = 64


@dataclass(frozen=True)
class RagOptions:
    """How passages are cut, how many are read, and how many tokens are predicted with the same ones."""

    chunk: int = 128
    count: int = 1
    stretch: int = 128

    @property
    def label(self) -> str:
        """The options, for people."""
        return f"{self.count} × {self.chunk} tokens for every {self.stretch}"


def candidates() -> list[RagOptions]:
    """Return what is tried on validation text, what is likely good first."""
    first = RagOptions()
    others = itertools.product((128, 256, 64), (1, 2, 4), (128, 64))
    return [first, *(one for one in itertools.starmap(RagOptions, others) if one != first)]


@dataclass(frozen=True)
class _Stretch:
    """Targets that are predicted with the same passages: rows of the text, and where window and targets begin."""

    first_row: int
    window: int  # where the inputs of its window begin
    begin: int  # the position of its first target
    end: int


class Passages:
    """The passages of a training text, and how to find them."""

    def __init__(self, tokenizer: Any, text: TokenText, chunk: int):
        bm25s = import_extra("bm25s", "RAG", "compare")
        self._tokenizer = tokenizer
        self.passages = [
            np.array(text.tokens[start : min(start + chunk, end)], np.int64)
            for begin, end in itertools.pairwise(text.bounds.tolist())
            for start in range(begin, end, chunk)
        ]
        self._index = bm25s.BM25()
        words = self._words(self.passages)
        self._index.index(words, show_progress=False)

    def save(self, folder: Path) -> None:
        """Write the index, to be seen how large it is."""
        self._index.save(str(folder))

    def find(self, queries: list[Ints], count: int) -> list[list[Ints]]:
        """Return the best passages of each query, the best last, next to what it goes on with."""
        if not queries:
            return []
        count = min(count, len(self.passages))
        ids = [[word for word in words if word in self._index.vocab_dict] for words in self._words(queries)]
        found: list[list[Ints]] = []
        for words in ids:
            if not words:
                found.append([])
                continue
            best, scores = self._index.retrieve([words], k=count, show_progress=False)
            kept = [int(one) for one, score in zip(best[0], scores[0], strict=True) if score > 0]
            found.append([self.passages[one] for one in kept[::-1]])
        return found

    def _words(self, pieces: list[Ints]) -> list[list[str]]:
        bm25s = import_extra("bm25s", "RAG", "compare")
        texts = self._tokenizer.batch_decode([piece.tolist() for piece in pieces], skip_special_tokens=True)
        words: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
        return words


class RagReader:
    """An LM that reads passages of a training text before what it predicts."""

    def __init__(self, lm: LM, passages: Passages, options: RagOptions):
        self.lm = lm
        self.passages = passages
        self.options = options
        lm.packing.prepare(lm.model)

    def pass_over(self, text: TokenText) -> None:
        """Read a text as at test time, passages included."""
        self._score(text, QUIET, statistics=False)

    def predict(self, text: TokenText, reporter: Reporter = QUIET) -> Predictions:
        """Predict every target of a text from what stands before it."""
        return self._score(text, reporter, statistics=True)

    def inputs(self, text: TokenText) -> Iterator[tuple[int, Ints, int]]:
        """Yield, stretch by stretch: its first row, what the LM reads (its last target left out), and its length."""
        stretches = list(_stretches(text, self.options.stretch))
        queries = [_query(text, one) for one in stretches]
        limit = self.lm.limit or (1 << 30)
        for one, found in zip(stretches, self.passages.find(queries, self.options.count), strict=True):
            read = np.asarray(text.tokens[one.window : one.end - 1])
            room = max(0, limit - len(read))
            before = np.concatenate([*found, np.zeros(0, np.int32)])
            yield (
                one.first_row,
                np.concatenate([before[len(before) - min(room, len(before)) :], read]),
                one.end - one.begin,
            )

    def _score(self, text: TokenText, reporter: Reporter, *, statistics: bool) -> Predictions:
        targets = text.targets
        predicted = Predictions(np.empty(len(targets)), np.zeros(len(targets), np.bool_))
        rows = sorted(self.inputs(text), key=lambda one: -len(one[1]))
        with reporter.bar("reading", len(targets), "tokens") as advance:
            while rows:
                count = max(1, SCORE_BATCH_TOKENS // len(rows[0][1]))
                now, rows = rows[:count], rows[count:]
                places = np.concatenate([np.arange(first, first + length) for first, _, length in now])
                scores = self.lm.score(_batch(now, targets[places]), statistics=statistics)
                predicted.logp[places] = scores.logp.double().cpu().numpy()
                if scores.top is not None:
                    predicted.hit[places] = scores.top.cpu().numpy() == targets[places]
                advance(len(places))
        return predicted


def _stretches(text: TokenText, length: int) -> Iterator[_Stretch]:
    """Cut the targets of every window into stretches."""
    windows = text.windows
    for start, inputs, targets, row in zip(
        windows.start.tolist(),
        windows.inputs.tolist(),
        windows.targets.tolist(),
        windows.first_record.tolist(),
        strict=True,
    ):
        first = start + inputs - targets + 1
        for at in range(0, targets, length):
            yield _Stretch(row + at, start, first + at, first + min(at + length, targets))


def _query(text: TokenText, stretch: _Stretch) -> Ints:
    """Return the last tokens of the document that stand before a stretch."""
    document = int(np.searchsorted(text.bounds, stretch.begin, side="right")) - 1
    begin = max(int(text.bounds[document]), stretch.begin - _QUERY_TOKENS)
    return np.asarray(text.tokens[begin : stretch.begin])


def _batch(rows: list[tuple[int, Ints, int]], targets: Any) -> Batch:
    """Pad what is read in some stretches; the last positions of each are recorded."""
    longest = max(len(read) for _, read, _ in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    recorded = np.zeros((len(rows), longest), np.bool_)
    for number, (_, read, length) in enumerate(rows):
        ids[number, : len(read)] = read
        recorded[number, len(read) - length : len(read)] = True
    return Batch(ids, recorded, targets)
