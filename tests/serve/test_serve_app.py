"""The routes, with OpenAI's own client."""

import json

import openai
import pytest

PROMPT = "the licence grants"


def greedy(client, prompt=PROMPT, model="mem", **more):
    return client.completions.create(model=model, prompt=prompt, temperature=0, **{"max_tokens": 12, **more})


def test_models_are_listed_with_their_memory_and_without(client):
    assert [model.id for model in client.models.list()] == ["mem", "mem:off", "bare", "bare:off"]


def test_greedy_text_is_that_of_generate(client, knnlm):
    found = greedy(client)
    assert found.choices[0].text == knnlm.generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 12


def test_a_stream_is_the_same_text_in_parts(client):
    parts = list(greedy(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == greedy(client).choices[0].text
    assert len(parts) > 4
    assert parts[-1].usage.completion_tokens == 12
