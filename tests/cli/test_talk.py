"""The loop of a dialogue, in a pipe."""

import io
import sys
from types import SimpleNamespace

import pytest

from nearlm.base import OptionError
from nearlm.cli.console import Generation
from nearlm.cli.talk import talk


class Echo:
    """Says again what it hears."""

    chats = True
    memory = True

    def __init__(self, tokenizer):
        self.knnlm = SimpleNamespace(lm=SimpleNamespace(tokenizer=tokenizer))
        self.heard = []

    def answer(self, text, streamer, **options):
        if text == "bad":
            raise OptionError("`max_new_tokens` is wrong")
        self.heard.append((text, self.memory, options["max_new_tokens"]))
        streamer.on_finalized_text(text[::-1], stream_end=True)

    def forget(self):
        self.heard.append("new")

    def explain(self):
        raise OptionError("nothing was said yet")


@pytest.fixture
def say(monkeypatch, capsys, tokenizer):
    def run(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        dialogue = Echo(tokenizer)
        talk(dialogue, Generation(max_new_tokens=7))
        return dialogue, *capsys.readouterr()

    return run


def test_lines_are_answered_until_the_end(say):
    dialogue, out, err = say("abc\n\n  \nxyz")
    assert out == "cba\nzyx\n"
    assert dialogue.heard == [("abc", True, 7), ("xyz", True, 7)]
    assert "/help" in err


def test_commands_are_obeyed_and_answers_stay_apart(say):
    dialogue, out, err = say("/memory off\nabc\n/memory on\n/memory\nabc\n/new\n/quit\nnever\n")
    assert dialogue.heard == [("abc", False, 7), ("abc", True, 7), "new"]
    assert out == "cba\ncba\n"
    assert "the memory is off" in err


def test_errors_do_not_end_it(say):
    _, out, err = say("/explain\nbad\n/what\n/help\nabc")
    assert "nothing was said yet" in err
    assert "--max-new-tokens is wrong" in err
    assert "no command /what" in err
    assert "/memory off" in out and out.endswith("cba\n")


def test_a_closed_stdin_ends_it(monkeypatch, tokenizer):
    monkeypatch.setattr(sys, "stdin", None)
    talk(Echo(tokenizer), Generation())
