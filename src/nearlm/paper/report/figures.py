"""The figures: each takes a part of the results, as `Results` keeps it, and draws what it says."""

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearlm.base import Json
from nearlm.paper.report.markup import printable
from nearlm.paper.report.plotting import (
    COLOURS,
    GRID,
    INK,
    LINES,
    MUTED,
    PAPER,
    Label,
    finish,
    label_points,
    panels,
    save,
    styled,
)
from nearlm.paper.results import ALL, LEARNED, MASK, NLM, RANDOM, VANILLA

METHODS = {"merge": "greedy merging", "random": "random", "kmeans": "k-means", "rank": "rank"}
_PERPLEXITY = "perplexity (lower is better)"
_AT_RANDOM, _BY_ADAPTOR = "at random", "as the adaptor says"
_ALWAYS = {
    LEARNED: 0,
    _BY_ADAPTOR: 0,
    RANDOM: 1,
    _AT_RANDOM: 1,
    MASK: 2,
    "random mask, learned λ": 3,
}
_APART = 1.2  # as a ratio: numbers on an axis that is logarithmic
_OTHERS = 4  # the first line style of curves that are in none of these
_FEATURES = {"keys": "f(c)"}
_AXES = {"dim": "width of the keys", "k": "neighbours of a token, k", "nprobe": "lists probed", "neighbors": "K"}


@styled
def intro(main: Json) -> Any:
    """Draw the paper's first figure: perplexity against speed, the two baselines in circles."""
    figure, (axes,) = panels()
    rows = _finite(main["rows"], "tokens_per_second", "perplexity")
    _scatter_rows(axes, rows)
    return finish(figure)


@styled
def closer(main: Json) -> Any:
    """Draw the rows with a memory alone, where the LM's perplexity does not squeeze them."""
    figure, (axes,) = panels()
    rows = _finite(main["rows"], "tokens_per_second", "perplexity")
    for row in rows:
        if row["name"] == NLM:
            axes.axvline(
                row["tokens_per_second"], color=MUTED, linewidth=1, linestyle=":", label="speed of the LM alone"
            )
    _vanilla(axes, [row["perplexity"] for row in rows if row["name"] == VANILLA], "the vanilla kNN-LM")
    _scatter_rows(axes, [row for row in rows if row["name"] != NLM], legend=True)
    return finish(figure)


@styled
def choice(found: Json) -> Any:
    """Draw every combination that was tried, those that nothing beats, and the one that was taken.

    Perplexities are differences from the vanilla kNN-LM on the same tokens: an adaptor has fewer to be judged on.
    """
    figure, (axes,) = panels()
    points = _finite(found["points"], "microseconds", "beyond")
    front = sorted((point for point in points if point["pareto"]), key=lambda point: point["microseconds"])
    rest = [point for point in points if not point["pareto"]]
    _plot(axes, rest, "microseconds", "o", "beyond", color=MUTED, alpha=0.45, markersize=4, label="tried")
    _plot(axes, front, "microseconds", "-o", "beyond", color=COLOURS[0], markersize=5, label="nothing beats these")
    taken = [point for point in points if point["chosen"]]
    _plot(axes, taken, "microseconds", "*", "beyond", color=COLOURS[1], markersize=15, zorder=4, label="chosen")
    allowed = f"allowed: {found['budget']:+g}"
    axes.axhline(found["budget"], color=MUTED, linewidth=1, linestyle="--", label=allowed)
    _logarithmic(axes, [point["microseconds"] for point in points], 10)
    axes.margins(0.08, 0.1)
    _name(axes, "retrieval time a token, µs", "perplexity beyond the vanilla kNN-LM's")
    axes.legend()
    names = [Label(p["microseconds"], p["beyond"], _wrapped(p["label"]), True) for p in taken]
    label_points(axes, names)
    return finish(figure)


@styled
def adaptive(found: Json) -> Any:
    """Draw perplexity against the share of retrievals left out: at random, and as the adaptor says."""
    figure, (axes,) = panels()
    _ablation(axes, _main_curves(found), _percent(found["shares"]), "retrievals skipped, %")
    _oracle(axes, found)
    _vanilla(axes, [found["vanilla_perplexity"]], "asking always")
    axes.legend(loc="upper left")
    return finish(figure)


@styled
def adaptive_speed(found: Json) -> Any:
    """Draw the same perplexities against the speed that they go with."""
    figure, (axes,) = panels()
    speeds = found["speed"]["tokens_per_second"]
    _ablation(axes, {LEARNED: found["curves"][LEARNED]}, speeds, "tokens/s, from the times of the parts")
    _vanilla(axes, [found["vanilla_perplexity"]], "asking always")
    shown = [number for number, share in enumerate(found["shares"]) if round(100 * share) % 20 == 0]
    places = [(speeds[n], found["curves"][LEARNED][n], f"{found['shares'][n]:.0%}") for n in shown]
    axes.margins(0.08, 0.12)
    axes.legend(loc="upper left")
    label_points(axes, [Label(*place) for place in places])
    return finish(figure)


