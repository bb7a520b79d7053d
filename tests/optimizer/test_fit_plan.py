"""How much a fit does: shares of small texts, limits of large ones, and what time allows."""

import pytest

from nearlm.optimizer import fit_plan
from nearlm.optimizer.fit_plan import TEST_TOKENS, VALID_TOKENS, WAYS, Speed, choose_ways, forecast, plan_amounts
from nearlm.text import TextSource
from tiny import make_text

SPEED = Speed(0.002, 4.0)


def test_without_a_limit_all_is_stored_but_what_is_held_out():
    small = plan_amounts(SPEED, 40_000, None, None)
    assert (small.tokens, small.store, small.valid, small.test) == (10_000, None, 1000, 1000)
    large = plan_amounts(SPEED, 40_000_000, None, None)
    assert (large.store, large.valid, large.test, large.ways) == (None, VALID_TOKENS, TEST_TOKENS, WAYS[0])
    few = plan_amounts(SPEED, 40_000_000, None, 8000)
    assert few.store == 8000 and few.valid == few.test == 1000


@pytest.mark.parametrize("minutes", [2, 6, 30])
def test_what_is_planned_fits_into_the_time(minutes):
    seconds = 60 * minutes
    plan = plan_amounts(SPEED, 40_000_000, seconds, None)
    takes = (plan.store + plan.test) * SPEED.seconds + fit_plan.tuning_seconds(plan.valid, SPEED)
    takes += fit_plan.mixing_seconds(plan.valid, plan.ways)
    assert 0.6 * seconds < takes < seconds and plan.valid + plan.test < plan.store / 3
    assert plan.store > plan_amounts(SPEED, 40_000_000, seconds / 2, None).store


def test_a_shorter_time_tries_fewer_ways_and_the_least_is_still_done():
    assert choose_ways(20_000, 1e9) == WAYS[0] and choose_ways(20_000, 0.0) == WAYS[-1]
    assert WAYS[0].count > WAYS[1].count > WAYS[2].count
    least = plan_amounts(SPEED, 40_000_000, 1.0, None)
    assert least.store == least.valid == least.test == 1000 and least.ways == WAYS[-1]


def test_the_speed_is_measured_on_the_text(lm):
    corpus = TextSource.from_strings(make_text(200), make_text(50, seed=1)).open()
    speed = fit_plan.measure_speed(lm, corpus, 64)
    text = make_text(200) + make_text(50, seed=1)
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert 0 < speed.seconds < 1 and speed.characters == pytest.approx(len(text) / len(ids), rel=0.05)
    assert "500 tokens/s" in forecast(SPEED, 1000, (100, 100), WAYS[0], 32, 1 << 20)
