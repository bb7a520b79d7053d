"""The figure of the comparison: quality against minutes."""

from typing import Any

from nearlm.paper.comparison_table import Comparison
from nearlm.paper.report.axes import level, line, name_axes
from nearlm.paper.report.plotting import figure


@figure(2)
def comparison(found: Comparison, axes: Any, beside: Any) -> None:
    """Draw bits per byte against minutes on the test text, and beside it on unrelated text, with standard errors."""
    _panel(found, axes, "test", "bits per byte on the test text (lower is better)")
    _panel(found, beside, "unrelated", "bits per byte on unrelated text (lower is better)")
    axes.legend(fontsize=7.5, ncols=2)


def _panel(found: Comparison, axes: Any, text: str, title: str) -> None:
    for number, method in enumerate(found.methods):
        rows = [row for row in found.of(method) if getattr(row, text) is not None]
        if not rows:
            continue
        values = [getattr(row, text).bits_per_byte for row in rows]
        if rows[0].minutes is None:
            level(axes, values[0], method)
            continue
        minutes = [row.minutes or 0.0 for row in rows]
        line(axes, number - 1, minutes, values, method)
        errors = [getattr(row, text).bits_error for row in rows]
        axes.errorbar(minutes, values, errors, fmt="none", ecolor="#5b6673", elinewidth=0.8, alpha=0.6)
    if len(found.budgets) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(found.budgets, [f"{minutes:g}" for minutes in found.budgets])
    axes.minorticks_off()
    name_axes(axes, "minutes from raw text", title)
