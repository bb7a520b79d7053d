"""The figures: each takes a part of the results and draws what it says."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nearlm.optimizer import Choice
from nearlm.paper.mixture_ablation import MixtureAblation, MixtureRow
from nearlm.paper.report.axes import STAR, bars, label_decades, level, line, logarithmic, name_axes, plot
from nearlm.paper.report.formatting import displayable
from nearlm.paper.report.labels import Label, label_points
from nearlm.paper.report.plotting import COLOURS, GRID, MUTED, figure, save
from nearlm.paper.results import (
    ALL,
    LEARNED,
    MASK,
    NLM,
    RANDOM,
    VANILLA,
    WITHIN,
    Ablation,
    MainTable,
    Row,
    Sweep,
    SweepPoint,
)

_METHODS = {"merge": "greedy merging", "random": "random", "kmeans": "k-means", "rank": "rank"}
_SKIPPED = "retrievals skipped, %"
_SPEED_OF_PARTS = "tokens/s, from the times of the parts"
_AT_RANDOM = "at random"
_BY_GATE = "as the gate says"
_NAME_WIDTH = 20  # letters of a bar's name in a line
_BEST = (ALL, WITHIN)
_STYLES = {LEARNED: 0, _BY_GATE: 0, RANDOM: 1, _AT_RANDOM: 1, MASK: 2, "random mask, learned λ": 3}
_OTHERS = 4  # the first line style of curves that are in none of these
_APART = 1.2  # as a ratio: numbers on an axis that is logarithmic
_AXES = {
    "keep": "records kept, %",
    "dim": "width of the keys",
    "k": "neighbours per token, k",
    "nprobe": "lists probed",
    "neighbors": "K",
}

AnyPoint = TypeVar("AnyPoint")


@figure()
def intro(main: MainTable, axes: Any) -> None:
    """Draw the paper's first figure: perplexity against speed, the two baselines in circles."""
    _scatter(axes, _finite(main.rows, "tokens_per_second", "perplexity"))


@figure()
def closer(main: MainTable, axes: Any) -> None:
    """Draw the rows with a memory alone, where the LM's perplexity does not squeeze them."""
    rows = _finite(main.rows, "tokens_per_second", "perplexity")
    for row in rows:
        if row.name == NLM:
            speed = row.tokens_per_second
            axes.axvline(speed, color=MUTED, linewidth=1, linestyle=":", label="speed of the LM alone")
        elif row.name == VANILLA:
            level(axes, row.perplexity, "the vanilla kNN-LM")
    _scatter(axes, [row for row in rows if row.name != NLM])


@figure()
def choice(found: Choice, axes: Any) -> None:
    """Draw every combination that was tried, those that nothing beats, and the one that was taken.

    Perplexities are differences from the vanilla kNN-LM on the same tokens: a gate has fewer to be judged on.
    """
    points = sorted(_finite(found.points, "microseconds", "beyond"), key=lambda point: point.microseconds)
    front = [point for point in points if point.pareto]
    rest = [point for point in points if not point.pareto]
    taken = [point for point in points if point.chosen]
    across = "microseconds"
    plot(axes, rest, across, "o", "beyond", color=MUTED, alpha=0.45, markersize=4, label="tried")
    plot(axes, front, across, "-o", "beyond", color=COLOURS[0], markersize=5, label="nothing beats these")
    plot(axes, taken, across, "*", "beyond", color=COLOURS[1], markersize=15, zorder=4, label="chosen")
    if found.budget is not None:
        level(axes, found.budget, f"allowed: {found.budget:+g}")
    if found.limit is not None:
        axes.axvline(found.limit, color=MUTED, linewidth=1, linestyle="--", label=f"allowed: {found.limit:.1f} µs")
    if logarithmic(axes, [point.microseconds for point in points], 10):
        label_decades(axes)
    axes.margins(0.08, 0.1)
    name_axes(axes, "retrieval time per token, µs", "perplexity beyond the vanilla kNN-LM's")
    axes.legend()
    label_points(axes, [Label(point.microseconds, point.beyond, _wrap(point.label), bold=True) for point in taken])


@figure()
def adaptive(found: Ablation, axes: Any) -> None:
    """Draw perplexity against the share of retrievals left out: at random, and as the gate says."""
    curves = {_AT_RANDOM: found.curves[RANDOM], _BY_GATE: found.curves[LEARNED]}
    curves |= {f"gate, by {name}": values for name, values in found.objectives.items()}
    _curves(axes, curves, _percent(found.shares), _SKIPPED)
    _oracle(axes, found)
    level(axes, found.vanilla_perplexity, "always retrieving")
    axes.legend(loc="upper left")


