import pytest
from documents import NoSpecials
from tokenizers.processors import TemplateProcessing

from nearlm.base.errors import OptionError
from nearlm.text.segments import Framing
from tiny import make_tokenizer


def test_framing_follows_the_tokenizer_and_the_separator(tokenizer):
    plain = make_tokenizer(adds_bos=False)  # it has a BOS, but puts none before a text, as SmolLM2's
    assert Framing.of(plain, "eos") == Framing((), (1,)) == Framing.of(tokenizer, "eos", bos=False)
    assert Framing.of(plain, "eos", bos=True) == Framing.of(tokenizer, "eos") == Framing((0,), (1,))
    assert Framing.of(tokenizer, "none") == Framing((0,), ())
    assert Framing.of(NoSpecials(tokenizer), "eos") == Framing((), ())
    assert Framing.of(NoSpecials(tokenizer), "none") == Framing((), ())
    newline = tuple(tokenizer("\n\n", add_special_tokens=False)["input_ids"])
    assert Framing.of(tokenizer, "\n\n") == Framing((0,), newline)
    assert Framing.of(tokenizer, "</s>") == Framing((0,), (1,))


def test_what_follows_a_text_is_no_bos(tokenizer):
    both = make_tokenizer()
    both.backend_tokenizer.post_processor = TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    assert Framing.of(both, "none") == Framing((0,), ())


def test_a_bos_that_the_tokenizer_does_not_have_is_refused(tokenizer):
    with pytest.raises(OptionError, match="`bos=True`"):
        Framing.of(NoSpecials(tokenizer), "eos", bos=True)


def test_a_separator_of_no_token_is_refused(tokenizer):
    with pytest.raises(OptionError, match="`separator="):
        Framing.of(tokenizer, "")


def test_a_tokenizer_that_makes_nothing_of_a_word_or_an_unknown_of_it(tokenizer):
    class Odd(NoSpecials):
        bos_token_id = 1

        def __init__(self, plain, whole):
            self.plain, self.whole = plain, whole

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": self.whole if add_special_tokens else self.plain}

    assert Framing.of(Odd([], []), "none").bos == ()
    assert Framing.of(Odd([], [1]), "none").bos == (1,)
    assert Framing.of(Odd([1], [1, 1]), "none").bos == (1,)  # the unknown token is BOS
    assert Framing.of(Odd([5], [6]), "none").bos == ()
