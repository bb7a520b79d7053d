"""The engine: one thread that owns a model, and computes together whatever requests want of it at the same time.

Between two steps requests join and leave. A step is one forward pass over all rows, one search for all rows of a
memory, and one new token for each row. What a row gets does not depend on the others but for the rounding of sums.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nearlm.base import Doubles, Int32s
from nearlm.base.threads import apart
from nearlm.knnlm.attachment import Attachment
from nearlm.knnlm.draft_length import Pace
from nearlm.knnlm.pass_costs import pass_costs
from nearlm.mixing import Contexts, Memory
from nearlm.model.lm import LM
from nearlm.model.passes import turn
from nearlm.serve.decoder import CHUNK, Decoder, Reading, Said
from nearlm.serve.errors import APIError
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.mixer import Mixed
from nearlm.serve.rows import Row, contexts_of
from nearlm.serve.sampling import Alternatives, alternatives
from nearlm.serve.tasks import Event, Failure, PromptRead, Task, Token, Wish

_MOST_TOKENS = 64  # of a pass over drafts
_NOTHING = Wish([], None, 0)
_LOG = logging.getLogger("nearlm.serve")
_CLOSING = (503, "the server is shutting down; try another one, or later", None, "shutting_down")
_TOO_LATE = (503, "the request took longer than the server allows; ask for less, or later", None, "timeout")
_BROKEN = (500, "the computation failed; the server's log says why", None, "internal_error")


class Engine:
    """Computes tasks on one model, in a thread of its own."""

    def __init__(self, lm: LM, decode: Callable[[Sequence[int]], str], limits: Limits, metrics: Metrics):
        self.lm = lm
        self._decode = decode
        self._decoder = Decoder(lm)
        self._limits = limits
        self._metrics = metrics
        self._ends = end_tokens(lm)
        self._changed = threading.Condition()
        self._waiting: deque[Task] = deque()
        self._closing = False
        self._reading: Reading | None = None
        self._read: list[Task] = []  # the tasks that are being read
        self._scored: list[Token] = []  # of the one that is being read
        self._rows: list[Row] = []
        self._past: Any = None
        self._seconds: Doubles = np.ones(1)  # of passes over one token, two, three, …
        self._pace = Pace(self._seconds)
        self._drafting = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Find out how the model can be run, and begin."""
        apart(lambda: self._decoder.together)
        self._thread.start()

    def prepare_drafts(self, memory: Memory) -> None:
        """Find out what passes with a memory take, so that rows are drafted for; those run one by one are not."""
        if self._drafting or not self._decoder.together:
            return
        with turn(self.lm.model), self.lm.packed(), Attachment(self.lm, memory):
            self._seconds = pass_costs(self.lm, memory, self._limits.max_batch).by_tokens(_MOST_TOKENS)
        self._pace = Pace(self._seconds)
        self._drafting = True

    def submit(self, wishes: Sequence[Wish], tell: Callable[[int, Event], None]) -> list[Task]:
        """Queue the wishes of one request, all or none; what comes of them is told with their number."""
        deadline = time.monotonic() + self._limits.max_seconds
        tasks = [Task(wish, _numbered(tell, number), deadline) for number, wish in enumerate(wishes)]
        with self._changed:
            if self._closing:
                raise APIError(*_CLOSING)
            wanted = sum(wish.choices for wish in wishes)
            queued = sum(task.wish.choices for task in self._waiting)
            free = self._limits.max_batch - len(self._rows) - sum(task.wish.choices for task in self._read)
            if queued + wanted > self._limits.max_queue + max(free, 0):
                raise APIError(429, f"{queued} continuations wait already; try again later", code="queue_full")
            self._waiting.extend(tasks)
            self._count()
            self._changed.notify()
        return tasks

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Stop tasks that nobody waits for any more."""
        with self._changed:
            for task in tasks:
                task.cancelled = True
            self._changed.notify()

    def close(self, seconds: float = 8.0) -> None:
        """Take no more tasks, finish those there are, and end after so many seconds at the latest."""
        self.drain()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        with self._changed:
            for task in [*self._waiting, *self._read, *(row.task for row in self._rows)]:
                task.deadline = 0.0
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def drain(self) -> None:
        """Take no more tasks."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._read or self._rows):
                    self._decoder.rest()
                    if self._closing:
                        return
                    self._changed.wait()
                self._drop()
                self._admit()
                self._count()
            try:
                self._read_chunk()
                self._step()
            except Exception:
                self._fail()

    def _count(self) -> None:
        waiting = sum(task.wish.choices for task in self._waiting)
        self._metrics.count(self.lm.name, waiting=waiting, running=len(self._rows))

    def _fail(self) -> None:
        """End all tasks that are being computed: the state of the model's rows is not known any more."""
        _LOG.exception("a step failed")
        ended = {id(task): task for task in [*self._read, *(row.task for row in self._rows)]}
        self._reading = None
        self._past = None
        self._read, self._rows = [], []
        for task in ended.values():
            task.tell(Failure(APIError(*_BROKEN)))

    def _drop(self) -> None:
        """Let go of tasks whose client is gone or whose time is over."""
        late: dict[int, Task] = {}
        for task in [*self._waiting, *self._read, *(row.task for row in self._rows)]:
            if task.expired and not task.cancelled:
                late[id(task)] = task
                task.cancelled = True
        self._waiting = deque(task for task in self._waiting if not task.cancelled)
        if self._read and all(task.cancelled for task in self._read):
            self._reading = None
            self._read = []
        self._keep([row for row, each in enumerate(self._rows) if not each.task.cancelled])
        for task in late.values():
            task.tell(Failure(APIError(*(_CLOSING if self._closing else _TOO_LATE))))

    def _keep(self, kept: list[int]) -> None:
        if len(kept) < len(self._rows):
            self._past = self._decoder.keep(self._past, kept)
            self._rows = [self._rows[row] for row in kept]

    def _admit(self) -> None:
        """Take from the queue what is read next: short prompts together, a long or scored one alone."""
        if self._read or not self._waiting:
            return
        room = self._limits.max_batch - len(self._rows)
        chosen: list[Task] = []
        while self._waiting:
            wish = self._waiting[0].wish
            prompts = [task.wish.prompt for task in chosen] + [wish.prompt]
            padded = len(prompts) * max(map(len, prompts))
            alone = wish.score_prompt or not self._decoder.together
            if chosen and (padded > CHUNK or alone):
                break
            if wish.choices > room and (chosen or self._rows):
                break
            room -= wish.choices
            chosen.append(self._waiting.popleft())
            if alone:
                break
        self._read = chosen
        self._scored = []
        self._reading = Reading([task.wish.prompt for task in chosen]) if chosen else None

    def _read_chunk(self) -> None:
        """Read on; when all is read, the first tokens are chosen, and the rows join the others."""
        reading = self._reading
        if reading is None:
            return
        tasks = self._read
        first = reading.read
        every = tasks[0].wish.score_prompt
        said = self._decoder.read(reading, every=every)
        if every:
            said = self._score(tasks[0].wish, said, first)
        if not reading.done:
            return
        self._metrics.prompt_tokens(sum(map(len, reading.prompts)))
        for task in tasks:
            task.tell(PromptRead(self._scored))
        counts = [task.wish.choices if task.wish.max_new_tokens else 0 for task in tasks]
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        choices = [choice for count in counts for choice in range(count)]
        rows = [
            Row(tasks[place], choice, self._decode, self._ends) for place, choice in zip(places, choices, strict=True)
        ]
        self._advance(rows, Said(said.logits[places], said.keys[places]))
        times = [sum(row.task is task and not row.finished for row in rows) for task in tasks]
        new = [row for row in rows if not row.finished]
        if new:
            self._past = self._decoder.join(self._past, list(range(len(self._rows))), reading, times)
            self._rows += new
        self._reading = None
        self._read = []

    def _score(self, wish: Wish, said: Said, first: int) -> Said:
        """Tell the tokens of a prompt that stand after the positions of a chunk; return what is said after its last."""
        count = len(said.logits)
        targets = np.asarray(wish.prompt[first + 1 : first + 1 + count], np.int32)
        if len(targets):
            ends = np.arange(first + 1, first + 1 + len(targets), dtype=np.int64)
            contexts = Contexts(np.asarray(wish.prompt, np.int32), np.zeros_like(ends), ends)
            here = Said(said.logits[: len(targets)], said.keys[: len(targets)])
            mixed = Mixed(here, [wish.memory] * len(targets), contexts)
            self._scored += _tokens(mixed, targets, [wish] * len(targets))
        return Said(said.logits[-1:], said.keys[-1:])

    def _step(self) -> None:
        """Append a token to every row."""
        if not self._rows:
            return
        drafts = self._drafts()
        with self._metrics.step():
            last = [row.last for row in self._rows]
            said = self._decoder.step(self._past, last, drafts) if drafts else self._decoder.step(self._past, last)
            written = self._advance(self._rows, said, drafts)
        wide = 1 + max(map(len, drafts), default=0)
        self._pace.count(wide, sum(written))
        self._metrics.drafted_tokens(sum(map(len, drafts)), sum(written) - len(written))
        if drafts:
            self._past.shrink([wide - count for count in written])
        self._keep([place for place, row in enumerate(self._rows) if not row.finished])

    def _drafts(self) -> list[Int32s]:
        """Return what is drafted for each row, nothing if it does not pay."""
        if not self._drafting:
            return []
        rows = self._rows
        if self._pace.rows != len(rows):
            self._pace = Pace(self._seconds, len(rows))
        length = self._pace.best_length([row.rates for row in rows])
        drafts = [row.draft(length) for row in rows]
        return drafts if any(map(len, drafts)) else []

    def _advance(self, rows: list[Row], said: Said, drafts: Sequence[Int32s] = ()) -> list[int]:
        """Choose the next tokens of every row, and tell what there is to tell of them.

        Return how many each row got.
        """
        if not rows:
            return []
        drafts = drafts or [row.draft(0) for row in rows]
        wide = len(said.logits) // len(rows)
        wishes = [row.task.wish for row in rows for _ in range(wide)]
        mixed = Mixed(said, [wish.memory for wish in wishes], contexts_of(rows, drafts))
        targets = np.full((len(rows), wide), -1, np.int32)
        for place, row in enumerate(rows):
            chosen = row.choose_along(mixed.log_p[place * wide :], drafts[place])
            targets[place, : len(chosen)] = chosen
        tokens = _tokens(mixed, targets.ravel(), wishes)
        written = []
        for place, row in enumerate(rows):
            if not row.written:
                self._metrics.first_token(time.monotonic() - row.task.begun)
            written.append(row.write(tokens[place * wide : (place + 1) * wide], drafts[place]))
            if self._drafting and not row.finished:
                row.look_ahead(*mixed.near(place * wide + written[place] - 1))
        self._metrics.new_tokens(sum(written))
        return written


