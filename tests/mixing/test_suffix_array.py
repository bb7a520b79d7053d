"""The order of contexts against sorting them as tuples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing import suffix_array
from nearlm.mixing.suffix_array import MAX_LENGTH, context_depths, position_dtype, sort_contexts, sorting_bytes


def contexts(stream, bounds):
    """Every context that a token of its document follows, backwards, by the position that it ends at."""
    return {
        place: tuple(stream[max(begin, place + 1 - MAX_LENGTH) : place + 1][::-1])
        for begin, end in itertools.pairwise(bounds)
        for place in range(begin, end - 1)
    }


def sort(documents, dtype="int32", advance=lambda count: None):
    stream = np.array([token for document in documents for token in document], np.int32)
    bounds = np.cumsum([0, *map(len, documents)])
    made = sort_contexts(stream, context_depths(bounds), np.dtype(dtype), advance)
    return made, contexts(stream.tolist(), bounds.tolist())


def check(documents, dtype="int32"):
    advanced = []
    made, expected = sort(documents, dtype, advanced.append)
    assert made.order.dtype == dtype
    assert sorted(made.order.tolist()) == sorted(expected)
    assert [expected[place] for place in made.order.tolist()] == sorted(expected.values())
    last = sorted(context[0] for context in expected.values())
    assert made.starts.tolist() == np.searchsorted(last, np.arange(len(made.starts))).tolist()
    assert made.starts[-1] == len(expected) == sum(advanced)


few = st.integers(0, 1)
many = st.one_of(st.integers(0, 60), st.just(131_000))


@given(st.lists(st.lists(few, max_size=80), max_size=6), st.sampled_from(["int32", "int64"]))
def test_order_of_few_tokens_equals_sorting(documents, dtype):
    check(documents, dtype)


@given(st.lists(st.lists(many, max_size=60), max_size=6))
def test_order_of_many_tokens_equals_sorting(documents):
    check(documents)


@given(st.lists(few, min_size=1, max_size=40), st.integers(1, 20), st.integers(1, 3))
def test_order_of_repeats_equals_sorting(passage, times, copies):
    check([passage * times] * copies)


@pytest.mark.parametrize("length", [MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, 3 * MAX_LENGTH])
@pytest.mark.parametrize("start", [0, 1])
def test_long_contexts_are_told_apart_by_their_last_tokens_alone(length, start):
    check([[1, start] + [1] * length, [1] * (length + 1), [0]])


def test_the_largest_tokens_that_there_can_be():
    check([[(1 << 22) - 1, 0, (1 << 22) - 2, 0, (1 << 22) - 1, 0, 5]])


def test_groups_larger_than_those_sorted_by_insertion():
    rng = np.random.default_rng(0)
    check([(rng.zipf(1.3, 2000) % 50).tolist() for _ in range(3)])


def test_the_order_does_not_depend_on_how_the_work_is_cut(monkeypatch):
    documents = [(np.random.default_rng(seed).zipf(1.4, 500) % 9).tolist() for seed in range(4)]
    expected = sort(documents)[0].order.tobytes()
    for pieces in (1, 7, 5000):
        monkeypatch.setattr(suffix_array, "_PIECES", pieces)
        assert sort(documents)[0].order.tobytes() == expected


def test_depths_begin_anew_with_each_document():
    assert context_depths(np.array([0, 3, 3, 4, 6])).tolist() == [0, 1, 2, 0, 0, 1]
    assert context_depths(np.array([0, 400])).tolist() == [min(place, MAX_LENGTH - 1) for place in range(400)]


def test_positions_and_memory_grow_with_the_text():
    assert [position_dtype(count).name for count in (1, 2**31 - 1, 2**31)] == ["int32", "int32", "int64"]
    assert sorting_bytes(10**8) == 18 * 10**8 and sorting_bytes(2**31) == 26 * 2**31
