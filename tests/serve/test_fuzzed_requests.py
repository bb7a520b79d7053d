"""Malformed requests, many of them: never a 500, never a traceback, and always an error in words."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/nearlm/score"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
NAMES = """model prompt messages text n stop seed temperature top_p max_tokens max_completion_tokens logprobs
top_logprobs
echo stream stream_options nearlm best_of suffix logit_bias user response_format tools role""".split()
OWN = "explain neighbors memory lam knn_temperature k x".split()
MOSTLY = {
    "prompt": st.sampled_from(["a", ["a", "the"], [5, 6], [[5], [6]], "", [], [[]], [2**40], "\ud800", "\x00"]),
    "messages": st.sampled_from([[{"role": "user", "content": "a"}], [{"role": "user"}], [{}], [], "a"]),
    "text": st.sampled_from(["the licence", "", "\ud800"]),
    "max_tokens": st.sampled_from([1, 2, 0, -1, 10**9, 10**40, 1.5]),
    "n": st.sampled_from([1, 2, 0, 200]),
    "nearlm": st.dictionaries(
        st.sampled_from("explain neighbors memory lam knn_temperature k x".split()), ANY, max_size=3
    ),
    "stop": st.sampled_from(["a", ["a", "b"], [""], [1], ["a"] * 40]),
    "stream": st.booleans(),
    "logprobs": st.sampled_from([True, 0, 5, 21, -1]),
}
BODIES = st.fixed_dictionaries(
    {"max_tokens": MOSTLY["max_tokens"] | st.just(1)},
    optional={name: (MOSTLY[name] | ANY if name in MOSTLY else ANY) for name in NAMES if name != "max_tokens"},
)


def check(response):
    assert response.status_code < 500 and "Traceback" not in response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(body=BODIES | ANY)
def test_any_json_is_served_or_refused(http, path, body):
    content = json.dumps(body, default=str).encode()
    check(http.post(path, content=content, headers={"content-type": "application/json"}))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60), path=st.sampled_from(PATHS))
def test_any_bytes_are_refused(http, path, content):
    response = http.post(path, content=content, headers={"content-type": "application/json"})
    check(response)
    assert response.status_code >= 400


def test_deeply_nested_json_is_refused(http):
    for content in (
        b"[" * 20_000,
        b'{"a":' * 6_000 + b"1" + b"}" * 6_000,
        b'{"prompt": "a", "x": ' + b"9" * 9_000 + b"}",
    ):
        check(http.post(PATHS[0], content=content, headers={"content-type": "application/json"}))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.text(max_size=12),
    number=st.integers() | st.text(max_size=5),
    query=st.dictionaries(
        st.sampled_from(["query", "offset", "limit"]), st.integers() | st.text(max_size=9), max_size=3
    ),
)
def test_any_address_is_served_or_refused(http, name, number, query):
    from urllib.parse import quote

    safe = quote(name.encode("utf-8", "replace"), safe="")
    last = quote(str(number).encode("utf-8", "replace"), safe="")
    check(http.get(f"/v1/nearlm/stores/{safe}/documents/{last}"))
    check(http.get(f"/v1/nearlm/stores/mem/documents/{last}"))
    check(
        http.get(
            "/v1/nearlm/stores/mem/documents", params={k: str(v).encode("utf-8", "replace") for k, v in query.items()}
        )
    )
    check(http.get(f"/v1/models/{safe}"))
