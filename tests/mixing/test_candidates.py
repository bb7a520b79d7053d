"""What sources propose, against dictionaries and the equations."""

from collections import Counter

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing import candidates as module
from nearlm.mixing.candidates import FACTORS, Candidates, from_infinigram, from_neighbors, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.search import Neighbors


def as_dict(found: Candidates, row: int, expert: int = 0) -> dict[int, float]:
    here = slice(found.begins[row], found.begins[row] + found.counts[row])
    pairs = zip(found.tokens[here].tolist(), found.p[here, expert].tolist(), strict=True)
    made = dict(pairs)
    assert len(made) == found.counts[row]  # each token once
    return made


@given(
    st.integers(1, 40).flatmap(
        lambda k: st.tuples(
            st.lists(st.floats(0, 50, width=32), min_size=k, max_size=k),
            st.lists(st.integers(-1, 6), min_size=k, max_size=k),
            st.lists(st.integers(1, 9), min_size=k, max_size=k),
        )
    ),
    st.booleans(),
    st.floats(0.5, 8),
)
def test_neighbours_give_p_knn_at_every_temperature(row, weighted, temperature):
    distances, tokens, weights = row
    near = Neighbors(
        np.array([distances], np.float32),
        np.array([tokens], np.int32),
        np.array([weights], np.int32) if weighted else None,
        np.array([tokens]),
    )
    found = from_neighbors(near, temperature)
    real = [(d, t, w if weighted else 1) for d, t, w in zip(distances, tokens, weights, strict=True) if t >= 0]
    for expert, factor in enumerate(FACTORS):
        mass = Counter()
        for d, t, w in real:
            mass[t] += w * np.exp(-(d - min(one[0] for one in real)) / (factor * temperature))
        expected = {t: m / sum(mass.values()) for t, m in mass.items()}
        assert as_dict(found, 0, expert) == pytest.approx(expected, rel=1e-4, abs=1e-6)
        if real:
            assert found.measures[0, 1 + expert] == pytest.approx(np.log(sum(mass.values())), rel=1e-4, abs=1e-5)
            assert found.measures[0, 0] == pytest.approx(np.log(min(real)[0] / temperature + 1e-6), rel=1e-4, abs=1e-4)
    assert found.counts[0] == len({t for _, t, _ in real})


def test_many_rows_do_not_meet():
    rng = np.random.default_rng(0)
    near = Neighbors(
        rng.uniform(0, 9, (100, 50)).astype(np.float32), rng.integers(0, 2000, (100, 50)).astype(np.int32), None, None
    )
    found = from_neighbors(near, 2.0)
    for row in range(100):
        alone = from_neighbors(Neighbors(near.distances[row : row + 1], near.tokens[row : row + 1], None, None), 2.0)
        assert as_dict(found, row, 2) == as_dict(alone, 0, 2)


class FakeInfiniGram:
    """One suffix that has been looked up."""

    def __init__(self, following):
        self.following = np.array(following, np.int32)

    def look_up(self, tokens, begins, ends):
        from nearlm.mixing.infinigram import Matches

        rows = len(ends)
        begin = np.ones(rows, np.int64)
        return Matches(np.full(rows, 3, np.int32), begin, begin + len(self.following) - 2)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_what_follows_a_suffix(following):
    found = from_infinigram(FakeInfiniGram([9, *following, 9]), Contexts.none(2))
    expected = {token: count / len(following) for token, count in Counter(following).items()}
    assert as_dict(found, 0) == pytest.approx(expected, rel=1e-5)
    assert as_dict(found, 1) == pytest.approx(expected, rel=1e-5)
    assert found.measures[0].tolist() == pytest.approx([3, np.log(len(following))], rel=1e-5)


def test_of_many_occurrences_an_even_sample_is_looked_at():
    following = np.repeat([1, 2], [30_000, 10_000])
    found = from_infinigram(FakeInfiniGram([9, *following, 9]), Contexts.none(1))
    assert as_dict(found, 0) == pytest.approx({1: 0.75, 2: 0.25})
    assert found.measures[0, 1] == pytest.approx(np.log(40_000))


