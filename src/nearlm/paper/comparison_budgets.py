"""What a method of the comparison gets: a model, raw texts, a time that runs from the first byte read, and a folder."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, Reporter, TextError
from nearlm.model import ModelSpec
from nearlm.optimizer.fit_plan import WAYS, Speed, mixing_seconds, tuning_seconds
from nearlm.text import Selection, TextSource, passages

_PLANNED = 0.92  # of the time
_FIXED_SECONDS = 5.0  # for what does not grow with the text
_RECORD_SECONDS = 150e-6  # to index, and to sort the suffixes
_VALID_SHARE = 0.12  # of the tokens that can be read, to learn the weights of a memory
_VALID_TOKENS = (1000, 20_000)  # the least and the most
_FEWEST_TOKENS = 1000


@dataclass(frozen=True)
class Made:
    """What a method made in its time: the seconds used, the training tokens that it has read, and what it chose.

    `window_seconds` are those of training on one window, where anything is trained.
    """

    seconds: float
    tokens: int
    chosen: str = ""
    window_seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """One method's task: learn a training text in a time; what must be chosen is chosen on a validation text."""

    spec: ModelSpec
    train: TextSource
    valid: TextSource
    seconds: float
    folder: Path
    reporter: Reporter = QUIET
    started: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.seconds - self.spent)

    def share(self, part: float) -> "Task":
        """Return the same task with a part of what is left."""
        return replace(self, seconds=self.spent + part * self.left)


@dataclass(frozen=True)
class MemoryPlan:
    """How many tokens a memory stores (None: all), and how many it learns its weights from."""

    store: int | None
    valid: int


def plan_memory(speed: Speed, seconds: float, *, keys: bool) -> MemoryPlan:
    """Say how much an LM of some speed can read within a time; without keys it reads the validation text only."""
    left = max(0.0, _PLANNED * seconds - _FIXED_SECONDS)
    learning = (mixing_seconds(1000, WAYS[-1]) + tuning_seconds(1000, speed)) / 1000  # of a token
    share = _VALID_SHARE if keys else 1.0
    valid = int(np.clip(share * left / learning, *_VALID_TOKENS))
    if not keys:
        return MemoryPlan(None, valid)
    left -= valid * learning
    return MemoryPlan(max(_FEWEST_TOKENS, int(left / (speed.seconds + _RECORD_SECONDS))), valid)


def choose_documents(source: TextSource, tokens: int, characters: float) -> TextSource:
    """Return documents of a text, chosen by chance (a hash), of so many tokens of so many characters each."""
    found = {passage.key: len(passage.text) for passage in passages(source.open())}
    if not found:
        raise TextError(f"the text ({', '.join(source.text)}) holds no document")
    room = tokens * characters
    keys = []
    for key in sorted(found):
        keys.append(key)
        room -= found[key]
        if room <= 0:
            break
    chosen: TextSource = Selection.of_text(source, frozenset(keys))
    return replace(chosen, max_tokens=max(2, min(tokens, source.max_tokens or tokens)))
