"""What a request wants of the engine for one prompt, and what the engine tells it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nearlm.knnlm.drafting import Drafter
from nearlm.mixing import Memory
from nearlm.serve.errors import APIError
from nearlm.serve.explanation import Trace
from nearlm.serve.sampling import SAMPLED, Alternatives, Sampling


@dataclass(frozen=True)
class Wish:
    """One prompt, how it is continued, and what is to be told of its tokens."""

    prompt: list[int]
    memory: Memory | None
    max_new_tokens: int
    choices: int = 1
    sampling: Sampling = SAMPLED
    stop: tuple[str, ...] = ()
    alternatives: int | None = None
    """How many of the likeliest tokens are told for each, None: not even its own log p."""
    neighbors: int | None = None
    """How many neighbours are told for each token, None: nothing of the memory."""
    score_prompt: bool = False
    """Whether the prompt's own tokens are told too."""
    drafter: Drafter | None = None
    """What drafts tokens, if anything does."""


@dataclass(frozen=True)
class Token:
    """A token: its log p, the likeliest tokens in its place, where its text begins, and what the memory said."""

    id: int
    logp: float | None
    alternatives: Alternatives | None = None
    trace: Trace | None = None
    offset: int = 0


@dataclass(frozen=True)
class PromptRead:
    """A prompt was read, and these are its tokens if they were asked for."""

    tokens: list[Token]


@dataclass(frozen=True)
class Delta:
    """New text of a choice with its tokens; the last one says why it ends, and how many tokens there were."""

    choice: int
    text: str
    tokens: list[Token]
    finish: str | None = None
    count: int = 0


@dataclass(frozen=True)
class Failure:
    """The task ends here."""

    error: APIError


Event = PromptRead | Delta | Failure


@dataclass
class Task:
    """A wish on its way: whom to tell, until when, and whether anybody still listens."""

    wish: Wish
    tell: Callable[[Event], None]
    deadline: float
    cancelled: bool = False
    begun: float = field(default_factory=time.monotonic)

    @property
    def expired(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.deadline
