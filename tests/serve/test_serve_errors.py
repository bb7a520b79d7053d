"""Errors as OpenAI's clients read them."""

import json

import pytest

from nearlm.serve.errors import APIError, refuse


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (404, "not_found_error")]
)
def test_the_type_follows_the_status(status, kind):
    assert APIError(status, "no", "n", "c").to_json() == {
        "error": {"message": "no", "type": kind, "param": "n", "code": "c"}
    }


def test_clients_are_told_when_to_come_again():
    assert APIError(429, "").headers == APIError(503, "").headers == {"Retry-After": "1"}
    assert "WWW-Authenticate" in APIError(401, "").headers


def test_any_message_can_be_sent():
    assert "a" in json.dumps(refuse("a\ud800").to_json(), ensure_ascii=False).encode().decode()
