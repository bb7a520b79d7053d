"""Who may talk to the server."""

import socket

import httpx
import pytest
from live import run_server

from nearlm.serve import guard

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def locked(stores, served_lm):
    found = run_server(stores[:1], served_lm, key=KEY)
    yield found
    found.stop()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:8000"}, 403),
        ({"host": "localhost:1"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9"}, 200),
    ],
)
def test_names_and_origins_of_others_are_refused(http, headers, status):
    response = http.get("/v1/models", headers=headers)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_a_key_is_needed_but_for_page_and_health(locked):
    url = locked.url
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/").status_code == 200
    for path in ("/v1/models", "/metrics", "/openapi.json", "/v1/nearlm/stores"):
        assert httpx.get(url + path).status_code == 401
        assert httpx.get(url + path, headers={"authorization": f"Bearer {KEY}x"}).status_code == 401
        assert httpx.get(url + path, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    error = httpx.get(f"{url}/v1/models").json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_large_bodies_are_refused_also_without_a_length(http):
    large = b"x" * 50_000
    headers = {"content-type": "application/json"}
    assert http.post("/v1/completions", content=large, headers=headers).status_code == 413
    assert http.post("/v1/completions", content=iter([large[:30_000]] * 2), headers=headers).status_code == 413


def test_other_content_types_are_refused(http):
    response = http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert response.status_code == 415


def test_no_path_reaches_the_file_system(running):
    port = int(running.url.rsplit(":", 1)[1])
    for path in (
        "/assets/../../../../etc/passwd",
        "/assets/%2e%2e%2fapp.py",
        "/v1/nearlm/stores/..%2f..%2fetc/documents",
    ):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda raw=raw: raw.recv(4096), b""))
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
        assert b"root:" not in answer


def test_more_requests_than_are_handled_at_a_time_are_refused(http, running, monkeypatch):
    monkeypatch.setattr(guard, "MOST_REQUESTS", 0)
    response = http.get("/health")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "too_many_requests")
    assert response.headers["retry-after"]
    monkeypatch.undo()
    assert http.get("/health").status_code == 200
