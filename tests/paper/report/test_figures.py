"""The figures, from made-up results."""

import math
import re
from dataclasses import replace

import pytest

import measured
from nearlm.paper import report
from nearlm.paper.report import figures
from nearlm.paper.report.page import FIGURES

DRAWINGS = [(part, name) for part, drawn in FIGURES.items() for name in drawn]


def fewest(part):
    """Return a part with as few points as it can have."""
    main = measured.main_table()
    ablation = measured.ablation()
    choice = measured.choice()
    return {
        "main": replace(main, rows=main.rows[:2]),
        "choice": replace(choice, points=[replace(choice.points[0], pareto=True, chosen=True)]),
        "within": replace(measured.within(), points=measured.within().points[:1]),
        "mixture": replace(measured.mixture_ablation(), features=measured.mixture_ablation().features[:1]),
        "adaptive": replace(ablation, features=ablation.features[:1], objectives={}),
        "pruning": {"merge": measured.keep_sweep("merge", ())},
        "pca": measured.dim_sweep(()),
        "k": measured.k_sweep(()),
        "comparison": replace(measured.comparison(), rows=measured.comparison().rows[:1]),
    }[part]


@pytest.mark.parametrize(("part", "name"), DRAWINGS)
def test_figures_are_the_same_bytes_each_time(tmp_path, part, name):
    found = getattr(measured.parts(), part)
    for time in ("first", "again"):
        drawn = FIGURES[part][name](found)
        for kind in ("svg", "png"):
            report.save(drawn, tmp_path / f"{time}.{kind}")
    for kind in ("svg", "png"):
        assert (tmp_path / f"first.{kind}").read_bytes() == (tmp_path / f"again.{kind}").read_bytes()
    svg = (tmp_path / "first.svg").read_text()
    assert "<dc:date>" not in svg and not re.search(r"\b(nan|inf)\b", svg)


@pytest.mark.parametrize(("part", "name"), DRAWINGS)
def test_one_point_is_enough_for_a_figure(tmp_path, part, name, recwarn):
    report.save(FIGURES[part][name](fewest(part)), tmp_path / "one.svg")
    assert not re.search(r"\b(nan|inf)\b", (tmp_path / "one.svg").read_text())
    assert not recwarn.list


def test_points_that_were_not_measured_are_left_out():
    found = measured.k_sweep()
    points = [replace(point, perplexity=math.nan) if point.value == 16 else point for point in found.points]
    (line, *_) = figures.sweep_perplexity(replace(found, points=points)).axes[0].lines
    assert list(line.get_xdata()) == [8, 32, 64, 128, 256, 512, 1024]


def test_a_figure_shows_what_was_measured():
    ablation = measured.ablation()
    line = figures.masks(ablation).axes[0].lines[0]
    assert list(line.get_xdata()) == pytest.approx([100 * share for share in ablation.shares])
    assert [line.get_label(), list(line.get_ydata())] == next(map(list, ablation.curves.items()))
    merge = figures.pruning({"merge": measured.keep_sweep("merge")}).axes[0].lines[0]
    assert list(merge.get_xdata()) == pytest.approx([20, 40, 60, 80, 100], abs=1e-3)
    assert list(merge.get_ydata()) == sorted(merge.get_ydata(), reverse=True)


def test_a_bar_is_as_long_as_a_mixture_is_worse_without_something():
    found = measured.mixture_ablation()
    axes = figures.mixture_sources(found).axes[0]
    lengths = [bar.get_width() for bar in axes.patches]
    assert lengths == pytest.approx([100 * (ppl / 8.01 - 1) for ppl in (8.33, 8.35, 10.24)])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["text so far", "∞-gram", "neighbours"]
    assert [text.get_text() for text in axes.texts] == ["+4.0 %", "+4.2 %", "+27.8 %"]
    assert len(figures.mixture_features(found).axes[0].patches) == 5


def test_what_is_allowed_is_drawn_where_it_is():
    for found, where in ((measured.choice(), 0.1), (measured.within(), 61.9)):
        allowed = [line for line in figures.choice(found).axes[0].lines if line.get_label().startswith("allowed")]
        (line,) = allowed
        assert where in (line.get_xdata()[0], line.get_ydata()[0])


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_command_line_draws_any_kind(tmp_path, kind):
    report.sweep_figure(measured.dim_sweep(), tmp_path / f"s.{kind}")
    assert (tmp_path / f"s.{kind}").stat().st_size > 5_000


def test_an_ablation_is_drawn_with_and_without_variants(tmp_path):
    found = measured.ablation()
    report.ablation_figure(found, tmp_path / "a.svg")
    report.ablation_figure(replace(found, objectives={}, features=[]), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_text() != (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        (measured.dim_sweep(), "width of the keys"),
        (measured.keep_sweep("kmeans"), "records kept, % (k-means)"),
        (
            measured.sweep("neighbors", [measured.point(None, 9.1, 90.0), measured.point(4, 9.2, 95.0)], "new"),
            "K (new)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_axis_says_what_was_varied(sweep, expected):
    assert figures.sweep_perplexity(sweep).axes[0].get_xlabel() == expected


@pytest.mark.parametrize(("over", "expected"), [("keep", 100.0), ("dim", 576.0), ("nprobe", 24.0), ("neighbors", 1.0)])
def test_the_store_as_it_is_has_a_star_at_its_own_value(over, expected):
    star = figures.sweep_perplexity(measured.sweep(over, [measured.point(None, 9.1, 90.0)])).axes[0].lines[-1]
    assert (star.get_marker(), star.get_xdata()[0]) == ("*", expected)
