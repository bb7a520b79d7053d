"""The routes, with OpenAI's own client against a real server."""

import json
import math
import threading
import time

import httpx
import numpy as np
import openai
import pytest

from nearlm.base import NearLMWarning

PROMPT = "the licence grants"


def greedy(client, prompt=PROMPT, model="mem", **more):
    return client.completions.create(model=model, prompt=prompt, temperature=0, **{"max_tokens": 12, **more})


def test_models_are_listed_with_their_memory_and_without(client):
    assert [model.id for model in client.models.list()] == ["mem", "mem:off", "bare", "bare:off", "mem+bare"]
    assert client.models.retrieve("bare:off").id == "bare:off"


def test_greedy_text_is_that_of_generate(client, knnlm):
    found = greedy(client)
    assert found.choices[0].text == knnlm.generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert found.choices[0].finish_reason == "length"
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(knnlm._document(PROMPT)), 12)


def test_several_stores_at_once_are_a_model_too(client, http, knnlm, stores):
    with pytest.warns(NearLMWarning, match="no weights were learned"):
        both = type(knnlm).load(stores, knnlm.lm)
    expected = both.generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert greedy(client, model="mem+bare").choices[0].text == expected
    asked = {"model": "mem+bare", "text": PROMPT, "nearlm": {"explain": True}}
    tokens = http.post("/v1/nearlm/score", json=asked).json()["tokens"]
    assert tokens[-1]["weights"].keys() == {"lm", "mem/knn", "bare/infini-gram", "text"}
    assert {near["store"] for token in tokens for near in token["neighbors"]} == {"mem"}
    assert tokens[-1]["suffix"]["store"] == "bare"


def test_without_a_name_the_first_store_is_used(http):
    asked = {"prompt": PROMPT, "temperature": 0}
    assert http.post("/v1/completions", json=asked).json()["model"] == "mem"


def test_the_model_alone_has_no_memory(client, knnlm):
    alone = type(knnlm)(knnlm.lm, knnlm.store, None)
    expected = alone.generate(PROMPT, max_new_tokens=12, do_sample=False)
    assert expected != greedy(client).choices[0].text
    assert greedy(client, model="mem:off").choices[0].text == expected
    assert greedy(client, extra_body={"nearlm": {"memory": False}}).choices[0].text == expected
    assert greedy(client, extra_body={"nearlm": {"lam": 0}}).choices[0].text == expected


def test_requests_that_are_computed_together_get_what_they_get_alone(client, knnlm):
    prompts = ["the licence", "a", "free of charge and any person who", "software merges copies the", "to any", "uses"]
    models = ["mem", "mem:off", "mem", "bare", "mem", "bare:off"]
    alone = [
        greedy(client, prompt, model, max_tokens=24).choices[0].text
        for prompt, model in zip(prompts, models, strict=True)
    ]
    found = [None] * len(prompts)

    def ask(number):
        time.sleep(0.01 * number)
        found[number] = greedy(client, prompts[number], models[number], max_tokens=24).choices[0].text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == alone
    assert found[0] == knnlm.generate(prompts[0], max_new_tokens=24, do_sample=False)


def test_several_prompts_as_texts_and_as_tokens(client, knnlm):
    ids = [knnlm._document(text).tolist() for text in ("the licence", "any person")]
    texts = [choice.text for choice in greedy(client, ["the licence", "any person"]).choices]
    assert [choice.text for choice in greedy(client, ids).choices] == texts
    assert greedy(client, ids[1]).choices[0].text == texts[1]


def test_a_stream_is_the_same_text_in_parts(client):
    parts = list(greedy(client, stream=True, stream_options={"include_usage": True}, n=2))
    expected = greedy(client).choices[0].text
    for index in range(2):
        own = [part.choices[0] for part in parts if part.choices and part.choices[0].index == index]
        assert "".join(choice.text for choice in own) == expected
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["length"]
    assert len(parts) > 8
    assert parts[-1].usage.completion_tokens == 24


def test_a_chat_uses_the_template(client, knnlm):
    messages = [{"role": "user", "content": "the licence"}]
    asked = {"model": "mem", "messages": messages, "temperature": 0, "max_tokens": 10}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    assert found.choices[0].message.content == knnlm.generate(messages, max_new_tokens=10, do_sample=False)
    content = found.choices[0].logprobs.content
    assert "".join(each.token for each in content) == found.choices[0].message.content
    assert all(each.logprob == each.top_logprobs[0].logprob and len(each.top_logprobs) == 3 for each in content)
    parts = list(client.chat.completions.create(**asked, stream=True))
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == found.choices[0].message.content


def test_a_seed_repeats_and_choices_differ(client):
    def sampled(seed):
        found = client.completions.create(model="mem", prompt=PROMPT, seed=seed, n=3, max_tokens=8, temperature=1.5)
        return [choice.text for choice in found.choices]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)
    assert len(set(sampled(1))) > 1


