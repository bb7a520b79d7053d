"""Axes have plain numbers that do not touch."""

from dataclasses import replace

import measured
from nearlm.paper.report import figures


def test_numbers_on_an_axis_do_not_touch():
    points = [measured.point(dim, 9.2, 100.0, dim=dim) for dim in (32, 256, 512)]
    points.append(measured.point(None, 9.1, 90.0))  # the store as it is, of 576
    figure = figures.sweep_perplexity(measured.sweep("dim", points))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["32", "256", "", "576"]


def test_a_wide_range_of_times_has_plain_numbers():
    found = measured.choice()
    ends = [replace(found.points[0], microseconds=3.0), replace(found.points[1], microseconds=900.0)]
    axes = figures.choice(replace(found, points=[*ends, *found.points[2:]])).axes[0]
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels(which="both") if low <= label.get_position()[0] <= high]
    assert axes.get_xscale() == "log" and {"5", "10", "20", "100", "500"} <= set(shown)
    assert all(text.replace(",", "").isdigit() for text in shown if text)