@styled
def masks(found: Json) -> Any:
    """Draw {random, learned} masks × {constant, learned} λ."""
    figure, (axes,) = panels()
    _ablation(axes, found["curves"], _percent(found["shares"]), "retrievals skipped, %")
    axes.legend(loc="upper left")
    return finish(figure)


@styled
def features(found: Json) -> Any:
    """Draw the perplexity at half the retrievals, for every set of features that was tried."""
    figure, (axes,) = panels()
    half = min(range(len(found["shares"])), key=lambda number: abs(found["shares"][number] - 0.5))
    rows = [(_features(row["features"]), row["perplexity"][half]) for row in found["features"]][::-1]
    values = [value for _, value in rows]
    axes.axvline(found["vanilla_perplexity"], color=MUTED, linewidth=1, linestyle="--", label="asking always")
    axes.hlines(range(len(rows)), min([*values, found["vanilla_perplexity"]]), values, color=GRID, linewidth=3)
    axes.plot(values, range(len(rows)), "o", color=COLOURS[0], markersize=8)
    for number, value in enumerate(values):
        axes.annotate(f"{value:.2f}", (value, number), (0, 7), textcoords="offset points", ha="center", fontsize=9.5)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("perplexity, half the retrievals skipped")
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    return finish(figure)


@styled
def pruning(found: Json) -> Any:
    """Draw perplexity against the share of the records that each method keeps."""
    figure, (axes,) = panels()
    for number, (name, points) in enumerate(_methods(found).items()):
        points = sorted(points, key=lambda point: point["records"])
        whole = max(point["records"] for point in points)
        shares = [100 * point["records"] / whole for point in points]
        _line(axes, number, shares, [point["perplexity"] for point in points], name)
    _name(axes, "records kept, %")
    axes.legend()
    return finish(figure)


@styled
def pruning_speed(found: Json) -> Any:
    """Draw perplexity against the speed of searches in what each method leaves."""
    figure, (axes,) = panels()
    for number, (name, points) in enumerate(_methods(found).items()):
        points = sorted(points, key=lambda point: point["records"])
        speeds = [point["retrievals_per_second"] for point in points]
        _line(axes, number, speeds, [point["perplexity"] for point in points], name)
    wholes = [points[0] for points in _methods(found).values()]
    _plot(axes, wholes[:1], "retrievals_per_second", "*", color=INK, markersize=14, zorder=4, label="all records")
    _name(axes, "searches/s")
    axes.legend()
    return finish(figure)


@styled
def sweep(found: Json) -> Any:
    """Draw perplexity against what was varied; the store as it is has a star."""
    figure, (axes,) = panels()
    _sweep(axes, found, "perplexity", COLOURS[0])
    _name(axes, _axis(found))
    axes.legend()
    return finish(figure)


@styled
def sweep_speed(found: Json) -> Any:
    """Draw searches a second against what was varied."""
    figure, (axes,) = panels()
    _sweep(axes, found, "retrievals_per_second", COLOURS[1])
    _name(axes, _axis(found), "searches/s (more is better)")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.legend(loc="lower left")
    return finish(figure)


@styled
def ablation_figure(found: Json, path: Path) -> None:
    """Draw an ablation into a file: perplexities against the share skipped and against tokens/s."""
    figure, sides = panels(2)
    curves = {**found["curves"], **found["objectives"]}
    _ablation(sides[0], curves, _percent(found["shares"]), "retrievals skipped, %")
    _ablation(sides[1], curves, found["speed"]["tokens_per_second"], "tokens/s, from the times of the parts")
    _oracle(sides[0], found)
    for side in sides:
        _vanilla(side, [found["vanilla_perplexity"]], f"λ={found['lam']:g}, nothing skipped")
    sides[0].legend(loc="upper left")
    save(finish(figure), path)


@styled
def sweep_figure(found: Json, path: Path) -> None:
    """Draw a sweep into a file: perplexity against what was varied, and against searches/s with the Pareto front."""
    figure, sides = panels(2)
    _sweep(sides[0], found, "perplexity", COLOURS[0])
    _name(sides[0], _axis(found))
    points = _finite(found["points"], "retrievals_per_second", "perplexity")
    front = sorted((point for point in points if point["pareto"]), key=lambda point: point["retrievals_per_second"])
    _plot(sides[1], front, "retrievals_per_second", "--", color=COLOURS[1], label="Pareto front")
    varied = [point for point in points if point["value"] is not None]
    _plot(sides[1], varied, "retrievals_per_second", "o", color=COLOURS[0])
    whole = [point for point in points if point["value"] is None]
    _plot(sides[1], whole, "retrievals_per_second", "*", color=INK, markersize=14, zorder=4, label="as it is")
    _name(sides[1], "searches/s")
    sides[1].margins(0.1)
    for side in sides:
        side.legend()
    names = [Label(p["retrievals_per_second"], p["perplexity"], f"{p['value']:g}") for p in varied]
    label_points(sides[1], names)
    save(finish(figure), path)


