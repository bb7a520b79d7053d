"""What figures are drawn with: lines and points in the style of all, and axes with names and plain numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from nearlm.paper.report.plotting import COLOURS, INK, LINES, MUTED, WHITE

STAR: dict[str, Any] = {"color": INK, "markersize": 14, "linestyle": "none", "zorder": 4}


def line(axes: Any, number: int, across: Sequence[float], values: Sequence[float], label: str) -> None:
    """Draw a curve in the style of that number."""
    dashes, marker = LINES[number % len(LINES)]
    style = {"linestyle": dashes, "marker": marker, "color": COLOURS[number % len(COLOURS)], "label": label}
    axes.plot(across, values, markeredgecolor=WHITE, markeredgewidth=0.6, **style)


def plot(axes: Any, points: Sequence[Any], across: str, mark: str, up: str = "perplexity", **style: Any) -> None:
    """Draw two attributes of points against each other, if there are any points."""
    if points:
        axes.plot([getattr(point, across) for point in points], [getattr(point, up) for point in points], mark, **style)


def level(axes: Any, value: float, label: str) -> None:
    """Draw a dashed line across, to compare with."""
    axes.axhline(value, color=MUTED, linewidth=1, linestyle="--", label=label)


def bars(axes: Any, values: Mapping[str, float], errors: Sequence[float], labels: Sequence[str]) -> None:
    """Draw a bar across for each name, the last on top, with what it may be off and a label at its end."""
    places = range(len(values))
    style = {"ecolor": MUTED, "elinewidth": 1.2, "capsize": 3}
    axes.barh(places, list(values.values()), 0.6, color=COLOURS[0], xerr=errors, error_kw=style)
    axes.axvline(0, color=MUTED, linewidth=1)
    for place, value, error, label in zip(places, values.values(), errors, labels, strict=True):
        end = max(value + error, 0)
        axes.annotate(label, (end, place), (5, 0), textcoords="offset points", va="center", fontsize=9.5)
    axes.set_yticks(places, list(values))
    axes.grid(visible=False, axis="y")


def name_axes(axes: Any, across: str, up: str = "perplexity (lower is better)") -> None:
    """Say what is drawn against what, with plain numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(across)
    axes.set_title(up)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_formatter("{x:,g}")


def logarithmic(axes: Any, values: Sequence[float], span: float, base: int = 10) -> bool:
    """Make an axis logarithmic if its values span so much, and tell whether they do."""
    wide = bool(values) and min(values) > 0 and max(values) / min(values) >= span
    if wide:
        axes.set_xscale("log", base=base)
    return wide


def label_decades(axes: Any) -> None:
    """Label 10, 20, 50, 100 … of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import LogLocator

    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
