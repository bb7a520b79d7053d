"""Why a token was predicted: what LM and memory thought of it, the contexts behind that, and a view of it."""

from dataclasses import dataclass, field
from html import escape

from nearlm.base import printable
from nearlm.store import Context


@dataclass(frozen=True)
class Suffix:
    """The longest suffix of a context that occurs in the store's text: its tokens, how often, and one document."""

    length: int
    count: int
    document: str
    store: str = ""  # its name, where there are several


@dataclass(frozen=True)
class Explanation:
    """One token of a text: what LM and memory thought of it, and the contexts (text and token) behind that."""

    token: str
    p_lm: float
    p_knn: float
    p: float
    lam: float
    nearest: list[tuple[float, Context]]
    sources: dict[str, tuple[float, float]] = field(default_factory=dict)  # of a mixture: each one's weight and p
    suffix: Suffix | None = None
    drafted: bool = False  # of a token that was generated


class Explanations(list[Explanation]):
    """Explanations of the tokens of a text; a notebook shows them as the text, coloured by what the memory gave."""

    def _repr_html_(self) -> str:
        """Show the text: the stronger the colour, the more of a token's probability came from the memory."""
        spans = "".join(map(_span, self))
        return f'<div style="white-space: pre-wrap; font-family: monospace; line-height: 1.6">{spans}</div>'


def memory_share(one: Explanation) -> float:
    """Return λ·p_kNN / p: how much of a token's probability came from the memory."""
    return min(1.0, max(0.0, one.lam * one.p_knn / one.p)) if one.p else 0.0


def _span(one: Explanation) -> str:
    colour = f"rgba(0, 114, 178, {0.6 * memory_share(one):.2f})"
    return f'<span style="background: {colour}" title="{_title(one)}">{_visible(one.token)}</span>'


def _visible(token: str) -> str:
    return escape(printable(token)).replace("\n", "⏎<br>")


def _title(one: Explanation) -> str:
    """Write what a pointer over the token shows."""
    lines = [f"p {one.p:.3f}  p_LM {one.p_lm:.3f}  p_kNN {one.p_knn:.3f}  λ {one.lam:.2f}"]
    for distance, context in one.nearest:
        before = " ".join(context.text.split())[-60:]
        place = f"{context.store}: {context.document}" if context.store else context.document
        lines.append(f"{distance:.1f}  …{before} → {context.target!r} ({place})")
    return escape(printable("\n".join(lines)), quote=True).replace("\n", "&#10;")
