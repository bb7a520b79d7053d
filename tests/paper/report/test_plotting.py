"""How every figure looks, and what its files hold."""

import re
import sys

import pytest

import measured
from nearlm.base import MissingExtraError, OptionError
from nearlm.paper import report
from nearlm.paper.report import figures, plotting


def test_colours_and_lines_are_told_apart():
    assert len(set(plotting.COLOURS)) == len(plotting.COLOURS) == len(set(plotting.LINES))


def test_a_figure_is_refused_before_the_work(tmp_path):
    with pytest.raises(OptionError, match=r"'plot\.bmp', expected a name that ends in \.png"):
        report.check_figure(tmp_path / "plot.bmp")
    with pytest.raises(OptionError, match="is no folder"):
        report.check_figure(tmp_path / "none" / "plot.png")
    report.check_figure(tmp_path / "plot.PNG")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"a figure .*nearlm\[report\]"):
        report.check_figure(tmp_path / "plot.png")
    with pytest.raises(MissingExtraError, match=r"a figure .*nearlm\[report\]"):
        figures.masks(measured.ablation())


def test_the_users_own_style_changes_nothing(tmp_path):
    import matplotlib

    report.save(figures.masks(measured.ablation()), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": "other"}):
        report.save(figures.masks(measured.ablation()), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_legend_stands_where_it_stood_at_any_resolution():
    figure = figures.choice(measured.choice())
    places = []
    for dpi in (72, 100, 160):
        figure.set_dpi(dpi)
        figure.canvas.draw()
        extent = figure.axes[0].get_legend().get_window_extent(figure.canvas.get_renderer())
        places.append(figure.transFigure.inverted().transform(extent.min))
    assert all(place == pytest.approx(places[0], abs=0.01) for place in places)


def test_a_figure_in_a_page_has_its_own_ids_and_the_pages_colours(tmp_path):
    report.save(figures.masks(measured.ablation()), tmp_path / "a.svg")
    body = plotting.inline((tmp_path / "a.svg").read_text(), "mine")
    assert body.startswith("viewBox=") and body.endswith("</svg>") and "xmlns" not in body and "<metadata" not in body
    assert all(name.startswith("mine-") for name in re.findall(r'\bid="([^"]+)"', body))
    assert set(re.findall(r'(?:href="|url\()#([\w-]+)', body)) <= set(re.findall(r'\bid="([^"]+)"', body))
    assert f"var(--figure-0, {plotting.COLOURS[0]})" in body
