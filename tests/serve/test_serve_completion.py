"""From requests to orders: what the limits of server and model allow."""

import pytest
from live import LIMITS

from nearlm.serve.completion import Counter, as_error
from nearlm.serve.errors import APIError
from nearlm.serve.requests import ChatRequest, CompletionRequest, Extension


@pytest.fixture
def counter(running):
    return Counter(running.catalog, LIMITS)


def test_an_order_has_a_wish_per_prompt(counter, stores):
    order = counter.completion(CompletionRequest(prompt=["the", "a licence"], n=3, max_tokens=5, stop="x", seed=4))
    assert [wish.choices for wish in order.wishes] == [3, 3]
    assert order.wishes[0].prompt[: len(stores[0].manifest.bos)] == stores[0].manifest.bos
    assert order.wishes[1].max_new_tokens == 5
    assert order.prompt_tokens == sum(len(wish.prompt) for wish in order.wishes)


def test_a_chat_without_a_length_gets_what_fits(counter):
    asked = ChatRequest(messages=[{"role": "user", "content": "the " * 40}])
    wish = counter.chat(asked).wishes[0]
    assert wish.max_new_tokens == min(LIMITS.max_new_tokens, 256 - len(wish.prompt))


def test_what_the_model_cannot_read_is_refused(running):
    limits = type(LIMITS)(max_prompt_tokens=1000, max_new_tokens=1000)
    with pytest.raises(APIError, match="the model reads 256 tokens"):
        Counter(running.catalog, limits).completion(CompletionRequest(prompt=[5] * 200, max_tokens=60))
    with pytest.raises(APIError, match="the model reads 256 tokens"):
        Counter(running.catalog, limits).score(None, "the " * 300, Extension())


def test_an_error_in_a_stream_tells_nothing_of_the_inside():
    assert as_error(ValueError("secret")).to_json()["error"]["message"] == "the computation failed"
    assert as_error(APIError(503, "later")).status == 503
