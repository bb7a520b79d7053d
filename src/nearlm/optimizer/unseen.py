"""How well a memory predicts text that it has not seen: bits per byte and perplexity, with their standard errors."""

import math
from dataclasses import dataclass

import numpy as np

from nearlm.base import line_up
from nearlm.knnlm import ScoredText
from nearlm.mixing import SURE, standard_error
from nearlm.text import TokenText


@dataclass(frozen=True)
class Quality:
    """How well a text is predicted, each number with its standard error over documents."""

    bits_per_byte: float
    bits_error: float
    perplexity: float
    perplexity_error: float

    @property
    def cells(self) -> tuple[str, str]:
        """Both numbers, for people."""
        bits = f"{self.bits_per_byte:.3f} ± {self.bits_error:.3f}"
        return bits, f"{self.perplexity:.2f} ± {self.perplexity_error:.2f}"


@dataclass(frozen=True)
class Unseen:
    """What was measured on unseen text: the LM alone, the LM with its memory, and the time that a token takes.

    `saved` is the share of the bits that the memory saves, `saved_error` its standard error.
    """

    documents: int
    tokens: int
    bytes: int
    alone: Quality
    memory: Quality
    saved: float
    saved_error: float
    microseconds: float
    lm_microseconds: float

    @classmethod
    def of(cls, text: TokenText, scored: ScoredText) -> "Unseen":
        """Sum up how a text was scored."""
        found = scored.evaluation
        documents = text.documents
        gain = scored.logp - scored.log_lm
        alone = -float(np.sum(scored.log_lm))
        saved = float(np.sum(gain)) / alone
        error = standard_error(gain + saved * scored.log_lm, documents)  # of a ratio, by linearisation
        return cls(
            documents=len(np.unique(documents)),
            tokens=found.tokens,
            bytes=found.bytes,
            alone=quality_of(scored.log_lm, documents, found.bytes),
            memory=quality_of(scored.logp, documents, found.bytes),
            saved=saved,
            saved_error=error * len(gain) / alone,
            microseconds=found.microseconds,
            lm_microseconds=1e6 * found.lm_share * found.seconds / found.tokens,
        )

    @property
    def helps(self) -> bool | None:
        """Whether the memory surely helps, or surely does not (False); None: it cannot be told."""
        if abs(self.saved) < SURE * self.saved_error:
            return None
        return self.saved > 0

    @property
    def overhead(self) -> float:
        """What the memory takes of a token's time, as a share of what the LM takes."""
        return self.microseconds / max(self.lm_microseconds, 1e-9)

    def lines(self) -> list[str]:
        """Return it as a table, and in words."""
        rows = [
            ("", "bits per byte", "perplexity"),
            ("the model alone", *self.alone.cells),
            ("with its memory", *self.memory.cells),
        ]
        verdict = {
            True: "the memory helps",
            False: "the memory does harm here",
            None: "no difference that could be told from chance",
        }[self.helps]
        documents = f"{self.documents:,} unseen document{'s' * (self.documents != 1)}"
        return [
            f"On {self.tokens:,} tokens of {documents} (± standard error):",
            *line_up(rows),
            f"{self.saved:.1%} of the bits are saved (± {self.saved_error:.1%}): {verdict}.",
            f"The memory takes {self.microseconds:,.0f} µs per token, {self.overhead:.1%} of the model's own "
            f"{self.lm_microseconds:,.0f}.",
        ]


def quality_of(logp: np.typing.NDArray[np.float64], documents: np.typing.NDArray[np.int64], count: int) -> Quality:
    """Say how well the tokens of some documents were predicted, which have so many bytes in all."""
    mean = -float(np.mean(logp))
    error = standard_error(logp, documents)
    bits = len(logp) / math.log(2) / max(1, count)
    perplexity = math.exp(min(mean, 700))
    return Quality(mean * bits, error * bits, perplexity, error * perplexity)
