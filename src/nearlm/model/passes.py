"""Whose turn it is to run a model: hooks and replaced forwards are the model's, so that threads must take turns.

All of nearlm's passes through a model hold its lock. Those that read the plain LM also switch off a memory that is
attached to it, for as long as they hold the lock.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn


@dataclass
class _Turn:
    """The lock of one model, and whether its holder wants the plain LM."""

    lock: Any = field(default_factory=threading.RLock)
    plain: bool = False


_TURNS: "weakref.WeakKeyDictionary[nn.Module, _Turn]" = weakref.WeakKeyDictionary()
_ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def turn(model: nn.Module) -> Iterator[bool]:
    """Run a model when no other thread does; yield whether the plain LM is wanted, whatever is attached to it."""
    own = _turn_of(model)
    with own.lock:
        yield own.plain


@contextlib.contextmanager
def plain_turn(model: nn.Module) -> Iterator[None]:
    """Run the plain LM when no other thread runs the model."""
    own = _turn_of(model)
    with own.lock:
        before = own.plain
        own.plain = True
        try:
            yield
        finally:
            own.plain = before


def _turn_of(model: nn.Module) -> _Turn:
    with _ONE_AT_A_TIME:
        return _TURNS.setdefault(model, _Turn())
