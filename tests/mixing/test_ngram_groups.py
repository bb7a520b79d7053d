"""Groups of n-grams: every position is in one, none is too large, and a group is counted exactly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing.ngram_groups import count_group, plan_groups


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9))
def test_groups_hold_every_position_once_and_are_small(tokens, limit):
    stream = np.array(tokens)
    counts = np.bincount(stream, minlength=4)
    after = np.append(stream[1:], -1)

    def followers(token):
        return np.bincount(after[stream == token] + 1, minlength=5)

    groups = plan_groups(counts, limit, followers)
    inside = [
        np.flatnonzero((stream >= g.first) & (stream < g.end) & (after >= g.low) & (after < g.high)) for g in groups
    ]
    assert sorted(np.concatenate(inside).tolist()) == list(range(len(stream)))
    assert [len(one) for one in inside] == [g.positions for g in groups]
    for group, places in zip(groups, inside, strict=True):
        assert len(places) <= limit or len(set(after[places])) == 1, group


def test_a_vocabulary_of_any_size_does_not_overflow():
    big = 2**31 - 2
    tables = count_group(np.array([[big, 5, big, 5, big], [big, 5, big, 5, 3]], np.int32), np.array([5, 5]))
    assert tables["tokens-4"].tolist() == [5] and tables["counts-4"].tolist() == [2]
    assert tables["fertility-4"].tolist() == [2]
