"""How much a fit does: what it holds out, how much text the memory gets, and which ways to search are tried.

Without a limit of time all text is used. With one, the LM's measured speed says how many tokens it can read.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from nearlm.base import OptionError, check_at_least, duration, size
from nearlm.mixing import samples_wanted
from nearlm.model.lm import LM
from nearlm.optimizer.optimization import Rule
from nearlm.text import Corpus, fill_batch, passages, plan_windows
from nearlm.text.tokens import encode

VALID_TOKENS = 20_000
TEST_TOKENS = 12_000
_VALID_SHARE = 0.1  # at most, of the text, that is held out to tune, and again to measure
_VALID_OF_TIME = 0.09  # at most, of the tokens that there is time for
_TEST_OF_TIME = 0.06
_MOST_MINUTES = 1e6
_FEWEST_TOKENS = 1000  # of a memory, however short the time
_TIMED_TOKENS = 1024
_SAMPLE = 200_000  # characters
_SAMPLED = 64  # documents
_FIXED_SECONDS = 25.0  # two continuations, the last files
_WAY_SECONDS = 250e-6  # per token to tune on, of one way to mix, on two cores
_LEARN_WAYS = 6  # what mixture and gate take, in such ways
_RECORD_SECONDS = 150e-6  # to index, and to sort the suffixes
_WRITE_PASSES = 1.2  # what a token takes that the LM writes in a batch, in tokens that it reads
_OF_TIME = 0.92  # that is planned for
_BESIDE_KEYS = 130  # bytes of a record: index and suffixes


@dataclass(frozen=True)
class FitOptions:
    """How long a fit may take, what the memory may cost, and what becomes of the documents that were held out."""

    minutes: float | None = None
    """How long it may take, about. [default: until all text is read]"""
    overhead: float | None = None
    """What the memory may take of a token's time, as a share of the LM's. [default: 0.02]"""
    budget: float | None = None
    """Instead: the fastest memory within so much perplexity of the vanilla kNN-LM."""
    lora: float | None = None
    """Minutes to train a LoRA adapter in first, on the text to be stored; the memory is then built with it."""
    all: bool = False
    """Add what was held out to the memory in the end."""

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < _MOST_MINUTES:
            raise OptionError(f"`minutes` is {self.minutes}, expected more than 0")
        most = _MOST_MINUTES if self.minutes is None else self.minutes
        if self.lora is not None and not 0 < self.lora < most:
            raise OptionError(f"`lora` is {self.lora}, expected more than 0 and less than {most:g} minutes")
        Rule.of(self.overhead, self.budget)

    @property
    def memory_minutes(self) -> float | None:
        """The minutes that are left for the memory, if there is a limit."""
        return None if self.minutes is None else self.minutes - (self.lora or 0.0)

    @property
    def rule(self) -> Rule:
        """What is chosen."""
        return Rule.of(self.overhead, self.budget)


@dataclass(frozen=True)
class Ways:
    """Which ways to search are tried: numbers of lists, each with numbers of neighbours."""

    nprobes: tuple[int, ...]
    ks: tuple[int, ...]

    def __post_init__(self) -> None:
        for nprobe in self.nprobes:
            check_at_least(1, nprobe=nprobe)
        for k in self.ks:
            check_at_least(1, k=k)

    @property
    def count(self) -> int:
        """How many mixtures are trained for them, with the one without any search."""
        return 2 + len(self.nprobes) * len(self.ks)


WAYS = (Ways((8, 4, 2), (1024, 256, 64)), Ways((8, 2), (1024, 64)), Ways((4,), (256,)))  # the most first


@dataclass(frozen=True)
class Speed:
    """What was measured of an LM on a text: seconds per token, and characters per token."""

    seconds: float
    characters: float

    def __post_init__(self) -> None:
        if not (0 < self.seconds < math.inf and 0 < self.characters < math.inf):
            raise OptionError(f"{self.seconds} s and {self.characters} characters a token, expected more than 0 each")


@dataclass(frozen=True)
class Amounts:
    """How many tokens there are, stored at most (None: all), held out to tune and to measure; which ways are tried."""

    tokens: int
    store: int | None
    valid: int
    test: int
    ways: Ways

    def __post_init__(self) -> None:
        check_at_least(0, tokens=self.tokens, store=self.store, valid=self.valid, test=self.test)


def measure_speed(lm: LM, corpus: Corpus, window: int) -> Speed:
    """Tokenise the beginning of a text and time the LM on some of it."""
    texts = [passage.text[: _SAMPLE // _SAMPLED] for passage in islice(passages(corpus), _SAMPLED)]
    ids = [token for row in encode(lm.tokenizer, texts) for token in row]
    characters = max(1, sum(map(len, texts))) / max(1, len(ids))
    ids = (ids * (_TIMED_TOKENS // max(1, len(ids)) + 2))[: _TIMED_TOKENS + 1] or [0] * (_TIMED_TOKENS + 1)
    tokens = np.array(ids, np.int32)
    windows = plan_windows(np.array([0, len(tokens)]), window, window)
    batch = fill_batch(tokens, windows)
    lm.score(fill_batch(tokens, windows[:1]))
    times = []
    for _ in range(2):
        started = time.perf_counter()
        lm.score(batch)
        times.append(time.perf_counter() - started)
    return Speed(min(times) / len(batch.targets), characters)


def plan_amounts(speed: Speed, characters: int, seconds: float | None, most: int | None) -> Amounts:
    """Say how much of a text of so many characters is used within so many seconds, and with at most so many tokens."""
    there = int(characters / speed.characters)
    tokens = float(there)
    if most is not None:
        tokens = min(tokens, most / (1 - 2 * _VALID_SHARE))
    valid = min(VALID_TOKENS, _VALID_SHARE * tokens)
    test = min(TEST_TOKENS, _VALID_SHARE * tokens)
    if seconds is None:
        return Amounts(there, most, int(valid), int(test), WAYS[0])
    left = max(0.0, _OF_TIME * seconds - _FIXED_SECONDS)
    readable = left / speed.seconds
    valid = min(valid, max(_FEWEST_TOKENS, _VALID_OF_TIME * readable))
    test = min(test, max(_FEWEST_TOKENS, _TEST_OF_TIME * readable))
    spared = max(0.0, left - (tokens - valid) * speed.seconds)
    ways = choose_ways(int(valid), max(0.2 * left, spared))
    left -= mixing_seconds(int(valid), ways) + tuning_seconds(int(valid), speed) + test * speed.seconds
    store = max(_FEWEST_TOKENS, int(left / (speed.seconds + _RECORD_SECONDS)))
    return Amounts(there, min(store, most or store), int(valid), int(test), ways)


def choose_ways(valid: int, seconds: float) -> Ways:
    """Return as many ways as there is time for, or the fewest."""
    return next((ways for ways in WAYS if mixing_seconds(valid, ways) <= seconds), WAYS[-1])


def mixing_seconds(valid: int, ways: Ways) -> float:
    """Estimate what it takes to try some ways and to learn one, on so many tokens."""
    return (ways.count + _LEARN_WAYS) * (valid + samples_wanted(valid)) * _WAY_SECONDS


def tuning_seconds(valid: int, speed: Speed) -> float:
    """Estimate what the LM takes to read so many tokens to tune on, and to write and read text of its own."""
    return (valid + (_WRITE_PASSES + 1) * samples_wanted(valid)) * speed.seconds


def forecast(speed: Speed, store: int, held: Sequence[int], ways: Ways, dim: int, weights: int) -> str:
    """Say what so many tokens will take: to be stored, and held out to tune and to measure."""
    valid, test = held
    seconds = (store + test) * speed.seconds + tuning_seconds(valid, speed) + store * _RECORD_SECONDS + _FIXED_SECONDS
    seconds += mixing_seconds(valid, ways) if valid else 0.0
    disk = store * (2 * dim + 12 + _BESIDE_KEYS)
    ram = 1.5 * weights + 3e8 + 18 * store
    return (
        f"the LM reads {1 / speed.seconds:,.0f} tokens/s: about {duration(seconds)}, {size(disk)} of disk, "
        f"{size(ram)} of RAM"
    )
