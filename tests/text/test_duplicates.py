"""Near duplicates against their definition, written with strings and sets."""

import random

import numpy as np
import pytest
from documents import brute_overlap, prose
from hypothesis import given
from hypothesis import strategies as st

from nearlm.text import duplicates
from nearlm.text.duplicates import THRESHOLD, Overlaps, ShingleSets, connect, group, shingles


def mixed_texts(seed: int, count: int = 30) -> list[str]:
    rng = random.Random(seed)
    parts = [prose(i, rng.randrange(3, 40)) for i in range(12)]
    return [", ".join(rng.sample(parts, rng.randrange(1, 6))) for _ in range(count)]


def test_overlap_equals_the_brute_force_oracle():
    texts = mixed_texts(1)
    overlaps = Overlaps([shingles(text) for text in texts])
    found = {(a, b): share for i, a in enumerate(texts) for b, share in zip(texts, overlaps.of(i), strict=True)}
    assert {0 < share < 1 for share in found.values()} == {False, True}
    for (a, b), share in found.items():
        assert share == pytest.approx(brute_overlap(a, b))


def test_shingles_see_neither_case_nor_punctuation_nor_line_breaks():
    one = 'THE SOFTWARE is provided "as is", without\n  warranty -- of any kind.'
    assert np.array_equal(shingles(one), shingles("the software is provided as is without warranty of any kind"))
    assert len(shingles(one)) == 4 and len(shingles("only three words")) == 1 == len(shingles("  "))
    assert not set(shingles("only three words")) & set(shingles("three only words"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_pairs_are_those_of_the_brute_force_oracle(seed):
    texts = list(dict.fromkeys(mixed_texts(seed)))
    sets = ShingleSets()
    for text in texts:
        sets.add(text)
    numbers = range(len(texts))
    near = {(a, b) for a in numbers for b in numbers if a < b and brute_overlap(texts[a], texts[b]) > THRESHOLD}
    assert near and set(sets.near_pairs()) == near
    assert not ShingleSets().near_pairs()


def test_of_a_large_corpus_a_sample_finds_the_same_copies(monkeypatch):
    monkeypatch.setattr(duplicates, "MOST_SHINGLES", 2000)
    sets = ShingleSets()
    for seed in range(20):
        sets.add(prose(seed, 400))
    for seed in range(20):
        sets.add(prose(seed, 400) + " " + prose(100 + seed, 40))
    assert set(sets.near_pairs()) == {(seed, 20 + seed) for seed in range(20)}


def test_a_template_of_very_many_documents_makes_no_near_duplicates(monkeypatch):
    monkeypatch.setattr(duplicates, "TEMPLATE", 5)
    sets = ShingleSets()
    for seed in range(8):
        sets.add(prose(99, 60) + " " + prose(seed, 20))
    assert not sets.near_pairs()


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_what_is_connected_has_one_label(drawn):
    count, pairs = drawn
    near = np.eye(count, dtype=bool)
    for a, b in pairs:
        near[a, b] = near[b, a] = True
    for _ in range(count):
        near = near @ near
    labels = connect(count, pairs)
    assert labels == [int(np.flatnonzero(row)[0]) for row in near]
    assert sorted(number for members in group(labels).values() for number in members) == list(range(count))
