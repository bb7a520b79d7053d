"""A row: one continuation of a prompt on its way, from token to token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nearlm.base import Doubles, Int32s
from nearlm.knnlm.draft_votes import Chain, no_chain
from nearlm.mixing import Contexts
from nearlm.search import Neighbors
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
        self._chain: Chain = no_chain()

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

    def look_ahead(self, near: Neighbors | None, place: int, *others: Neighbors | None) -> None:
        """Find what probably comes next; neighbours, here and in other stores, were found before the last token."""
        drafter = self.task.wish.drafter
        if drafter is not None:
            self._chain = drafter.chain(self.history, near, place, *others)

    @property
    def rates(self) -> Doubles:
        """How likely each token that probably comes next is accepted if those before it are."""
        drafter = self.task.wish.drafter
        return np.empty(0) if drafter is None else drafter.acceptance.rates(self._chain)

    def draft(self, length: int) -> Int32s:
        """Return so many tokens that probably come next, if there is room for them and one more."""
        room = self.task.wish.max_new_tokens - self.written - 1
        return self._chain.tokens[: min(length, room)]

    def choose_along(self, log_p: Any, draft: Int32s) -> Int32s:
        """Choose a token after each of those that were read, as long as these are what was chosen before."""
        chosen: list[int] = []
        for place in range(len(draft) + 1):
            chosen.append(self.choose(log_p[place]))
            if place == len(draft) or chosen[place] != draft[place]:
                break
        tokens = np.array(chosen, np.int32)
        if self.task.wish.drafter is not None:
            self.task.wish.drafter.acceptance.learn(self._chain, tokens)
        return tokens

    def write(self, tokens: Sequence[Token], draft: Int32s) -> int:
        """Add tokens up to the first that is not what was drafted, or ends the text; return how many."""
        for place, token in enumerate(tokens):
            drafted = place < len(draft) and token.id == draft[place]
            if drafted and token.trace is not None:
                token = replace(token, trace=replace(token.trace, drafted=True))
            self.append(token)
            if self.finished or not drafted:
                return place + 1
        raise AssertionError("a token is chosen after the last drafted one")

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


def contexts_of(rows: list[Row], drafts: Sequence[Int32s] = ()) -> Contexts:
    """Return what each row has read, and has read after each drafted token, as a memory takes it.

    There are as many of each row as of the one with the longest draft; what stands after a draft's end is its last.
    """
    drafts = drafts or [row.draft(0) for row in rows]
    wide = 1 + max(map(len, drafts))
    read = np.array([len(row.history) for row in rows], np.int64)
    drafted = np.array([len(draft) for draft in drafts], np.int64)
    begins = np.cumsum(read + drafted) - read - drafted
    ends = (begins + read)[:, None] + np.minimum(np.arange(wide), drafted[:, None])
    tokens = np.concatenate([part for row, draft in zip(rows, drafts, strict=True) for part in (row.history, draft)])
    return Contexts(tokens, np.repeat(begins, wide), ends.ravel())
