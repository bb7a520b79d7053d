"""What a better prediction means for writing: exact match of the next tokens, and of rare words, under greedy decoding.

Greedy decoding writes the next n tokens of a text if and only if each of them is the likeliest after all that stands
before it. So one pass that tells of each token whether it was the likeliest gives the exact match from every place of
a text, and nothing is generated. A place counts if the n tokens after it are in its window.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from nearlm.base import Doubles, Ints
from nearlm.mixing import Bools, standard_error
from nearlm.text import TokenText

LENGTHS = (5, 10, 20)
_SPACES = ("Ġ", "▁", " ")  # that mark the beginning of a word in vocabularies
_LETTERS = 4  # of a rare word, at least


@dataclass(frozen=True)
class Predictions:
    """Of every target of a text, in corpus order: log p, and whether it was the likeliest token."""

    logp: Doubles
    hit: Bools


@dataclass(frozen=True)
class Share:
    """A share of all tries, its standard error over documents, and how many tries there were."""

    share: float
    error: float
    count: int

    @classmethod
    def of(cls, right: Bools, documents: Ints) -> "Share":
        """Sum up tries, each of some document."""
        if not len(right):
            return cls(0.0, 0.0, 0)
        values = right.astype(np.float64)
        return cls(float(values.mean()), standard_error(values, documents), len(right))


@dataclass(frozen=True)
class Written:
    """How often a text is written on as it stands: its next 5, 10 and 20 tokens, and its rare words."""

    next5: Share
    next10: Share
    next20: Share
    rare: Share


def written(text: TokenText, predicted: Predictions, tokenizer: Any) -> Written:
    """Measure exact match on a text that was predicted."""
    documents = text.documents
    shares = []
    for length in LENGTHS:
        rows = runs(text, length)
        shares.append(Share.of(np.asarray(predicted.hit[rows].all(1)), documents[rows[:, 0]]))
    words = rare_words(text, tokenizer)
    right = np.array([bool(predicted.hit[begin:end].all()) for begin, end in words.tolist()], np.bool_)
    next5, next10, next20 = shares
    return Written(next5, next10, next20, Share.of(right, documents[words[:, 0]]))


def runs(text: TokenText, length: int) -> Ints:
    """Return the rows of the next tokens of every place that has so many in its window, [n, length]."""
    windows = np.repeat(np.arange(len(text.windows)), text.windows.targets)
    first = np.arange(max(0, len(windows) - length + 1))
    return first[windows[first] == windows[first + length - 1], None] + np.arange(length)


def rare_words(text: TokenText, tokenizer: Any) -> Ints:
    """Return the rows, first and last + 1, of rare words where a document has them for the first time, [n, 2].

    Rare is a word of letters that the tokenizer has no token for: it takes several. Where it stands for the second time
    in a document, it could be copied from there.
    """
    places = text.windows.target_positions
    pieces = tokenizer.convert_ids_to_tokens(np.asarray(text.tokens[places]).tolist())
    documents = text.documents.tolist()
    seen: set[tuple[int, str]] = set()
    found = []
    row = 0
    while row < len(pieces):
        end = _word_end(pieces, documents, row)
        if end - row > 1:
            word = "".join(pieces[row:end]).lstrip("".join(_SPACES)).lower()
            known = (documents[row], word)
            if len(word) >= _LETTERS and known not in seen:
                found.append((row, end))
            seen.add(known)
        row = max(end, row + 1)
    return np.array(found, np.int64).reshape(-1, 2)


def _word_end(pieces: list[str], documents: list[int], row: int) -> int:
    """Return where the word that begins in a row ends; the row itself if none begins there."""
    first = pieces[row]
    if not first.startswith(_SPACES) or not (first[1:] or "a").isalpha():  # the mark may be a token of its own
        return row
    end = row + 1
    while end < len(pieces) and documents[end] == documents[row] and pieces[end].isalpha() and not _marked(pieces[end]):
        end += 1
    return end


def _marked(piece: str) -> bool:
    return piece.startswith((*_SPACES, "Ċ"))
