"""What is estimated and chosen from points."""

from dataclasses import replace

import pytest
from pointing import point

from nearlm.base import OptionError
from nearlm.optimizer.points import (
    Choice,
    Goal,
    HeldOutTokens,
    Shape,
    Skipping,
    cheapest,
    compare_costs,
    estimates,
    explain,
    is_preferred,
    tokens_to_settle,
)


def test_estimates_add_perplexities_and_multiply_times():
    whole = [point(10.0, 100.0), point(10.1, 60.0, nprobe=4), point(10.5, 30.0, k=128)]
    base = Shape(1.0, 16)
    alone = {base: whole[0], Shape(1.0, 8): point(10.2, 50.0, dim=8), Shape(0.6, 16): point(10.3, 80.0, keep=0.6)}
    found = {(shape, search): (time, ppl) for time, ppl, shape, search in estimates(whole, alone, base)}
    assert len(found) == 2 * 2 * 3
    assert found[Shape(0.6, 8), whole[1]] == pytest.approx((60 * 0.5 * 0.8, 10.1 + 0.2 + 0.3))
    assert found[base, whole[0]] == pytest.approx((100, 10))
    times = [one[0] for one in estimates(whole, alone, base)]
    assert times == sorted(times)


def test_the_fastest_within_the_target_is_chosen():
    points = [point(10.0, 100.0), point(10.1, 60.0), point(10.5, 30.0)]
    assert cheapest(points, Goal(10.2)) is points[1]
    assert cheapest(points, Goal(10.1)) is points[1]
    assert cheapest(points, Goal(11)) is points[2]
    assert cheapest(points, Goal(9)) is points[0]


def test_without_a_gate_the_perplexity_must_be_surely_within_the_target():
    goal = Goal(10.1)
    assert goal.price(10.05, 30.0, 0.04) == 30.0 and goal.price(10.05, 30.0, 0.06) == float("inf")
    unsure, safe = replace(point(10.05, 30.0), margin=0.06), replace(point(10.0, 50.0), margin=0.06)
    assert cheapest([unsure, safe], goal) is safe and cheapest([unsure], goal) is unsure


def test_a_gate_may_buy_a_worse_search_or_skip():
    ratios = [0.95 + 0.002 * percent for percent in range(101)]  # as good as one λ when 25 % are skipped
    goal = Goal(10.15, Skipping(ratios, 0.05, 5.0))
    assert goal.price(10.0, 100.0) == pytest.approx(5 + 0.70 * 100)  # 10.0 x 1.01
    assert goal.price(10.5, 60.0) == pytest.approx(5 + 0.95 * 60)  # 10.5 x 0.96 = 10.08
    assert goal.price(10.5, 4.0) == pytest.approx(5 + 0.95 * 4)
    assert goal.price(10.0, 4.0) == 4.0 and goal.price(10.14, 4.0) == 4.0  # the gate takes longer than the search
    assert goal.price(11.0, 1.0) == float("inf")
    points = [point(10.0, 100.0), point(10.5, 60.0), point(11.0, 1.0)]
    assert cheapest(points, goal) is points[1] and cheapest(points, goal.alone) is points[0]


def test_one_with_a_gate_is_preferred_if_it_is_faster_or_alone_within_the_budget():
    gated, plain = replace(point(10.0, 50.0), sure=True), point(10.0, 60.0)
    assert is_preferred(gated, plain, 10.1) and not is_preferred(gated, point(10.0, 40.0), 10.1)
    assert is_preferred(gated, replace(point(10.0, 40.0), margin=0.2), 10.1)
    assert is_preferred(gated, point(10.2, 40.0), 10.1) and not is_preferred(replace(gated, sure=False), plain, 10.1)


@pytest.mark.parametrize(
    "change",
    [{"keep": 0.0}, {"keep": 2.0}, {"perplexity": -1.0}, {"perplexity": float("nan")}, {"microseconds": 0.0}],
)
def test_a_memory_that_nobody_can_have_measured_is_refused(change):
    with pytest.raises(OptionError, match="expected more than 0"):
        replace(point(9.0, 5.0), **change)
    with pytest.raises(OptionError, match="`records` is -1, expected at least 0"):
        replace(point(9.0, 5.0).setup, records=-1)
    with pytest.raises(OptionError, match="1 ratios, expected one for each of 101 shares"):
        Skipping([1.0], 0.0, 1.0)


def test_a_memory_that_is_slower_or_larger_than_vanilla_is_never_called_less():
    vanilla, fast = point(10.0, 100.0), point(10.0, 25.0)
    assert "25.0 µs per token, 4.0 times less than the vanilla kNN-LM's 100.0" in compare_costs(fast, vanilla)
    assert "MORE" not in compare_costs(fast, vanilla)
    large = replace(vanilla.setup, store_bytes=2 * vanilla.setup.store_bytes)
    slow = replace(point(10.0, 220.0), setup=large)
    assert "2.2 times MORE than" in compare_costs(slow, vanilla) and "which is MORE" in compare_costs(slow, vanilla)
    held_out = HeldOutTokens(9, 10.0, 10.0, 20.0)
    assert compare_costs(slow, vanilla) in explain(vanilla, slow, 0.1, held_out, 1000)


def test_what_would_settle_a_difference_falls_with_the_square_of_how_sure_it_is():
    assert tokens_to_settle(1000, 1.0) == " About 3,000 more validation tokens would settle it."
    assert tokens_to_settle(1000, 2.0) == tokens_to_settle(1000, 0.0) == tokens_to_settle(1000, -1.0) == ""
    unsure = replace(point(10.05, 30.0), beyond=0.05, margin=0.1)
    said = explain(point(10.0, 100.0), unsure, 0.1, HeldOutTokens(9, 10.0, 10.0, 20.0), 1000)
    assert "+0.050 ± 0.100. About 3,000 more validation tokens would settle it." in said
    worse = replace(unsure, beyond=0.2)
    assert "settle" not in explain(point(10.0, 100.0), worse, 0.1, HeldOutTokens(9, 10.0, 10.0, 20.0), 1000)


def test_the_table_shows_how_sure_each_difference_is():
    shown = replace(point(10.05, 30.0), beyond=0.05, margin=0.1, chosen=True)
    assert "+0.050 ± 0.100" in Choice(1000, 20.0, point(10.0, 100.0), [shown], "why").table()


def test_the_vanilla_memory_can_be_the_winner():
    vanilla = replace(point(10.0, 100.0), label="vanilla", chosen=True)
    choice = Choice(1000, 20.0, vanilla, [point(11.0, 30.0)], "why")
    assert choice.winner is vanilla and "→ vanilla" in choice.table()
