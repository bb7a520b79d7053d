"""Who may talk to the server, and how much: every request passes here first."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from nearlm.serve.errors import APIError
from nearlm.serve.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN = {"/", "/health", "/favicon.ico"}  # what needs no key: the page asks for one itself
_BODY_SECONDS = 30.0
MOST_REQUESTS = 256  # at a time, whatever they ask for
_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


@dataclass(frozen=True)
class Guard:
    """Middleware that checks host, origin, key and size of requests, and counts them."""

    app: Any
    metrics: Metrics
    max_body_bytes: int
    key: str | None = None
    any_host: bool = False
    """Whether names other than the loopback's are right: behind a key, a name proves nothing anyway."""
    _open: set[int] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._open.add(id(scope))
        try:
            await self._handle(scope, receive, _Sender(send, self.metrics, scope))
        finally:
            self._open.discard(id(scope))

    async def _handle(self, scope: Scope, receive: Receive, sender: "_Sender") -> None:
        try:
            self._check(scope)
            body = await self._body(scope, receive)
        except APIError as error:
            await sender.refuse(error)
            return
        await self.app(scope, _replay(body, receive), sender.send)

    def _check(self, scope: Scope) -> None:
        if len(self._open) > MOST_REQUESTS:
            raise APIError(503, f"{MOST_REQUESTS} requests are open already; try again later", code="too_many_requests")
        headers = {name.lower(): value for name, value in scope["headers"]}
        host = _host(headers.get(b"host", b""))
        if not self.any_host and host not in LOOPBACK:
            raise APIError(403, "the Host header names no loopback address; use http://127.0.0.1", code="wrong_host")
        origin = headers.get(b"origin")
        if origin is not None and origin != b"null" and _host_of_url(origin) != host:
            raise APIError(403, "requests from pages of other origins are refused", code="wrong_origin")
        if origin == b"null":
            raise APIError(403, "requests from pages of unknown origin are refused", code="wrong_origin")
        path = scope["path"]
        if self.key is not None and path not in _OPEN and not path.startswith("/assets/"):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.key.encode()):
                raise APIError(
                    401, "the API key is missing or wrong; send Authorization: Bearer KEY", code="invalid_api_key"
                )
        if scope["method"] == "POST" and not headers.get(b"content-type", b"").startswith(b"application/json"):
            raise APIError(415, "expected a body of Content-Type application/json", code="wrong_content_type")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the whole body, as long as it is within the limit."""
        if scope["method"] in ("GET", "HEAD"):
            return b""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise APIError(400, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.max_body_bytes:
                        what = f"the body has more than {self.max_body_bytes} bytes, which the server allows"
                        raise APIError(413, what, code="body_too_large")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise APIError(408, f"the body did not come within {_BODY_SECONDS:g} s", code="body_too_slow") from None


@dataclass
class _Sender:
    """Sends a response with our headers, and counts it."""

    out: Send
    metrics: Metrics
    scope: Scope

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass a part of the response on."""
        if message["type"] == "http.response.start":
            given = {name for name, _ in message.get("headers", [])}
            more = [pair for pair in _HEADERS if pair[0] not in given]
            message = {**message, "headers": [*message.get("headers", []), *more]}
            route = self.scope.get("route")
            self.metrics.request(getattr(route, "path", "other"), message["status"])
        await self.out(message)

    async def refuse(self, error: APIError) -> None:
        """Send an error."""
        body = json.dumps(error.to_json()).encode()
        headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read again, and then what the client does."""
    waiting = [body]

    async def again() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _host(header: bytes) -> str:
    return _host_of_url(b"//" + header)


def _host_of_url(url: bytes) -> str:
    try:
        return (urlsplit(url.decode("latin-1")).hostname or "").lower()
    except ValueError:
        return ""
