"""The server itself: where it listens, and how it ends."""

import ipaddress
import signal
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn

from nearlm.base import QUIET, OptionError, Reporter
from nearlm.base.threads import apart
from nearlm.serve.app import make_app
from nearlm.serve.catalog import Catalog
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.store import AnyStore

_SHORTEST_KEY = 16
GRACE = 8  # seconds that running requests get after SIGTERM
_CONNECTIONS = 512
LIMITS = Limits()


class Server(uvicorn.Server):
    """uvicorn, whose engines take no more tasks from the moment it is told to end."""

    catalog: Catalog

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End when running requests are done; those that take too long are told so before the connections close."""
        for engine in self.catalog.engines:
            engine.drain()
            threading.Thread(target=engine.close, args=(GRACE - 1.0,), daemon=True).start()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(
    stores: Sequence[AnyStore],
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    limits: Limits = LIMITS,
    *,
    draft: bool = True,
    reporter: Reporter = QUIET,
    **loading: Any,
) -> None:
    """Serve stores over HTTP until SIGTERM or Ctrl-C.

    Args:
        stores: Folders of stores, `cache:NAME`, or open stores; the first is the default.
        host: Where to listen; anything but the loopback needs a key.
        port: Where to listen, 0 for any that is free.
        key: What clients must send as `Authorization: Bearer KEY`.
        limits: What requests may ask for.
        draft: Let the stores' texts and what was read draft tokens, for fewer passes of the model.
        reporter: Whom to tell where it listens.
        loading: How models are loaded (`device`, `dtype`, `trust_remote_code`).
    """
    check_host(host, key)
    bound = listen(host, port)
    metrics = Metrics()
    catalog = apart(lambda: Catalog.open(stores, limits, metrics, draft=draft, **loading))
    server = make_server(catalog, limits, metrics, key, any_host=not is_loopback(host))
    for engine in catalog.engines:
        engine.start()
    shown = f"[{host}]" if ":" in host else host
    names = ", ".join(catalog.names)
    reporter.say(f"serving {names} at http://{shown}:{bound.getsockname()[1]} (Ctrl-C ends)")
    try:
        server.run([bound])
    finally:
        for engine in catalog.engines:
            engine.close(1.0)


def make_server(
    catalog: Catalog, limits: Limits, metrics: Metrics, key: str | None = None, *, any_host: bool = False
) -> Server:
    """Make a server that is not yet running."""
    app = make_app(catalog, limits, metrics, key, any_host=any_host)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=60,
        limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=1 << 16,
        http="h11",
    )
    server = Server(config)
    server.catalog = catalog
    return server


def read_key(path: Path) -> str:
    """Read an API key from a file of one line."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeError) as error:
        raise OptionError(f"`api_key_file` {path} cannot be read ({error}); expected a file of one line") from None
    if len(key) < _SHORTEST_KEY or not key.isascii() or len(key.split()) != 1:
        wanted = f"one line of at least {_SHORTEST_KEY} ASCII characters without spaces"
        raise OptionError(f"`api_key_file` {path} holds no good key; expected {wanted}")
    return key


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str, key: str | None) -> None:
    """Refuse to listen where others can connect, unless there is a key."""
    if key is None and not is_loopback(host):
        raise OptionError(f"`host` is {host}, which others can reach; give a key with `api_key_file`, or use 127.0.0.1")


def listen(host: str, port: int) -> socket.socket:
    """Take the port before the models are loaded, so that one that is taken is noticed at once."""
    if not 0 <= port < 1 << 16:
        raise OptionError(f"`port` is {port}, expected 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        raise OptionError(f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another") from None
    return bound