def by_hand(text):
    """What followed the last token before, weighed by 4 to the length of the match."""
    mass, longest, matches = Counter(), 0, 0
    for place in range(max(0, len(text) - 1 - module.READ_BACK), len(text) - 1):
        length = 0
        while (
            length < module.LONGEST_COPY
            and place - length >= max(0, len(text) - 1 - module.READ_BACK)
            and text[place - length] == text[len(text) - 1 - length]
        ):
            length += 1
        if length:
            mass[text[place + 1]] += 4.0**length
            longest, matches = max(longest, length), matches + 1
    total = sum(mass.values())
    return {token: one / total for token, one in mass.items()}, longest, matches


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.integers(0, 5))
def test_what_followed_in_the_text_read_so_far(text, skipped):
    tokens = np.array([7] * skipped + text, np.int32)
    ends = np.arange(skipped, len(tokens) + 1)
    found = from_text(Contexts(tokens, np.full(len(ends), skipped), ends))
    for row, end in enumerate(ends):
        expected, longest, matches = by_hand(text[: end - skipped]) if end > skipped else ({}, 0, 0)
        assert as_dict(found, row) == pytest.approx(expected, rel=1e-4)
        assert found.measures[row].tolist() == pytest.approx([longest, np.log(max(matches, 1))], rel=1e-5)


def test_p_of_tokens_favourites_and_the_whole_vocabulary():
    near = Neighbors(
        np.array([[0, 1, 2, 3], [1, 1, 1, 1]], np.float32),
        np.array([[4, 5, 4, 9], [-1, -1, -1, -1]], np.int32),
        None,
        None,
    )
    found = from_neighbors(near, 1.0)
    mass = np.exp(-np.arange(4.0))
    expected = (mass[0] + mass[2]) / mass.sum()
    assert found.p_of(np.array([4, 4]))[:, 2].tolist() == pytest.approx([expected, 0])
    assert found.p_of(np.array([8, 8])).tolist() == [[0] * 5, [0] * 5]
    assert found.favourites.tolist() == [4, -1] and found.largest[:, 2].tolist() == pytest.approx([expected, 0])
    rows, tokens, mass = found.masses(np.array([1, 3]), np.arange(20.0).reshape(4, 5))
    assert rows.tolist() == [1, 1, 1] and tokens.tolist() == [4, 5, 9]
    p = [found.p_of(np.array([token, 0]))[0] for token in tokens]
    np.testing.assert_allclose(mass, p @ np.arange(5.0, 10.0), rtol=1e-6)


def test_candidates_do_not_depend_on_the_batch_nor_on_threads():
    rng = np.random.default_rng(3)
    text = rng.integers(0, 9, 400).astype(np.int32)
    ends = np.arange(1, 301)
    contexts = Contexts(text, np.maximum(0, ends - 60), ends)
    near = Neighbors(
        rng.uniform(0, 9, (300, 20)).astype(np.float32), rng.integers(-1, 9, (300, 20)).astype(np.int32), None, None
    )
    before = numba.get_num_threads()
    for make in (
        lambda rows: from_text(contexts[rows]),
        lambda rows: from_neighbors(Neighbors(near.distances[rows], near.tokens[rows], None, None), 2.0),
        lambda rows: from_infinigram(FakeInfiniGram([9, *text, 9]), contexts[rows]),
    ):
        together = make(slice(None))
        numba.set_num_threads(1)
        alone = [make(slice(row, row + 1)) for row in range(300)]
        numba.set_num_threads(before)
        for row, one in enumerate(alone):
            assert as_dict(together, row) == as_dict(one, 0)
            assert together.favourites[row] == one.favourites[0] and type(one) is Candidates  # also from numba's cache
            np.testing.assert_array_equal(together.largest[row], one.largest[0])
            np.testing.assert_array_equal(together.measures[row], one.measures[0])
