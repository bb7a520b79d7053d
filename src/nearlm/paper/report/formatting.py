"""Numbers and texts as people read them; the page's templates use these as filters."""

import functools
import math
import re
from collections.abc import Callable

from nearlm.base import size
from nearlm.knnlm import Explanation

NOTHING = "–"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def displayable(value: str) -> str:
    """Return a text without what no page and no figure can show; U+FFFD stands in its place."""
    return _UNPRINTABLE.sub("\ufffd", value.replace("\r\n", "\n").replace("\r", "\n"))


def visible(value: str) -> str:
    """Return a token with its line breaks and tabs made visible."""
    return displayable(value).replace("\n", "⏎").replace("\t", "⇥") or "∅"


def paragraphs(value: str) -> list[str]:
    """Return a text's paragraphs, divided where it has empty lines."""
    return [part for part in re.split(r"\n\s*\n", value.strip()) if part.strip()]


def memory_share(token: Explanation) -> float:
    """Return λ·p_kNN / p: how much of a token's probability came from the memory."""
    if not token.p:
        return 0.0
    return min(1.0, max(0.0, token.lam * token.p_knn / token.p))


def _optional(write: Callable[[float], str]) -> Callable[[float | None], str]:
    """Let a function write a dash for what was not measured."""

    @functools.wraps(write)
    def write_or_dash(value: float | None) -> str:
        return write(value) if value is not None and math.isfinite(value) else NOTHING

    return write_or_dash


@_optional
def ppl(value: float) -> str:
    """Write a perplexity."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


@_optional
def speed(value: float) -> str:
    """Write things per second."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


@_optional
def times(value: float) -> str:
    """Write a ratio."""
    return f"{value:.2f}×" if value < 10 else f"{value:,.0f}×"


@_optional
def share(value: float) -> str:
    """Write a share as per cent."""
    return f"{100 * value:.0f}\xa0%"


@_optional
def chance(value: float) -> str:
    """Write a probability as per cent; small ones keep a digit."""
    return share(value) if value >= 0.1 or not value else f"{100 * value:.1g}\xa0%"


@_optional
def count(value: float) -> str:
    """Write a count."""
    return f"{value:,.0f}"


@_optional
def plain(value: float) -> str:
    """Write any other number."""
    return f"{value:,.4g}"


@_optional
def disk(value: float) -> str:
    """Write a number of bytes."""
    return size(value)
