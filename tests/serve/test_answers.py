"""Answers, whole and in parts."""

from types import SimpleNamespace

import pytest

from nearlm.serve.answers import Style, Usage
from nearlm.serve.sampling import Alternatives
from nearlm.serve.tasks import Delta, Token
from nearlm.serve.vocabulary import Vocabulary


@pytest.fixture
def served(chatty):
    return SimpleNamespace(vocabulary=Vocabulary(chatty), store=None)


def style(served, chat):
    return Style.of(served, "mem", chat=chat, logprobs=True, explain=False)


def test_log_p_of_zero_can_be_written(served):
    token = Token(60, float("-inf"), Alternatives([61], [-0.5]), None, 4)
    found = style(served, False).choice(0, Delta(0, "a", [token]), part=True, shift=3)["logprobs"]
    assert found["token_logprobs"] == [-9999.0]
    assert found["text_offset"] == [7]
    assert list(found["top_logprobs"][0].values()) == [-0.5]


def test_ids_and_objects_differ_by_kind(served):
    chat, plain = style(served, True), style(served, False)
    assert chat.id.startswith("chatcmpl-") and plain.id.startswith("cmpl-")
    whole = chat.whole([chat.choice(0, Delta(0, "hi", [], "stop"), part=False)], Usage(3, 4))
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == "hi"
    assert whole["usage"]["total_tokens"] == 7
    assert chat.chunk([])["object"] == "chat.completion.chunk"
    assert "usage" not in plain.chunk([])
