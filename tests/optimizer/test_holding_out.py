"""Which documents are stored now, held out, or left: whole ones, within what was planned."""

import pytest

from nearlm.base.errors import TextError
from nearlm.optimizer.fit_plan import WAYS, Amounts
from nearlm.optimizer.holding_out import hold_out
from nearlm.text import TEST, TRAIN, VALID, Split, TextSource
from tiny import make_text


def corpus(count: int, words: int = 100):
    return TextSource.from_strings(*(make_text(words, seed=seed) for seed in range(count))).open()


def plan(store=None, share=10):
    return lambda characters: Amounts(
        characters // 4, store, characters // 4 // share, characters // 4 // share, WAYS[0]
    )


def test_all_is_stored_but_what_is_held_out():
    held, split = hold_out(corpus(40), Split(), plan(), ())
    assert sum(held.counts.values()) == 40 and held.counts[VALID] >= 3 <= held.counts[TEST] and held.left == 0
    assert held.new == split.select(TRAIN) and held.block is None and held.rows == len(split.to_array())


def test_a_limit_leaves_documents_for_another_time_and_these_come_next():
    held, split = hold_out(corpus(40), Split(), plan(store=2000), ())
    assert held.left and held.characters[TRAIN] / 4 <= 2000 and len(split.parts) == 40 - held.left
    later, whole = hold_out(corpus(40), split, plan(), ())
    assert not later.left and not later.new & split.select(TRAIN) and later.counts[TRAIN] == held.left
    assert len(whole.parts) == 40 and whole.select(TEST) == split.select(TEST)
    tiny, _ = hold_out(corpus(40), Split(), plan(store=2), ())
    assert tiny.counts[TRAIN] == 1  # the smallest, at least


def test_parts_of_ones_own_are_not_held_out():
    held, _ = hold_out(corpus(20), Split(), plan(), {VALID, TEST})
    assert held.counts == {TRAIN: 20} and not held.notes


def test_few_documents_are_cut_and_this_is_said():
    held, split = hold_out(corpus(2, 2000), Split(), plan(), ())
    assert held.block and held.counts[VALID] and held.counts[TEST] and "2 documents are too few" in held.notes[0]
    again, _ = hold_out(corpus(3, 2000), split, plan(), ())
    assert again.block == held.block and not again.new & split.select(TRAIN)


def test_a_text_without_documents_is_refused():
    with pytest.raises(TextError, match="holds no document"):
        hold_out(TextSource.from_strings(" ").open(), Split(), plan(), ())