@figure()
def adaptive_speed(found: Ablation, axes: Any) -> None:
    """Draw the same perplexities against the speed that they go with."""
    speeds = found.speed.tokens_per_second
    values = found.curves[LEARNED]
    _curves(axes, {LEARNED: values}, speeds, _SPEED_OF_PARTS)
    level(axes, found.vanilla_perplexity, "always retrieving")
    axes.margins(0.08, 0.12)
    axes.legend(loc="upper left")
    points = zip(speeds, values, found.shares, strict=True)
    label_points(axes, [Label(x, y, f"{share:.0%}") for x, y, share in points if round(100 * share) % 20 == 0])


@figure()
def masks(found: Ablation, axes: Any) -> None:
    """Draw {random, learned} masks × {constant, learned} λ."""
    _curves(axes, found.curves, _percent(found.shares), _SKIPPED)
    axes.legend(loc="upper left")


@figure()
def features(found: Ablation, axes: Any) -> None:
    """Draw the perplexity at half the retrievals, for every set of features that was tried."""
    half = min(range(len(found.shares)), key=lambda number: abs(found.shares[number] - 0.5))
    rows = found.features[::-1]
    values = [row.perplexity[half] for row in rows]
    names = [" + ".join("f(c)" if name == "keys" else name for name in row.features) for row in rows]
    axes.axvline(found.vanilla_perplexity, color=MUTED, linewidth=1, linestyle="--", label="always retrieving")
    axes.hlines(range(len(rows)), min([*values, found.vanilla_perplexity]), values, color=GRID, linewidth=3)
    axes.plot(values, range(len(rows)), "o", color=COLOURS[0], markersize=8)
    for number, value in enumerate(values):
        axes.annotate(f"{value:.2f}", (value, number), (0, 7), textcoords="offset points", ha="center", fontsize=9.5)
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(-0.6, len(rows) - 0.2)
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("perplexity, half the retrievals skipped")
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc=(0, 1))


@figure()
def mixture_sources(found: MixtureAblation, axes: Any) -> None:
    """Draw how much worse the mixture is without each source."""
    _worse(axes, found, found.without_source)


@figure()
def mixture_features(found: MixtureAblation, axes: Any) -> None:
    """Draw how much worse the mixture is without each group of features."""
    _worse(axes, found, {row.name: row for row in found.features})


@figure()
def pruning(found: dict[str, Sweep], axes: Any) -> None:
    """Draw perplexity against the share of the records that each method keeps."""
    for number, (name, points) in enumerate(_methods(found).items()):
        whole = points[-1].setup.records
        shares = [100 * point.setup.records / whole for point in points]
        line(axes, number, shares, [point.perplexity for point in points], name)
    name_axes(axes, _AXES["keep"])
    axes.legend()


@figure()
def pruning_speed(found: dict[str, Sweep], axes: Any) -> None:
    """Draw perplexity against the speed of searches in what each method leaves."""
    methods = _methods(found)
    for number, (name, points) in enumerate(methods.items()):
        speeds = [point.searches_per_second for point in points]
        line(axes, number, speeds, [point.perplexity for point in points], name)
    wholes = [points[-1] for points in methods.values()]
    plot(axes, wholes[:1], "searches_per_second", "*", label="all records", **STAR)
    name_axes(axes, "searches/s")
    axes.legend()


@figure()
def sweep_perplexity(found: Sweep, axes: Any) -> None:
    """Draw perplexity against what was varied; the store as it is has a star."""
    _sweep(axes, found, "perplexity", COLOURS[0])
    name_axes(axes, _axis(found))
    axes.legend()


@figure()
def sweep_speed(found: Sweep, axes: Any) -> None:
    """Draw searches per second against what was varied."""
    _sweep(axes, found, "searches_per_second", COLOURS[1])
    name_axes(axes, _axis(found), "searches/s (more is better)")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
    axes.legend(loc="lower left")


def method_name(name: str) -> str:
    """Return what a method of pruning is called."""
    return _METHODS.get(name, name)


def ablation_figure(found: Ablation, path: Path) -> None:
    """Draw an ablation into a file: perplexities against the share skipped and against tokens/s."""
    save(_ablation_panels(found), path)


def sweep_figure(found: Sweep, path: Path) -> None:
    """Draw a sweep into a file: perplexity against what was varied, and against searches/s with the Pareto front."""
    save(_sweep_panels(found), path)


@figure(panels=2)
def _ablation_panels(found: Ablation, left: Any, right: Any) -> None:
    _curves(left, found.all_curves, _percent(found.shares), _SKIPPED)
    _curves(right, found.all_curves, found.speed.tokens_per_second, _SPEED_OF_PARTS)
    _oracle(left, found)
    for axes in (left, right):
        level(axes, found.vanilla_perplexity, f"λ={found.lam:g}, nothing skipped")
    left.legend(loc="upper left")


