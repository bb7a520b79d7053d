"""Numbers and texts as people read them; the page's templates use these as filters."""

import math
import re
from collections.abc import Callable

from nearlm.base import size
from nearlm.knnlm import memory_share as memory_share  # a filter of the templates

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


def _or_dash(write: Callable[[float], str]) -> Callable[[float | None], str]:
    """Let a function write a dash for what was not measured."""

    def write_or_dash(value: float | None) -> str:
        return write(value) if value is not None and math.isfinite(value) else NOTHING

    return write_or_dash


ppl = _or_dash(lambda value: f"{value:,.2f}" if value < 100 else f"{value:,.1f}")
ppl3 = _or_dash("{:,.3f}".format)  # where small differences matter
signed = _or_dash("{:+.2f}".format)
speed = _or_dash(lambda value: f"{value:,.0f}" if value >= 10 else f"{value:.2g}")  # things per second
times = _or_dash(lambda value: f"{value:.2f}×" if value < 10 else f"{value:,.0f}×")  # a ratio
share = _or_dash(lambda value: f"{100 * value:.0f}\xa0%")
chance = _or_dash(
    lambda value: share(value) if value >= 0.1 or not value else f"{100 * value:.1g}\xa0%"
)  # small ones keep a digit
percent = _or_dash(lambda value: f"{100 * value:.1f}\xa0%")  # a share of which tenths matter
count = _or_dash("{:,.0f}".format)
plain = _or_dash("{:,.4g}".format)  # any other number
disk = _or_dash(size)
