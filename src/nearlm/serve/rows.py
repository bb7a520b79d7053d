"""A row: one continuation of a prompt on its way, from token to token."""

from dataclasses import replace
from typing import Any

import numpy as np

from nearlm.base import Int32s
from nearlm.mixing import Contexts
from nearlm.serve.sampling import choose
from nearlm.serve.tasks import Delta, Task, Token
from nearlm.serve.writer import Writer


class Row:
    """One continuation: its tokens so far, its own randomness, and the text that comes of it."""

    def __init__(self, task: Task, choice: int, decode: Any, ends: frozenset[int]):
        wish = task.wish
        self.task = task
        self.choice = choice
        self.last = -1
        self.finished = False
        self._ends = ends
        self._generator = wish.sampling.generator(choice)
        self._writer = Writer(decode, wish.stop)
        self._tokens = np.zeros(len(wish.prompt) + wish.max_new_tokens, np.int32)
        self._tokens[: len(wish.prompt)] = wish.prompt
        self._length = len(wish.prompt)
        self._pending: list[Token] = []

    @property
    def history(self) -> Int32s:
        """The tokens that were read and written so far."""
        return self._tokens[: self._length]

    @property
    def written(self) -> int:
        """How many tokens were added to the prompt."""
        return self._length - len(self.task.wish.prompt)

    def choose(self, log_p: Any) -> int:
        """Choose the next token."""
        return choose(log_p, self.task.wish.sampling, self._generator)

    def append(self, token: Token) -> None:
        """Add a token, and tell the request what is certain now."""
        self._tokens[self._length] = token.id
        self._length += 1
        self.last = token.id
        ended = token.id in self._ends
        new = ""
        if not ended:
            begin = len(self._writer.text)
            new = self._writer.add(token.id)
            self._pending.append(replace(token, offset=begin))
        if ended or self._writer.stopped:
            self._finish(new, "stop")
        elif self.written == self.task.wish.max_new_tokens:
            self._finish(new, "length")
        elif new:
            self.task.tell(Delta(self.choice, new, self._released()))

    def _finish(self, new: str, why: str) -> None:
        self.finished = True
        new += self._writer.finish()
        if self._writer.stopped:
            why = "stop"
            kept = [token for token in self._pending if token.offset < len(self._writer.text)]
        else:
            kept = self._pending
        self._pending = []
        self.task.tell(Delta(self.choice, new, kept, why, self.written))

    def _released(self) -> list[Token]:
        """Take the tokens whose text is out, at least in part."""
        out = [token for token in self._pending if token.offset < self._writer.sent]
        self._pending = self._pending[len(out) :]
        return out


def contexts_of(rows: list[Row]) -> Contexts:
    """Return what each row has read, as a memory takes it."""
    histories = [row.history for row in rows]
    ends = np.cumsum([len(history) for history in histories], dtype=np.int64)
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    return Contexts(np.concatenate(histories), begins, ends)
