"""The main table: speeds that can be compared."""

import pytest

from nearlm.paper.main_table import compare
from nearlm.paper.results import ALL, NLM, VANILLA


def test_speeds_are_compared_within_a_round():
    rounds = {NLM: [100.0, 200.0, 400.0], VANILLA: [50.0, 120.0, 200.0], ALL: [90.0, 170.0, 380.0]}
    assert compare(rounds) == pytest.approx({NLM: 200.0, VANILLA: 100.0, ALL: 180.0})
