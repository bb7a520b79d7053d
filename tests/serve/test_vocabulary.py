"""A tokenizer for several threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from nearlm.serve.errors import APIError
from nearlm.serve.vocabulary import Vocabulary


def test_threads_encode_and_decode_at_once(chatty):
    vocabulary = Vocabulary(chatty)
    texts = [f"the licence {number} grants" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(lambda text: vocabulary.decode(vocabulary.encode(text)), texts * 5))
    assert again == texts * 5


def test_special_tokens_are_shown_only_when_asked(chatty):
    vocabulary = Vocabulary(chatty)
    ids = [0, *vocabulary.encode("the")]
    assert (vocabulary.decode(ids), vocabulary.show(ids)) == ("the", "<s>the")


def test_a_template_that_refuses_messages_gives_its_reason(chatty):
    vocabulary = Vocabulary(chatty)
    vocabulary._reader.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(APIError, match="roles must alternate"):
        vocabulary.encode_chat([{"role": "user", "content": "a"}])


def test_half_a_surrogate_pair_is_refused(chatty):
    with pytest.raises(APIError, match="surrogate"):
        Vocabulary(chatty).encode("a\ud800")
