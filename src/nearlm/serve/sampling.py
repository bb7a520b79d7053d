"""Which token comes next: the likeliest, or one that is sampled with a row's own settings and seed."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: temperature 0 takes the likeliest; a seed makes a row's choices repeatable."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0

    def generator(self, choice: int) -> torch.Generator | None:
        """Return the source of randomness of one of a request's choices."""
        if self.greedy:
            return None
        made = torch.Generator()
        if self.seed is None:
            made.seed()
        else:
            made.manual_seed((self.seed * 1_000_003 + choice) % (1 << 63))
        return made


SAMPLED = Sampling()


class Alternatives(NamedTuple):
    """The likeliest tokens of a position and their log p."""

    ids: list[int]
    logps: list[float]


def choose(log_p: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """Choose one token of a distribution, [vocabulary]."""
    if sampling.greedy:
        return int(log_p.argmax())
    p = (log_p.double() / sampling.temperature).softmax(-1).cpu()
    if sampling.top_p < 1:
        p = _nucleus(p, sampling.top_p)
    return int(torch.multinomial(p, 1, generator=generator))


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Keep the likeliest tokens that together have a probability of `top_p`, and at least one."""
    ordered, order = p.sort(descending=True)
    kept = torch.ones(len(p), dtype=torch.bool)
    kept[1:] = ordered.cumsum(0)[:-1] < top_p
    return torch.zeros_like(p).scatter(0, order[kept], ordered[kept])


def alternatives(log_p: Tensor, count: int) -> list[Alternatives]:
    """Return the likeliest tokens of each row, [n, vocabulary]."""
    values, ids = log_p.topk(min(count, log_p.shape[-1]), -1)
    return [Alternatives(*pair) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
