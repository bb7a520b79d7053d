"""Text that the LM writes by itself, to learn from when not to trust a memory: there none can be better than the LM.

What is learned on text of the store's kind alone expects that kind. The LM's own text is any other, at no download.
"""

from typing import NamedTuple

import numpy as np

from nearlm.base import ArrayFile, Int32s, Ints, Reporter, canonical_hash, check_at_least
from nearlm.base.jobs import Pieces
from nearlm.mixing.traces import AnyText, LMTrace, fill_trace, trace_folder, trace_lm, trace_text
from nearlm.model.lm import LM
from nearlm.model.own_text import NOTHING, write_pieces
from nearlm.store import Datastore
from nearlm.text import Reading, TokenText, plan_windows

LENGTHS = (48, 96, 192)  # tokens of a piece, at most
SHARE = 0.4  # of the tokens that are learned from otherwise
MOST = 20_000
_TOGETHER = 24


class Lessons(NamedTuple):
    """What weights are learned from: a text of the store's kind, and what the LM wrote by itself, if anything."""

    text: LMTrace
    own: LMTrace | None


def trace_lessons(
    lm: LM,
    store: Datastore,
    text: AnyText,
    samples: int | None,
    seed: int,
    reporter: Reporter,
    stride: int | None = None,
) -> Lessons:
    """Trace a text, and let the LM write as much as was asked for, or as suits that text."""
    traced = trace_text(lm, store, text, reporter, stride=stride)
    return Lessons(traced, trace_samples(lm, store, samples_wanted(len(traced), samples), seed, reporter))


def trace_samples(lm: LM, store: Datastore, tokens: int, seed: int, reporter: Reporter) -> LMTrace | None:
    """Let the LM write about so many tokens and trace them, or find that it has been done; None if they are too few."""
    reading = store.reading()
    lengths = [min(length, reading.window) for length in LENGTHS]
    pieces = len(lengths) * (tokens // sum(lengths))
    if not pieces:
        return None
    return trace_lm(lm, _as_text(_write(lm, lengths, pieces, seed, reading, reporter), reading), reading, reporter)


def samples_wanted(tokens: int, asked: int | None = None) -> int:
    """Return how many tokens the LM should write beside so many that are learned from."""
    check_at_least(0, samples=asked)
    return min(MOST, int(SHARE * tokens)) if asked is None else asked


def _write(lm: LM, lengths: list[int], pieces: int, seed: int, reading: Reading, reporter: Reporter) -> Int32s:
    """Return pieces of text, [pieces, longest], filled up with `NOTHING`; they are kept in the cache."""
    begin = reading.framing.bos[0] if reading.framing.bos else None
    key = canonical_hash(
        {
            "model": lm.fingerprint(),
            "weights": lm.weights_hash(),
            "dtype": lm.dtype,
            "rounds": lm.packing.weights if lm.packing.rounds else "",
            "lengths": lengths,
            "pieces": pieces,
            "begin": begin,
            "seed": seed,
        }
    )[:24]
    folder = trace_folder() / f"samples-{key}"
    column = ArrayFile(folder / "tokens.npy", np.dtype(np.int32), (pieces, max(lengths)))
    per = pieces // len(lengths)
    batches = [
        (number * per + start, min(_TOGETHER, per - start), length)
        for number, length in enumerate(lengths)
        for start in range(0, per, _TOGETHER)
    ]

    def compute(number: int) -> Pieces:
        row, rows, length = batches[number]
        made = np.full((rows, max(lengths)), NOTHING, np.int32)
        made[:, :length] = write_pieces(lm, rows, length, seed * len(batches) + number, begin)
        yield "tokens", row, made

    sizes = [rows * length for _, rows, length in batches]
    fill_trace(folder, set(), {"tokens": column}, sizes, compute, "writing text of the model's own", reporter)
    return column.open()


def _as_text(pieces: Int32s, reading: Reading) -> TokenText:
    """Frame pieces as documents of a text."""
    framing = reading.framing
    documents = []
    for row in pieces:
        written = row[row != NOTHING]
        ended = len(written) < len(row) and tuple(written[-1:]) == framing.separator
        end = () if ended else framing.separator
        documents.append(np.array([*framing.bos, *written, *end], np.int32))
    bounds: Ints = np.cumsum([0, *map(len, documents)])
    tokens = np.concatenate(documents)
    windows = plan_windows(bounds, reading.window, reading.stride, reading.pack)
    return TokenText(tokens, bounds, windows, canonical_hash({"tokens": tokens.tolist()}))
