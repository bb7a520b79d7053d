"""What a server allows: each limit has a default that suits a small machine."""

from dataclasses import dataclass, fields

from nearlm.base import check_at_least


@dataclass(frozen=True)
class Limits:
    """Bounds on requests; whatever exceeds one is refused with an error that names it."""

    max_body_bytes: int = 1 << 20
    """Bytes of a request."""
    max_prompt_tokens: int = 4096
    """Tokens of a prompt, or of a text to score."""
    max_new_tokens: int = 2048
    """Tokens that a request may add to a prompt."""
    max_choices: int = 16
    """Continuations of one request: its prompts times n."""
    max_batch: int = 16
    """Continuations that are computed together."""
    max_queue: int = 64
    """Continuations that wait for their turn; further requests get 429."""
    max_seconds: float = 300.0
    """Seconds that a request may take, with the time that it waits."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check_at_least(1, **{field.name: getattr(self, field.name)})
