"""A dialogue: what was said is remembered, and the memory can be switched off."""

import pytest

from nearlm.base import OptionError
from nearlm.knnlm.dialogue import Dialogue
from nearlm.knnlm.knnlm import KNNLM

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
OPTIONS = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture
def chatting(knnlm, monkeypatch):
    monkeypatch.setattr(knnlm.lm.tokenizer, "chat_template", TEMPLATE, raising=False)
    return Dialogue(knnlm)


def test_a_chat_knows_what_was_said(chatting, knnlm):
    first = chatting.answer("the licence", **OPTIONS)
    second = chatting.answer("any person", **OPTIONS)
    said = [
        {"role": "user", "content": "the licence"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "any person"},
    ]
    assert chatting.chats
    assert second == knnlm.generate(said, **OPTIONS)
    chatting.forget()
    assert chatting.answer("the licence", **OPTIONS) == first


def test_without_a_template_each_text_is_continued(knnlm):
    dialogue = Dialogue(knnlm)
    assert not dialogue.chats
    dialogue.answer("software", **OPTIONS)
    assert dialogue.answer("the licence", **OPTIONS) == knnlm.generate("the licence", **OPTIONS)


def test_the_memory_can_be_switched_off(knnlm):
    dialogue = Dialogue(knnlm, memory=False)
    alone = KNNLM(knnlm.lm, knnlm.store, None)
    assert dialogue.answer("the licence", **OPTIONS) == alone.generate("the licence", **OPTIONS)
    assert all(one.lam == 0 for one in dialogue.explain())
    dialogue.memory = True
    assert dialogue.answer("the licence", **OPTIONS) == knnlm.generate("the licence", **OPTIONS)
    assert any(one.nearest for one in dialogue.explain())


def test_nothing_can_be_explained_before_something_is_said(knnlm):
    with pytest.raises(OptionError, match="nothing was said"):
        Dialogue(knnlm).explain()
