"""Numbers and texts as people read them."""

import math

import pytest

import measured
from nearlm.paper.report import formatting


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (formatting.ppl, 9.1849, "9.18"),
        (formatting.ppl, 106.56, "106.6"),
        (formatting.ppl, None, "–"),
        (formatting.ppl, math.nan, "–"),
        (formatting.speed, 27800.4, "27,800"),
        (formatting.speed, 0.8234, "0.82"),
        (formatting.times, 1.2248, "1.22×"),
        (formatting.times, 42.4, "42×"),
        (formatting.share, 0.978, "98\xa0%"),
        (formatting.chance, 0.0042, "0.4\xa0%"),
        (formatting.chance, 0.42, "42\xa0%"),
        (formatting.chance, 0.0, "0\xa0%"),
        (formatting.plain, 31.25, "31.25"),
        (formatting.count, 1048576, "1,048,576"),
        (formatting.disk, 268_435_456, "268.4 MB"),
        (formatting.disk, None, "–"),
    ],
)
def test_numbers_are_written_for_people(write, value, expected):
    assert write(value) == expected


def test_what_cannot_be_shown_becomes_a_replacement_character():
    assert formatting.displayable("a\x00b\x1bc\ud800d\r\ne\rf\t") == "a\ufffdb\ufffdc\ufffdd\ne\nf\t"


def test_line_breaks_and_tabs_of_a_token_are_made_visible():
    assert formatting.visible("\r\n\tx\x00") == "⏎⇥x\ufffd"
    assert formatting.visible("") == "∅"


def test_a_text_is_divided_at_its_empty_lines():
    assert formatting.paragraphs("\none\ntwo\n \n\nthree\n") == ["one\ntwo", "three"]
    assert formatting.paragraphs(" \n") == []


def test_made_up_tokens_have_the_probabilities_of_a_mixture():
    for one in measured.continuation().tokens:
        assert one.p == pytest.approx(one.lam * one.p_knn + (1 - one.lam) * one.p_lm)
