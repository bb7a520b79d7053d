"""Figures of what was measured; needs matplotlib, which is imported only here."""

import io
from pathlib import Path
from typing import Any

from nearlm import files
from nearlm.errors import MissingExtraError, OptionError

# Okabe and Ito's palette: told apart with any kind of colour vision; line styles and markers differ too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ("-", "v"), ("--", "x"))
_FORMATS = (".png", ".svg", ".pdf")


def check_figure(path: Path) -> None:
    """Refuse, before the work, a figure that cannot be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise OptionError(f"--figure is {path.name!r}, expected a name that ends in {', '.join(_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"--figure is {path}, but {path.parent} is no folder; make it first")
    _pyplot()


def ablation_figure(found: Any, path: Path) -> None:
    """Draw an ablation's perplexities against the share skipped and against tokens/s."""
    plt = _pyplot()
    figure, sides = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    speeds = found.speed["tokens_per_second"]
    for number, (name, values) in enumerate({**found.curves, **found.objectives}.items()):
        (line, marker), colour = _STYLES[number % len(_STYLES)], COLOURS[number % len(COLOURS)]
        style = {"linestyle": line, "marker": marker, "color": colour, "markersize": 4, "label": name}
        sides[0].plot([100 * share for share in found.shares], values, **style)
        sides[1].plot(speeds, values, **style)
    oracle = found.oracle
    sides[0].plot(100 * oracle["skipped"], oracle["constant"], "*", color="black", markersize=12, label="oracle mask")
    for side, label in zip(sides, ("retrievals skipped, %", "tokens/s, from its parts"), strict=True):
        side.axhline(found.vanilla_perplexity, color="grey", linewidth=0.8, label=f"λ={found.lam:g}, nothing skipped")
        side.set_xlabel(label)
        side.grid(alpha=0.3)
    sides[0].set_ylabel("perplexity")
    sides[0].legend(fontsize=8)
    _save(figure, path)


def sweep_figure(found: Any, path: Path) -> None:
    """Draw a sweep: perplexity against what was varied, and against searches/s with the Pareto front."""
    plt = _pyplot()
    figure, sides = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    whole, points = found.points[0], sorted(found.points[1:], key=lambda point: point.value)
    what = f"{found.over} ({found.method})" if found.method else found.over
    values = [point.value for point in points]
    sides[0].plot(values, [point.perplexity for point in points], "-o", color=COLOURS[0], markersize=5)
    if values and values[-1] / values[0] >= 8:
        sides[0].set_xscale("log", base=2)
    sides[0].set_xlabel(what)
    sides[0].axhline(whole.perplexity, color="grey", linewidth=0.8, label="the store as it is")
    front = sorted((point for point in found.points if point.pareto), key=lambda point: point.retrievals_per_second)
    speeds = [point.retrievals_per_second for point in front]
    sides[1].plot(speeds, [point.perplexity for point in front], "--", color=COLOURS[1], label="Pareto front")
    sides[1].plot(whole.retrievals_per_second, whole.perplexity, "*", color="black", markersize=12, label="as it is")
    for point in points:
        at = (point.retrievals_per_second, point.perplexity)
        sides[1].plot(*at, "o", color=COLOURS[0], markersize=5)
        sides[1].annotate(f"{point.value:g}", at, xytext=(4, 4), textcoords="offset points", fontsize=8)
    sides[1].set_xlabel("searches/s")
    sides[0].set_ylabel("perplexity")
    for side in sides:
        side.grid(alpha=0.3)
        side.legend(fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix.lower()[1:], dpi=150)
    _pyplot().close(figure)
    files.write_bytes(path, data.getvalue())


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("a figure", "report") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
