"""The law of growth."""

import pytest

from nearlm.cluster.law import MEASURED, Law, Row

LINES = Law((Row(1 << 20, 10.0, 40.0, 100.0), Row(1 << 22, 31.0, 50.0, 120.0)))


def test_times_lie_on_lines_through_what_was_measured():
    assert LINES.microseconds(1 << 20) == pytest.approx(40)
    assert LINES.microseconds(1 << 26) == pytest.approx(70)
    assert LINES.microseconds(1 << 24, alone=True) == pytest.approx(140)
    assert LINES.microseconds(1000) == 40  # no less than was ever seen
    assert LINES.index_seconds(1 << 21) == pytest.approx(17)
    assert LINES.range == (1 << 20, 1 << 22)
    assert LINES.is_measured(1 << 21) and not LINES.is_measured(1 << 23)


def test_one_time_is_enough_for_a_proportion():
    once = Law((Row(1000, 2.0, 40.0, 100.0), Row(2000, None, 50.0, 120.0)))
    assert once.index_seconds(5000) == 10


def test_a_larger_index_is_never_faster():
    falling = Law((Row(1 << 20, 10.0, 50.0, 100.0), Row(1 << 22, 31.0, 40.0, 90.0)))
    assert falling.microseconds(1 << 30) == falling.microseconds(1 << 20) == 45


def test_what_was_measured_makes_sense():
    sizes = [row.records for row in MEASURED]
    assert sizes == sorted(set(sizes))
    assert all(0 < row.batch < row.alone and (row.seconds or 1) > 0 for row in MEASURED)
    assert any(row.seconds for row in MEASURED)