@figure(panels=2)
def _sweep_panels(found: Sweep, left: Any, right: Any) -> None:
    across = "searches_per_second"
    _sweep(left, found, "perplexity", COLOURS[0])
    name_axes(left, _axis(found))
    left.legend()
    points = sorted(_finite(found.points, across, "perplexity"), key=lambda point: point.searches_per_second)
    varied = [point for point in points if point.value is not None]
    plot(right, [point for point in points if point.pareto], across, "--", color=COLOURS[1], label="Pareto front")
    plot(right, varied, across, "o", color=COLOURS[0])
    plot(right, [point for point in points if point.value is None], across, "*", label="as it is", **STAR)
    name_axes(right, "searches/s")
    right.margins(0.1)
    right.legend()
    label_points(right, [Label(point.searches_per_second, point.perplexity, f"{point.value:g}") for point in varied])


def _scatter(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        at = (row.tokens_per_second, row.perplexity)
        if row.name in (NLM, VANILLA):
            axes.plot(*at, "o", color=MUTED, markersize=7, zorder=4)
            axes.plot(*at, "o", color=MUTED, markersize=15, fillstyle="none", zorder=3)
        elif row.name in _BEST:
            axes.plot(*at, "*", color=COLOURS[1], markersize=15, zorder=4)
        else:
            axes.plot(*at, "o", color=COLOURS[0], markersize=7, zorder=4)
    axes.margins(0.13, 0.16)
    name_axes(axes, "tokens per second (more is better)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    important = sorted(rows, key=lambda row: (row.name not in _BEST, row.tokens_per_second))
    label_points(axes, [Label(row.tokens_per_second, row.perplexity, row.name, row.name in _BEST) for row in important])


def _curves(axes: Any, curves: Mapping[str, Sequence[float]], across: Sequence[float], label: str) -> None:
    others = itertools.count(_OTHERS)
    for name, values in curves.items():
        number = _STYLES[name] if name in _STYLES else next(others)
        line(axes, number, across, values, name)
    name_axes(axes, label)


def _worse(axes: Any, found: MixtureAblation, rows: Mapping[str, MixtureRow]) -> None:
    """Draw how much worse than the whole mixture some are; half of the seeds' range to both sides."""
    ordered = sorted(rows.items(), key=lambda one: found.worse(one[1]))
    values = {textwrap.fill(name, _NAME_WIDTH): 100 * found.worse(row) for name, row in ordered}
    errors = [50 * row.spread / found.whole.perplexity.test for _, row in ordered]
    labels = [f"{value:+.{1 if value >= 1 else 2}f} %" for value in values.values()]
    bars(axes, values, errors, labels)
    axes.margins(x=0.2)
    axes.set_xlabel("perplexity without it, % more")


def _sweep(axes: Any, found: Sweep, what: str, colour: str) -> None:
    points = _finite(found.points, what)
    across = {_position(found, point): getattr(point, what) for point in points}
    positions = sorted(across)
    axes.plot(positions, [across[position] for position in positions], "-o", color=colour)
    for point in points:
        if point.value is None:
            position = _position(found, point)
            axes.plot(position, across[position], "*", label="the store as it is", **STAR)
    if logarithmic(axes, positions, 8, base=2):
        following = zip(positions, [*positions[1:], math.inf], strict=True)
        axes.set_xticks(positions, [f"{value:g}" if then > _APART * value else "" for value, then in following])
        axes.minorticks_off()


def _position(found: Sweep, point: SweepPoint) -> float:
    """Return where a point stands on the axis of its sweep; the store as it is has no value of its own."""
    settings = {"dim": point.setup.dim, "k": point.setup.search.k, "nprobe": point.setup.search.nprobe}
    if found.over in settings:
        return float(settings[found.over] or 1)
    whole = 100.0 if found.over == "keep" else 1.0
    return whole if point.value is None else whole * point.value


def _axis(found: Sweep) -> str:
    name = _AXES[found.over]
    return f"{name} ({method_name(found.method)})" if found.method else name


def _methods(found: dict[str, Sweep]) -> dict[str, list[SweepPoint]]:
    """Return the points of each method, those that keep least first; known methods come first."""
    methods = {}
    for name in dict.fromkeys([*_METHODS, *found]):
        points = _finite(found[name].points, "searches_per_second", "perplexity") if name in found else []
        if points:
            methods[method_name(name)] = sorted(points, key=lambda point: point.setup.records)
    return methods


def _oracle(axes: Any, found: Ablation) -> None:
    axes.plot(100 * found.oracle.skipped, found.oracle.constant, "*", label="oracle mask", **{**STAR, "markersize": 13})


def _wrap(label: str) -> str:
    """Break a long label into lines, after commas only."""
    lines = textwrap.wrap(displayable(label).replace(" ", "\xa0").replace(",\xa0", ", "), 20, break_long_words=False)
    return "\n".join(lines).replace("\xa0", " ")


def _percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


def _finite(points: Sequence[AnyPoint], *names: str) -> list[AnyPoint]:
    """Leave out points that were not measured."""
    return [point for point in points if all(math.isfinite(getattr(point, name)) for name in names)]
