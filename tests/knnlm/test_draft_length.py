"""How long a draft pays, against every length tried; what is learned from chains that were right or wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.knnlm.draft_length import Acceptance, Pace
from nearlm.knnlm.draft_votes import Chain, no_chain

RATES = st.lists(st.floats(0.01, 0.99), max_size=8)


def chain_of(tokens, alike=4, share=1.0):
    return Chain(
        np.array(tokens, np.int32), np.arange(alike, alike + len(tokens), dtype=np.int32), np.full(len(tokens), share)
    )


@given(RATES, st.floats(0.0, 2.0), st.floats(0.0, 0.5))
def test_the_best_length_adds_most_to_what_the_same_time_gives_otherwise(rates, first, more):
    seconds = np.array([1.0, *(1 + first + more * step for step in range(8))])
    pace = Pace(seconds)
    for drafted, written in ((0, 1), (3, 4), (2, 1)):
        pace.count(drafted + 1, written)
    usual = pace._tokens / pace._spent
    worth = []
    for length in range(len(rates) + 1):
        expected = 1 + sum(np.prod(rates[: step + 1]) for step in range(length))
        worth.append(expected - usual * seconds[length])
    assert worth[pace.best_length([np.array(rates)])] == pytest.approx(max(worth))


def test_drafts_are_long_where_passes_cost_the_same_and_none_where_tokens_cost_as_much_as_passes():
    rates = np.full(16, 0.5)
    assert Pace(np.ones(17)).best_length([rates]) == 16
    assert Pace(np.arange(1, 18.0)).best_length([rates]) == 0
    assert Pace(np.ones(5)).best_length([rates]) == 4, "no longer than costs are known"
    assert Pace(np.ones(17)).best_length([np.empty(0)]) == 0


@given(st.lists(RATES, min_size=1, max_size=4), st.floats(0.0, 0.5))
def test_rows_are_drafted_for_as_far_as_all_of_them_gain_together(rates, more):
    """Every row has the same columns in a pass, and the pass takes what all of their tokens take."""
    rows = len(rates)
    seconds = 1 + more * np.arange(20)
    pace = Pace(seconds, rows)
    pace.count(2, rows + 1)
    usual = pace._tokens / pace._spent
    worth = []
    for length in range(min(max(map(len, rates)), 20 // rows - 1) + 1):
        expected = sum(1 + sum(np.prod(each[: step + 1]) for step in range(min(length, len(each)))) for each in rates)
        worth.append(expected - usual * seconds[rows * (1 + length) - 1])
    assert worth[pace.best_length([np.array(each) for each in rates])] == pytest.approx(max(worth))


def test_a_batch_larger_than_any_pass_that_was_measured_is_not_drafted_for():
    pace = Pace(np.ones(5), rows=6)
    pace.count(1, 6)
    assert pace.best_length([np.ones(4)] * 6) == 0


def test_rates_follow_what_is_written():
    acceptance = Acceptance()
    chain = chain_of([5, 6, 7], alike=5)
    usual = acceptance.rates(chain)
    assert (usual > 0).all() and (usual < 1).all()
    for _ in range(60):
        acceptance.learn(chain, np.array([5, 9], np.int32))
    learned = acceptance.rates(chain_of([1, 2, 3], alike=5))
    assert learned[0] < usual[0] and learned[2] == usual[2], "5 and 6 alike are one cell, right and wrong by turns"
    assert 0.4 < learned[0] < 0.6
    for _ in range(200):
        acceptance.learn(chain, np.array([5, 6, 7], np.int32))
    assert acceptance.rates(chain)[0] > 0.9 and acceptance.rates(chain)[2] > 0.9


def test_nothing_is_learned_beyond_the_first_wrong_token_or_of_other_cells():
    acceptance = Acceptance()
    acceptance.learn(chain_of([5, 6, 7], alike=1), np.array([4, 6, 7], np.int32))
    assert acceptance.seen.sum() == 1 and acceptance.hits.sum() == 0
    acceptance.learn(chain_of([5, 6, 7], alike=30, share=0.6), np.array([5], np.int32))
    assert acceptance.seen.sum() == 2 and acceptance.hits.sum() == 1
    acceptance.learn(no_chain(), np.array([5], np.int32))
    assert acceptance.seen.sum() == 2
