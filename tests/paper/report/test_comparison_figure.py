"""The figure of the comparison."""

import pytest

from measured import method_row as row
from nearlm.paper.comparison_table import Comparison
from nearlm.paper.report.comparison_figure import comparison

pytest.importorskip("matplotlib")


def test_every_method_is_a_line_over_the_minutes_and_the_lm_a_level():
    rows = [row("LM alone", None, 1.2)]
    rows += [row(name, minutes, 1 / minutes) for name in ("LoRA", "nearlm") for minutes in (2.0, 8.0, 32.0)]
    left, right = comparison(Comparison(rows)).axes
    lines = {line.get_label(): line for line in left.get_lines() if not line.get_label().startswith("_")}
    assert list(lines) == ["LM alone", "LoRA", "nearlm"]
    assert lines["LoRA"].get_xdata().tolist() == [2.0, 8.0, 32.0]
    assert lines["nearlm"].get_ydata().tolist() == [0.5, 0.125, 0.03125]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["2", "8", "32"]
    assert right.get_title(loc="left").startswith("bits per byte on unrelated text")


def test_without_unrelated_text_one_panel_stays_empty():
    found = Comparison([row("LM alone", None, unrelated=None), row("LoRA", 2.0, unrelated=None)])
    assert len(comparison(found).axes[1].get_lines()) == 0
