"""Bodies of requests: what is taken, and what is refused."""

import pytest
from pydantic import ValidationError

from nearlm.serve.requests import ChatRequest, CompletionRequest, Message


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ([], [])],
)
def test_prompts_are_one_or_several_texts_or_tokens(prompt, expected):
    assert CompletionRequest(prompt=prompt).prompts == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"n": True and 10**30},
        {"top_p": -0.1},
        {"temperature": float("nan")},
        {"temperature": 3},
        {"stop": [""]},
        {"stop": ["a"] * 17},
        {"seed": 1 << 63},
        {"logprobs": 21},
        {"best_of": 2},
        {"suffix": "end"},
        {"presence_penalty": 0.5},
        {"nearlm": {"neighbors": 33}},
        {"nearlm": {"path": "/etc"}},
        {"nearlm": {"knn_temperature": float("inf")}},
        {"prompt": None},
        {"prompt": [1, "a"]},
        {"prompt": [-1]},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValidationError):
        CompletionRequest(**{"prompt": "a", **wrong})


def test_values_that_change_nothing_and_unknown_fields_are_taken():
    asked = CompletionRequest(prompt="a", best_of=1, presence_penalty=0, logit_bias={}, something_new=3, stop="x")
    assert asked.stops == ("x",)
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (1.0, 1.0, 16)


def test_null_is_what_is_not_given():
    names = [name for name in CompletionRequest.model_fields if name != "prompt"]
    assert CompletionRequest(prompt="a", **dict.fromkeys(names)) == CompletionRequest(prompt="a")
    messages = [{"role": "user", "content": "a"}]
    names = [name for name in ChatRequest.model_fields if name != "messages"]
    assert ChatRequest(messages=messages, **dict.fromkeys(names)) == ChatRequest(messages=messages)


def test_messages_may_come_in_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert Message(role="user", content=parts).text == "ab"
    assert Message(role="assistant", content=None).text == ""
    with pytest.raises(ValidationError):
        ChatRequest(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])
