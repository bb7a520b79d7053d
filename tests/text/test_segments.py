import pytest
from documents import NoSpecials

from nearlm.base.errors import OptionError
from nearlm.text.segments import Framing


def test_framing_follows_the_tokenizer_and_the_separator(tokenizer):
    assert Framing.of(tokenizer, "eos") == Framing((0,), (1,))
    assert Framing.of(tokenizer, "none") == Framing((0,), ())
    assert Framing.of(NoSpecials(tokenizer), "eos") == Framing((), ())
    assert Framing.of(NoSpecials(tokenizer), "none") == Framing((), ())
    newline = tuple(tokenizer("\n\n", add_special_tokens=False)["input_ids"])
    assert Framing.of(tokenizer, "\n\n") == Framing((0,), newline)
    assert Framing.of(tokenizer, "</s>") == Framing((0,), (1,))


def test_a_separator_of_no_token_is_refused(tokenizer):
    with pytest.raises(OptionError, match="`separator="):
        Framing.of(tokenizer, "")
