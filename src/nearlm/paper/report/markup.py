"""Pieces of HTML: every text is escaped here, numbers are written for people, tables can be read aloud."""

import html
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
NOTHING = "–"


class Column(NamedTuple):
    """The head of a column: a name, and in small letters what more there is to say."""

    name: str
    note: str = ""


class TableRow(NamedTuple):
    """A row of a table: its name, what more there is to say of it, and its cells, all as plain text."""

    name: str
    note: str
    cells: Sequence[str]
    best: bool = False


def text(value: object) -> str:
    """Return any text as HTML that shows it."""
    return html.escape(printable(str(value)))


def printable(value: str) -> str:
    """Return a text without what no page and no figure can show; U+FFFD stands in its place."""
    return _UNPRINTABLE.sub("�", value.replace("\r\n", "\n").replace("\r", "\n"))


def visible(value: str) -> str:
    """Return a token as HTML with its line breaks and tabs made visible."""
    return text(value).replace("\n", "⏎").replace("\t", "⇥") or "∅"


def paragraphs(value: str) -> str:
    """Return a text as paragraphs, divided where it has empty lines."""
    parts = [part for part in re.split(r"\n\s*\n", value.strip()) if part.strip()]
    return "\n".join(f"<p>{text(part)}</p>" for part in parts)


def table(caption: str, first: str, columns: Sequence[Column], rows: Sequence[TableRow]) -> str:
    """Return a table that scrolls by itself where it is too wide."""
    head = "".join(_head(column) for column in [Column(first), *columns])
    body = "\n".join(_row(row) for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>\n'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def details(summary: str, content: str) -> str:
    """Return content that opens on demand; both are HTML."""
    return f"<details><summary>{summary}</summary>\n{content}\n</details>"


def perplexity(value: float | None) -> str:
    """Write a perplexity."""
    return _number(value, lambda number: f"{number:,.2f}" if number < 100 else f"{number:,.1f}")


def speed(value: float | None) -> str:
    """Write things a second."""
    return _number(value, lambda number: f"{number:,.0f}" if number >= 10 else f"{number:.2g}")


def times(value: float | None) -> str:
    """Write a ratio."""
    return _number(value, lambda number: f"{number:.2f}×" if number < 10 else f"{number:,.0f}×")


def share(value: float | None) -> str:
    """Write a share as per cent."""
    return _number(value, lambda number: f"{100 * number:.0f}\xa0%")


def chance(value: float | None) -> str:
    """Write a probability as per cent; small ones keep a digit."""
    return _number(
        value, lambda number: f"{100 * number:.0f}\xa0%" if number >= 0.1 or not number else f"{100 * number:.1g}\xa0%"
    )


def count(value: float | None) -> str:
    """Write a count."""
    return _number(value, lambda number: f"{number:,.0f}")


def plain(value: float | None) -> str:
    """Write any other number."""
    return _number(value, lambda number: f"{number:,.4g}")


def _number(value: float | None, write: Callable[[float], str]) -> str:
    return write(value) if value is not None and math.isfinite(value) else NOTHING


def _head(column: Column) -> str:
    note = f"<small>{text(column.note)}</small>" if column.note else ""
    return f'<th scope="col">{text(column.name)}{note}</th>'


def _row(row: TableRow) -> str:
    note = f"<small>{text(row.note)}</small>" if row.note else ""
    cells = "".join(f"<td>{text(cell)}</td>" for cell in row.cells)
    opening = '<tr class="best">' if row.best else "<tr>"
    return f'{opening}<th scope="row">{text(row.name)}{note}</th>{cells}</tr>'
