"""Splits: no near duplicate across parts, nothing reshuffled by more text, families whole."""

import random
from collections import Counter

import numpy as np
from documents import prose
from hypothesis import given, settings
from hypothesis import strategies as st

from nearlm.text.source import TextSource
from nearlm.text.split import ASIDE, TEST, TRAIN, VALID, Split, Survey, passages


def survey(texts: dict[str, str], block=None) -> Survey:
    """Survey texts in memory; the n-th is row n of one source, so names are told apart by it."""
    return Survey.of(TextSource.from_strings(*texts.values()).open(), block)


def documents(seed: int, count: int) -> dict[str, str]:
    """Return documents of which some are versions of others."""
    rng = random.Random(seed)
    made: dict[str, str] = {}
    for number in range(count):
        text = prose(1000 * seed + number, rng.randrange(20, 60))
        if made and rng.random() < 0.4:
            text = rng.choice(list(made.values())) + " " + prose(1000 * seed + number, rng.randrange(1, 12))
        made[f"{number}.txt"] = text
    return made


def wanted(found: Survey) -> dict[str, int]:
    return {VALID: found.characters // 8, TEST: found.characters // 8}


def across(found: Survey, parts: dict[bytes, str]) -> list[tuple[str, str]]:
    """Return the parts of near duplicates that do not belong together."""
    both = [tuple(parts[found.keys[number]] for number in pair) for pair in found.pairs]
    return [pair for pair in both if len({*pair} - {ASIDE}) > 1]


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 25), st.integers(0, 15))
def test_no_near_duplicate_is_in_another_part_and_more_text_moves_nothing(seed, count, more):
    texts = documents(seed, count + more)
    first = survey(dict(list(texts.items())[:count]))
    parts = Split().assign(first, wanted(first))
    assert not across(first, parts) and ASIDE not in parts.values()
    known = Split().adopt(first, parts)
    whole = survey(texts)
    later = known.assign(whole, wanted(whole))
    assert not across(whole, later)
    assert {key: later[key] for key in parts} == parts
    assert known.assign(whole, wanted(whole)) == later


@given(st.integers(0, 10**6))
def test_the_order_of_files_does_not_matter(seed):
    texts = list(documents(seed, 12).items())
    found = survey(dict(texts))
    random.Random(seed).shuffle(texts)
    again = survey(dict(texts))
    assert Split().assign(found, wanted(found)) == Split().assign(again, wanted(again))


def test_about_as_much_as_is_wanted_is_held_out_and_no_document_dominates():
    found = survey({f"{i}": prose(i, 40) for i in range(200)} | {"long": prose(999, 2000)})
    parts = Split().assign(found, {VALID: 20_000, TEST: 10_000})
    sizes = Counter()
    for key, size in zip(found.keys, found.sizes, strict=True):
        sizes[parts[key]] += size
    assert 15_000 <= sizes[VALID] <= 20_000 and 7_500 <= sizes[TEST] <= 10_000
    assert parts[found.keys[-1]] == TRAIN
    assert set(Split().assign(found, {VALID: 0, TEST: 10_000}).values()) == {TRAIN, TEST}
    assert set(Split().assign(found, {VALID: 0, TEST: 0}).values()) == {TRAIN}


def test_ten_short_files_give_one_to_each_part_and_two_files_none():
    found = survey({f"{i}": prose(i, 40) for i in range(10)})
    assert Counter(Split().assign(found, wanted(found)).values()) == {TRAIN: 8, VALID: 1, TEST: 1}
    two = survey({f"{i}": prose(i, 40) for i in range(2)})
    assert set(Split().assign(two, wanted(two)).values()) == {TRAIN}


def test_a_new_version_follows_its_file_and_a_bridge_is_set_aside():
    old = survey({"a": prose(1, 50), "b": prose(2, 50), "c": prose(3, 50)})
    a, b, c = old.keys
    known = Split().adopt(old, {a: TRAIN, b: TEST, c: VALID})
    edited = survey({"a": prose(11, 50), "b": prose(12, 50), "c": prose(13, 50)})  # the same rows, other text
    assert [known.assign(edited, wanted(edited))[key] for key in edited.keys] == [TRAIN, TEST, VALID]
    texts = [prose(1, 50), prose(2, 50), prose(3, 50), prose(1, 50) + " " + prose(2, 50), prose(2, 50) + " more of it"]
    whole = survey(dict(enumerate(texts)))
    later = known.assign(whole, {VALID: 0, TEST: 0})
    assert [later[key] for key in whole.keys][3:] == [ASIDE, TEST] or later[whole.keys[3]] == ASIDE


def test_a_split_is_the_same_after_it_was_an_array():
    found = survey(documents(5, 20))
    split = Split(block=300).adopt(found, Split().assign(found, wanted(found)))
    again = Split.from_array(split.to_array(), 300)
    assert again == split and split.to_array().dtype == np.int64
    assert again.move(TEST, TRAIN).select(TRAIN) == split.select(TRAIN) | split.select(TEST)


def test_copies_are_read_once_and_blocks_have_names_of_their_own():
    corpus = TextSource.from_strings("one two", "one two", " ", prose(1, 200)).open()
    assert len(list(passages(corpus))) == 2
    blocks = list(passages(corpus, 500))
    assert blocks[0].name == "memory" and blocks[1].name == "memory#1" and len(blocks) > 4
    assert "".join(one.text for one in blocks[1:]) == prose(1, 200)
