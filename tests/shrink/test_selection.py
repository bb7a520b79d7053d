"""What a method decides: who stays, who stands for whom, and what each weighs then."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.shrink.selection import Selection, renumber, target


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_survivors_stand_for_themselves_and_others_are_dropped(case):
    records, kept = case[0], np.sort(list(case[1]))
    found = Selection.of_survivors(kept, records, {"a": 1})
    assert found.stands[kept].tolist() == list(range(len(kept))) and found.result == {"a": 1}
    assert (np.delete(found.stands, kept) == -1).all() and len(found.stands) == records
    np.testing.assert_array_equal(renumber(kept, records), found.stands)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_leaders_stay_and_stand_for_those_that_follow_them(groups):
    leaders = np.array([groups.index(group) for group in groups])
    found = Selection.of_leaders(leaders, {})
    assert found.kept.tolist() == sorted(set(leaders.tolist()))
    np.testing.assert_array_equal(found.kept[found.stands], leaders)


def test_weights_add_up_over_what_a_record_stands_for():
    store = SimpleNamespace(weights=np.array([1, 2, 3, 4, 5], np.int32))
    found = Selection.of_leaders(np.array([0, 0, 2, 2, 2]), {}).weights(store)
    assert found.tolist() == [3, 12] and found.dtype == np.int32
    assert Selection.of_survivors(np.array([1, 4]), 5, {}).weights(store).tolist() == [2, 5]


@pytest.mark.parametrize(
    ("keep", "records", "count"), [(1.0, 7, 7), (0.5, 7, 4), (0.5, 6, 3), (0.49, 7, 3), (1e-9, 7, 1), (0.1, 4, 1)]
)
def test_a_share_is_rounded_and_one_record_stays_at_least(keep, records, count):
    assert target(keep, records) == count
