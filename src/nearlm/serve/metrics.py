"""What a server counts, for Prometheus."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """Counters of one server; those of several servers in one process are apart."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        where: Any = {"registry": self._registry}
        self._requests = Counter("nearlm_requests", "Requests by path and status", ["path", "status"], **where)
        self._tokens = Counter("nearlm_tokens", "Tokens read and written", ["kind"], **where)
        self._waiting = Gauge("nearlm_waiting", "Continuations that wait for their turn", ["model"], **where)
        self._running = Gauge("nearlm_running", "Continuations that are computed together", ["model"], **where)
        self._first = Histogram("nearlm_first_token_seconds", "Time to the first token", buckets=_SECONDS, **where)
        self._step = Histogram("nearlm_step_seconds", "Time of one step", buckets=_SECONDS, **where)

    def request(self, path: str, status: int) -> None:
        """Count a request that was answered."""
        self._requests.labels(path, str(status)).inc()

    def count(self, model: str, *, waiting: int, running: int) -> None:
        """Note how many continuations there are."""
        self._waiting.labels(model).set(waiting)
        self._running.labels(model).set(running)

    def prompt_tokens(self, count: int) -> None:
        """Count tokens that were read."""
        self._tokens.labels("prompt").inc(count)

    def new_tokens(self, count: int) -> None:
        """Count tokens that were written."""
        self._tokens.labels("completion").inc(count)

    def drafted_tokens(self, tried: int, accepted: int) -> None:
        """Count tokens that were drafted, and those of them that were written."""
        self._tokens.labels("drafted").inc(tried)
        self._tokens.labels("accepted").inc(accepted)

    def first_token(self, seconds: float) -> None:
        """Note how long somebody has waited for the first token."""
        self._first.observe(seconds)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time a step."""
        started = time.perf_counter()
        yield
        self._step.observe(time.perf_counter() - started)

    def text(self) -> bytes:
        """Return all as Prometheus reads it."""
        return generate_latest(self._registry)