def _tokens(mixed: Mixed, targets: Any, wishes: Sequence[Wish]) -> list[Token]:
    """Say of one token per row what its request wants to know; -1 is none, of which nothing is said."""
    wishes = [wish if token >= 0 else _NOTHING for wish, token in zip(wishes, targets.tolist(), strict=True)]
    most = max((wish.alternatives or 0 for wish in wishes), default=0)
    likeliest: list[Alternatives | None] = [*alternatives(mixed.log_p, most)] if most else [None] * len(wishes)
    traces = mixed.traces(np.maximum(targets, 0), [wish.neighbors for wish in wishes])
    found = []
    for place, (wish, token) in enumerate(zip(wishes, targets.tolist(), strict=True)):
        logp = None if wish.alternatives is None else float(mixed.log_p[place, token])
        best = likeliest[place]
        if best is not None:
            best = Alternatives(best.ids[: wish.alternatives], best.logps[: wish.alternatives])
        found.append(Token(token, logp, best, traces[place]))
    return found


def _numbered(tell: Callable[[int, Event], None], number: int) -> Callable[[Event], None]:
    return lambda event: tell(number, event)


def end_tokens(lm: LM) -> frozenset[int]:
    """Return the tokens that end a text: those that the model's `generate` stops at."""
    config: Any = getattr(lm.model, "generation_config", None) or lm.model.config
    ends = config.eos_token_id
    if ends is None:
        return frozenset()
    return frozenset([ends] if isinstance(ends, int) else ends)
