"""Which passage of unseen text is continued: prose, from a sentence on, where the memory helps well."""

import numpy as np
import pytest

from nearlm.optimizer import continuations
from nearlm.optimizer.continuations import choose_passage
from nearlm.text import TextSource, read_once
from tiny import make_text

PROSE = ". ".join(make_text(12, seed=seed).strip(".\n").capitalize() for seed in range(60)) + "."


@pytest.fixture
def read(lm, model_folder):
    from nearlm.text import Framing, Reading

    def of(*documents):
        reading = Reading(Framing.of(lm.tokenizer, "eos"), 64, 64)
        return read_once(TextSource.from_strings(*documents), lm.tokenizer, reading)

    return of


def test_a_prompt_is_prose_that_goes_on_as_its_document_does(lm, read):
    with read("* * *\n" * 300, PROSE) as text:
        gain = np.zeros(len(text.targets))
        prompt, truth = choose_passage(lm.tokenizer, text, gain)
    assert prompt + truth in PROSE and truth[0] == " " and prompt[0].isupper() and "*" not in prompt


def test_the_passage_has_more_gain_than_most_but_not_the_most(lm, read):
    with read(PROSE) as text:
        gain = np.linspace(0, 1, len(text.targets))
        prompt, _ = choose_passage(lm.tokenizer, text, gain)
    assert 0.55 < PROSE.index(prompt) / len(PROSE) < 0.9


def test_text_without_prose_gives_what_there_is_and_a_short_one_nothing(lm, read, monkeypatch):
    with read("x = 1;\n" * 200) as text:
        assert choose_passage(lm.tokenizer, text, np.zeros(len(text.targets))) is not None
    with read("too short") as text:
        assert choose_passage(lm.tokenizer, text, np.zeros(len(text.targets))) is None
    assert continuations._prose("Plain words, and more.") > 0.95 > 0.7 > continuations._prose("*\n*\n* {x}")
