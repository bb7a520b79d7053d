"""Text that the LM writes by itself, to learn from when not to trust a memory: there none can be better than the LM.

What is learned on text of the store's kind alone expects that kind. The LM's own text is any other, at no download.
A piece is learned from as it was written: what the LM did not draw itself, such as an end of what was cut, is no part.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nearlm.base import ArrayFile, Int32s, Ints, OptionError, Reporter, canonical_hash, check_at_least
from nearlm.base.jobs import Pieces
from nearlm.mixing.traces import AnyText, LMTrace, fill_trace, trace_folder, trace_lm, trace_text
from nearlm.model.lm import LM
from nearlm.model.own_text import NOTHING, can_write, end_tokens, start_tokens, write_pieces
from nearlm.store import Datastore
from nearlm.text import Reading, TokenText, plan_windows

LENGTHS = (48, 96, 192)  # tokens of a piece, at most
SHARE = 0.4  # of the tokens that are learned from otherwise
MOST = 20_000
_FEWEST = 200  # tokens to predict, which half of them can be held out of
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
    check_samples(samples)
    traced = trace_text(lm, store, text, reporter, stride=stride)
    return Lessons(traced, trace_samples(lm, store, samples_wanted(len(traced), samples), seed, reporter))


def trace_samples(lm: LM, store: Datastore, tokens: int, seed: int, reporter: Reporter) -> LMTrace | None:
    """Let the LM write about so many tokens and trace them, or find that it has been done; None if they are too few."""
    reading = replace(store.reading(), pack=False)  # a piece is a text of its own
    start = reading.framing.bos or start_tokens(lm)
    lengths = [min(length, reading.window + 1 - len(start)) for length in LENGTHS]
    pieces = len(lengths) * (tokens // sum(lengths))
    if not pieces:
        return None
    if not can_write(lm):
        reporter.say(f"{lm.name} cannot write text by itself to learn from: it has no `generate`")
        return None
    text = _as_text(_write(lm, lengths, pieces, seed, start, reporter), reading)
    if len(text.targets) < _FEWEST:
        said = f"{len(text.targets):,} tokens in {pieces:,} texts of its own"
        reporter.say(f"{lm.name} wrote only {said}: too few to learn from, so they are left out")
        return None
    return trace_lm(lm, text, reading, reporter)


def check_samples(asked: int | None) -> int | None:
    """Return a number of tokens, unless it is not a piece of each length."""
    check_at_least(0, samples=asked)
    if asked and asked < sum(LENGTHS):
        raise OptionError(f"`samples` is {asked}, expected 0 for none, or at least {sum(LENGTHS)}")
    return asked


def samples_wanted(tokens: int, asked: int | None = None) -> int:
    """Return how many tokens the LM should write beside so many that are learned from."""
    return min(MOST, int(SHARE * tokens)) if asked is None else asked


def _write(lm: LM, lengths: list[int], pieces: int, seed: int, start: tuple[int, ...], reporter: Reporter) -> Int32s:
    """Return pieces of text, [pieces, longest], filled up with `NOTHING`; they are kept in the cache."""
    key = canonical_hash(
        {
            "model": lm.fingerprint(),
            "weights": lm.weights_hash(),
            "dtype": lm.dtype,
            "rounds": lm.packing.weights if lm.packing.rounds else "",
            "lengths": lengths,
            "pieces": pieces,
            "start": start,
            "ends": end_tokens(lm),
            "seed": seed,
        }
    )[:24]
    folder = trace_folder() / f"samples-{key}"
    column = ArrayFile(folder / "tokens.npy", np.dtype(np.int32), (pieces, max(lengths)))
    per = pieces // len(lengths)
    batches = [
        (number * per + first, min(_TOGETHER, per - first), length)
        for number, length in enumerate(lengths)
        for first in range(0, per, _TOGETHER)
    ]

    def compute(number: int) -> Pieces:
        row, rows, length = batches[number]
        made = np.full((rows, max(lengths)), NOTHING, np.int32)
        made[:, :length] = write_pieces(lm, rows, length, seed * len(batches) + number, start)
        yield "tokens", row, made

    sizes = [rows * length for _, rows, length in batches]
    fill_trace(folder, set(), {"tokens": column}, sizes, compute, "writing text of the model's own", reporter)
    return column.open()


def _as_text(pieces: Int32s, reading: Reading) -> TokenText:
    """Return pieces as documents of a text, which begin as those of the store do."""
    documents = [np.array([*reading.framing.bos, *row[row != NOTHING]], np.int32) for row in pieces]
    bounds: Ints = np.cumsum([0, *map(len, documents)])
    tokens = np.concatenate(documents)
    windows = plan_windows(bounds, reading.window, reading.stride, reading.pack)
    return TokenText(tokens, bounds, windows, canonical_hash({"tokens": tokens.tolist()}))