def _scatter_rows(axes: Any, rows: Sequence[Json], legend: bool = False) -> None:
    for row in rows:
        at = (row["tokens_per_second"], row["perplexity"])
        baseline, best = row["name"] in (NLM, VANILLA), row["name"] == ALL
        colour = MUTED if baseline else COLOURS[1] if best else COLOURS[0]
        axes.plot(*at, "*" if best else "o", color=colour, markersize=15 if best else 7, zorder=4)
        if baseline:
            axes.plot(*at, "o", color=colour, markersize=15, fillstyle="none", zorder=3)
    axes.margins(0.13, 0.16)
    _name(axes, "tokens per second (more is better)")
    if legend:
        axes.legend()
    labels = [
        Label(r["tokens_per_second"], r["perplexity"], r["name"], r["name"] == ALL)
        for r in sorted(rows, key=lambda row: (row["name"] != ALL, row["tokens_per_second"]))
    ]
    label_points(axes, labels)


def _main_curves(found: Json) -> dict[str, list[float]]:
    curves = {_AT_RANDOM: found["curves"][RANDOM], _BY_ADAPTOR: found["curves"][LEARNED]}
    return {**curves, **{f"adaptor, by {name}": values for name, values in found["objectives"].items()}}


def _ablation(axes: Any, curves: Mapping[str, Sequence[float]], across: Sequence[float], label: str) -> None:
    others = itertools.count(_OTHERS)
    for name, values in curves.items():
        _line(axes, _ALWAYS[name] if name in _ALWAYS else next(others), across, values, name)
    _name(axes, label)


def _oracle(axes: Any, found: Json) -> None:
    oracle = found["oracle"]
    at = (100 * oracle["skipped"], oracle["constant"])
    axes.plot(*at, "*", color=INK, markersize=13, linestyle="none", zorder=4, label="oracle mask")


def _vanilla(axes: Any, values: Sequence[float], label: str) -> None:
    for value in values:
        axes.axhline(value, color=MUTED, linewidth=1, linestyle="--", label=label)


def _sweep(axes: Any, found: Json, what: str, colour: str) -> None:
    points = _finite(found["points"], what)
    across = {_value(found, point): point[what] for point in points}
    values = sorted(across)
    axes.plot(values, [across[value] for value in values], "-o", color=colour)
    whole = [point for point in points if point["value"] is None]
    for point in whole:
        at = (_value(found, point), across[_value(found, point)])
        axes.plot(*at, "*", color=INK, markersize=14, linestyle="none", zorder=4, label="the store as it is")
    if _logarithmic(axes, values, 8, base=2):
        following = zip(values, [*values[1:], math.inf], strict=True)
        axes.set_xticks(values, [f"{value:g}" if then > _APART * value else "" for value, then in following])
        axes.minorticks_off()


def _value(found: Json, point: Json) -> float:
    """Return where a point stands on the axis of its sweep; the store as it is has no value of its own."""
    if found["over"] in ("dim", "k", "nprobe"):
        return float(point[found["over"]] or 1)
    whole = 100.0 if found["over"] == "keep" else 1.0
    return whole if point["value"] is None else whole * float(point["value"])


def _axis(found: Json) -> str:
    name = "records kept, %" if found["over"] == "keep" else _AXES[found["over"]]
    return f"{name} ({METHODS.get(found['method'], found['method'])})" if found["method"] else name


def _methods(found: Json) -> dict[str, list[Json]]:
    known = [*(name for name in METHODS if name in found), *(name for name in found if name not in METHODS)]
    measured = {name: _finite(found[name]["points"], "retrievals_per_second", "perplexity") for name in known}
    return {METHODS.get(name, name): points for name, points in measured.items() if points}


def _features(names: Iterable[str]) -> str:
    return " + ".join(_FEATURES.get(name, name) for name in names)


def _line(axes: Any, number: int, across: Sequence[float], values: Sequence[float], label: str) -> None:
    line, marker = LINES[number % len(LINES)]
    style = {"linestyle": line, "marker": marker, "color": COLOURS[number % len(COLOURS)], "label": label}
    axes.plot(across, values, markeredgecolor=PAPER, markeredgewidth=0.6, **style)


def _plot(axes: Any, points: Sequence[Json], across: str, mark: str, up: str = "perplexity", **style: Any) -> None:
    if points:
        axes.plot([point[across] for point in points], [point[up] for point in points], mark, **style)


def _name(axes: Any, across: str, up: str = _PERPLEXITY) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlabel(across)
    axes.set_title(up)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))


def _logarithmic(axes: Any, values: Sequence[float], span: float, base: int = 10) -> bool:
    if not values or min(values) <= 0 or max(values) / min(values) < span:
        return False
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, StrMethodFormatter

    axes.set_xscale("log", base=base)
    if base == 10:  # 10, 20, 50, 100 …: all of them are labelled, as plain numbers
        axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    return True


def _wrapped(label: str) -> str:
    """Break a long label into lines, after commas only."""
    lines = textwrap.wrap(printable(label).replace(" ", "\xa0").replace(",\xa0", ", "), 20, break_long_words=False)
    return "\n".join(lines).replace("\xa0", " ")


def _percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


def _finite(points: Sequence[Json], *names: str) -> list[Json]:
    """Leave out points that were not measured."""
    return [point for point in points if all(_is_finite(point[name]) for name in names)]


def _is_finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)