def test_a_stop_string_ends_the_text_before_it_also_across_tokens(client):
    whole = greedy(client, max_tokens=30).choices[0].text
    for stop in (whole[5:9], whole[12:13], whole[3:20]):
        found = greedy(client, max_tokens=30, stop=["never there", stop], logprobs=0).choices[0]
        assert (found.text, found.finish_reason) == (whole[: whole.index(stop)], "stop")
        assert all(offset < max(len(found.text), 1) for offset in found.logprobs.text_offset)
        streamed = greedy(client, max_tokens=30, stop=stop, stream=True)
        assert "".join(part.choices[0].text for part in streamed) == found.text


def test_echo_scores_a_prompt_as_the_library_does(client, knnlm):
    text = "the licence grants rights to any person who uses copies"
    found = greedy(client, text, echo=True, logprobs=2, max_tokens=0).choices[0]
    scores = knnlm.score(text)
    assert found.text == text
    assert found.logprobs.token_logprobs[0] is None
    assert np.allclose(found.logprobs.token_logprobs[1:], scores.logp, atol=1e-9)
    assert all(len(top) == 2 for top in found.logprobs.top_logprobs[1:])
    both = greedy(client, text, echo=True, logprobs=0, max_tokens=5).choices[0]
    assert both.text == text + greedy(client, text, max_tokens=5).choices[0].text
    assert len(both.logprobs.token_logprobs) == len(scores.logp) + 1 + 5


@pytest.mark.parametrize("model", ["mem", "bare", "mem:off"])
def test_a_text_is_scored_and_explained(http, model, knnlm):
    text = "the licence grants rights to any person"
    asked = {"model": model, "text": text, "nearlm": {"explain": True, "neighbors": 3}}
    found = http.post("/v1/nearlm/score", json=asked).json()
    assert found["tokens_count"] == len(found["tokens"]) == len(knnlm.score(text).logp)
    assert math.isclose(found["perplexity_lm"], math.exp(-knnlm.score(text).log_lm.mean()), rel_tol=1e-6)
    for token in found["tokens"]:
        if token["p_memory"] is None:
            assert token["p"] == pytest.approx(token["p_lm"])
        else:
            mixed = token["weight"] * token["p_memory"] + (1 - token["weight"]) * token["p_lm"]
            assert token["p"] == pytest.approx(mixed, abs=1e-6)
        if token["weights"]:
            assert sum(token["weights"].values()) == pytest.approx(1)
    if model == "mem":
        assert math.isclose(found["perplexity"], math.exp(-knnlm.score(text).logp.mean()), rel_tol=1e-6)
        assert all(len(token["neighbors"]) == 3 and token["searched"] for token in found["tokens"])


def test_a_completion_is_explained_with_its_contexts(http, knnlm):
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4, "nearlm": {"explain": True, "neighbors": 2}}
    choice = http.post("/v1/completions", json=asked).json()["choices"][0]
    tokens = choice["nearlm"]["tokens"]
    assert "".join(token["token"] for token in tokens) == choice["text"]
    start, new = knnlm.generate_ids([PROMPT], max_new_tokens=4, do_sample=False)[0]
    for token, expected in zip(tokens, knnlm.explain([*start, *new], first=len(start), nearest=2), strict=True):
        assert token["p"] == pytest.approx(expected.p)
        assert token["p_lm"] == pytest.approx(expected.p_lm)
        assert token["p_memory"] == pytest.approx(expected.p_knn)
        for near, (distance, context) in zip(token["neighbors"], expected.nearest, strict=True):
            assert near["distance"] == pytest.approx(distance)
            assert (near["document"], near["token"]) == (context.document, context.target)
            assert near["match"] == (near["token"] == token["token"])
            assert context.text.endswith(near["before"])


