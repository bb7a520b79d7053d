"""Tables as plain text."""

from collections.abc import Sequence
from itertools import zip_longest


def line_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with columns: the first flush left, the others flush right; rows may end early."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=False)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines
