"""Which passage of unseen text is continued: prose, from a sentence on, where the memory helps well."""

import numpy as np
import pytest

from nearlm.optimizer import continuations
from nearlm.optimizer.continuations import Continuation, choose_passages, continue_unseen, flow_of
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
        prompt, truth = choose_passages(lm.tokenizer, text, gain)[0]
    assert prompt + truth in PROSE and truth[0] == " " and prompt[0].isupper() and "*" not in prompt


def test_the_passage_has_more_gain_than_most_but_not_the_most(lm, read):
    with read(PROSE) as text:
        gain = np.linspace(0, 1, len(text.targets))
        prompt, _ = choose_passages(lm.tokenizer, text, gain)[0]
    assert 0.55 < PROSE.index(prompt) / len(PROSE) < 0.9


def test_text_without_prose_gives_what_there_is_and_a_short_one_nothing(lm, read, monkeypatch):
    with read("x = 1;\n" * 200) as text:
        assert len(choose_passages(lm.tokenizer, text, np.zeros(len(text.targets)))) == 1
    with read("too short") as text:
        assert choose_passages(lm.tokenizer, text, np.zeros(len(text.targets))) == []
    assert continuations._prose("Plain words, and more.") > 0.95 > 0.7 > continuations._prose("*\n*\n* {x}")


def test_the_next_passages_are_most_like_the_first(lm, read):
    with read(PROSE) as text:
        gain = np.linspace(0, 1, len(text.targets))
        places = [PROSE.index(prompt) for prompt, _ in choose_passages(lm.tokenizer, text, gain)]
    apart = np.abs(np.array(places) - places[0])
    assert len(set(places)) == len(places) > 4 and (np.diff(apart) >= -apart.max() / 4).all()


def test_text_that_goes_round_in_circles_or_is_no_prose_flows_badly():
    assert flow_of(range(60), "Plain words that go on.") == 1
    assert flow_of([1, 2, 3] * 20, "Plain words that go on.") < 0.1
    assert flow_of(range(60), "8.\n\n" * 20) < 0.9
    assert flow_of([], "") < 1


@pytest.mark.parametrize(("flows", "shown"), [([0.2, 0.5, 1.0, 1.0], 2), ([0.2, 0.5, 0.3] + [0.1] * 9, 1)])
def test_the_first_passage_after_which_both_write_well_is_shown_or_the_best(lm, read, monkeypatch, flows, shown):
    """Both the LM and the memory are judged: here the memory writes well always, and the LM at last."""
    written = []

    def write(knnlm, prompt):
        if knnlm.memory is not None:
            written.append(prompt)
            return "memory", 1.0
        return "alone", flows[len(written) - 1]

    class Scored:
        logp = log_lm = 0.0

    class Loaded:
        memory, store = 1, None

    monkeypatch.setattr(continuations, "_write", write)
    Loaded.lm = lm
    with read(PROSE) as text:
        Scored.logp = np.zeros(len(text.targets))
        passages = choose_passages(lm.tokenizer, text, Scored.logp)
        monkeypatch.setattr(continuations, "KNNLM", lambda *_: type("Alone", (), {"memory": None}))
        found = continue_unseen(Loaded, text, Scored)
    assert found == Continuation(passages[shown][0], "alone", "memory", passages[shown][1])
    assert len(written) == (shown + 1 if flows[shown] == 1 else continuations._TRIES)