def test_stores_and_documents_are_listed_and_searched(http):
    stores = http.get("/v1/nearlm/stores").json()["stores"]
    assert [(store["name"], store["has_keys"], store["documents"]) for store in stores] == [
        ("mem", True, 3),
        ("bare", False, 3),
    ]
    assert stores[0]["settings"]["lam"] == 0.4
    found = http.get("/v1/nearlm/stores/mem/documents", params={"query": "DOC1"}).json()
    assert (found["total"], found["documents"][0]["name"].endswith("doc1.txt")) == (1, True)
    first = http.get("/v1/nearlm/stores/mem/documents/0").json()
    inside = http.get("/v1/nearlm/stores/mem/documents", params={"query": first["text"][100:160]}).json()
    assert [document["name"] for document in inside["documents"]] == [first["name"]]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("completions", {"model": "no", "prompt": "a"}, 404, "model_not_found"),
        ("completions", {"prompt": "a", "n": 9}, 400, "too_many_choices"),
        ("completions", {"prompt": "a", "max_tokens": 65}, 400, "max_tokens_too_large"),
        ("completions", {"prompt": "a " * 400}, 400, "prompt_too_long"),
        ("completions", {"prompt": [5] * 150, "max_tokens": 64, "n": 9}, 400, "too_many_choices"),
        ("completions", {"prompt": [300]}, 400, None),
        ("completions", {"prompt": []}, 400, None),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "invalid_value"),
        ("completions", {"prompt": "a", "logit_bias": {"5": 1}}, 400, "invalid_value"),
        ("completions", {"prompt": "a", "nearlm": {"k": 0}}, 400, "invalid_value"),
        ("completions", {"model": "bare", "prompt": "a", "nearlm": {"lam": 0.5}}, 400, None),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, None),
        ("completions", {"prompt": "\ud800"}, 400, None),
        ("chat/completions", {"messages": []}, 400, "invalid_value"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, 400, "invalid_value"),
        ("nearlm/score", {"text": ""}, 400, None),
        ("nowhere", {}, 404, None),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(http, path, body, status, code):
    response = http.post(f"/v1/{path}", content=json.dumps(body), headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"] and set(error) == {"message", "type", "param", "code"}


def test_the_error_names_the_field_and_all_that_it_may_be(http):
    error = http.post("/v1/completions", json={"prompt": {"a": 1}}).json()["error"]
    assert error["param"] == "prompt"
    assert "valid string" in error["message"] and "valid list" in error["message"]
    error = http.post("/v1/completions", json={"prompt": "a", "nearlm": {"k": 0}}).json()["error"]
    assert error["param"] == "nearlm.k"


def test_the_client_raises_its_own_errors(client):
    with pytest.raises(openai.NotFoundError, match="expected one of mem"):
        greedy(client, model="gpt-4")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        greedy(client, max_tokens=10_000)


def test_a_model_without_a_template_says_where_to_go(http, running):
    vocabulary = running.catalog.stores["mem"].vocabulary
    template = vocabulary._reader.chat_template
    vocabulary._reader.chat_template = None
    try:
        response = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]})
    finally:
        vocabulary._reader.chat_template = template
    assert response.status_code == 400
    assert "/v1/completions" in response.json()["error"]["message"]


def test_health_and_metrics(http):
    assert http.get("/health").json() == {"status": "ok"}
    text = http.get("/metrics").text
    assert 'nearlm_requests_total{path="/v1/completions",status="200"}' in text
    assert "nearlm_first_token_seconds_bucket" in text


def idle(running):
    """Wait until nothing is computed."""
    engine = running.catalog.engines[0]
    until = time.monotonic() + 20
    while engine._rows or engine._waiting or engine._read:
        assert time.monotonic() < until
        time.sleep(0.01)
    return engine


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_stops_its_generation(running, slow, stream):
    engine = idle(running)
    asked = {"prompt": PROMPT, "max_tokens": 64, "temperature": 1.0, "seed": 1, "stream": stream}
    with httpx.Client(base_url=running.url, timeout=0.5) as leaving:
        if stream:
            with leaving.stream("POST", "/v1/completions", json=asked) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                leaving.post("/v1/completions", json=asked)
    before = slow["steps"]
    idle(running)
    assert slow["steps"] - before < 40
    assert not engine._rows


@pytest.fixture
def slow(running, monkeypatch):
    """Let every step take a while, and count them."""
    engine = running.catalog.engines[0]
    counted = {"steps": 0}
    real = engine._decoder.step

    def step(*arguments):
        counted["steps"] += 1
        time.sleep(0.05)
        return real(*arguments)

    monkeypatch.setattr(engine._decoder, "step", step)
    return counted


def test_a_full_queue_refuses_with_429(running, slow):
    idle(running)
    statuses = []

    def ask():
        asked = {"prompt": PROMPT, "max_tokens": 12, "n": 8}
        statuses.append(httpx.post(f"{running.url}/v1/completions", json=asked, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    codes = sorted(response.status_code for response in statuses)
    assert set(codes) == {200, 429}
    refused = next(response for response in statuses if response.status_code == 429)
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert refused.headers["retry-after"]


def test_a_request_that_takes_too_long_gets_503(running, slow, monkeypatch):
    engine = idle(running)
    monkeypatch.setattr(engine, "_limits", type(engine._limits)(max_seconds=1))
    response = httpx.post(f"{running.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 64}, timeout=60)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "timeout"


def test_a_step_that_fails_ends_its_requests_and_nothing_else(running, http, monkeypatch):
    engine = idle(running)
    real = engine._decoder.step

    def step(*_):
        monkeypatch.setattr(engine._decoder, "step", real)
        raise MemoryError

    monkeypatch.setattr(engine._decoder, "step", step)
    asked = {"prompt": PROMPT, "temperature": 0}
    assert http.post("/v1/completions", json=asked).status_code == 500
    assert http.post("/v1/completions", json=asked).status_code == 200
