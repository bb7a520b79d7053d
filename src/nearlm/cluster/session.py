"""Ray as nearlm uses it: where it is, joining it, and its errors as one line."""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nearlm.base import NearLMError, OptionError, check_at_least, import_extra

AUTO, LOCAL = "auto", "local"
NAMESPACE = "nearlm"  # of actors that have a name
_OBJECTS = 256 << 20  # bytes for what travels, in a Ray that is started here
_DETAIL = 200  # characters of somebody else's error


class ClusterError(NearLMError):
    """Ray cannot be reached, or what runs on it failed."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where on Ray the work is done, and by whom."""

    ray: str | None = None
    """Work on a Ray cluster: HOST:PORT, auto for the one that runs on this machine, or local to start one.
    [default: auto, or local with --workers alone]"""
    workers: int | None = None
    """Processes that work, each with a model of its own. [default: one for each GPU or machine]"""
    gpus_per_worker: float | None = None
    """GPUs that each of them has. [default: 1 if there are any]"""

    def __post_init__(self) -> None:
        check_at_least(1, workers=self.workers)
        check_at_least(0, gpus_per_worker=self.gpus_per_worker)
        if self.ray is not None and not is_address(self.ray):
            raise OptionError(f"`ray` is {self.ray!r}, expected HOST:PORT, {AUTO} or {LOCAL}")
        if self.gpus_per_worker is not None and not self.wanted:
            raise OptionError("`gpus_per_worker` is for work on Ray; add `workers` or `ray`")

    @property
    def wanted(self) -> bool:
        """Whether Ray is asked for."""
        return self.ray is not None or self.workers is not None

    @property
    def address(self) -> str:
        """Where Ray is; `workers` alone starts one on this machine."""
        return self.ray or LOCAL


@dataclass(frozen=True)
class SearchOn:
    """Where indexes are searched, if not in this process."""

    ray: str | None = None
    """Search on the Ray cluster at HOST:PORT (auto: the one that runs here), where `nearlm serve-index` serves the
    index."""
    allow_partial: bool = False
    """Go on without parts of the index that do not answer; it is said which share of the records was searched."""

    def __post_init__(self) -> None:
        if self.ray is not None and (self.ray == LOCAL or not is_address(self.ray)):
            raise OptionError(f"`ray` is {self.ray!r}, expected HOST:PORT or {AUTO}")
        if self.allow_partial and self.ray is None:
            raise OptionError("`allow_partial` is for an index that is served on Ray; add `ray`")


@dataclass(frozen=True)
class ServeOptions:
    """How an index is served."""

    shards: int = 1
    """Parts that the lists of the index are cut into."""
    replicas: int = 1
    """Actors that hold the same part: if one dies, another answers."""
    cpus: float = 1.0
    """CPUs that each actor has."""

    def __post_init__(self) -> None:
        check_at_least(1, shards=self.shards, replicas=self.replicas)
        check_at_least(0, cpus=self.cpus)


def is_address(text: str) -> bool:
    """Tell whether something can be the address of a Ray cluster."""
    return text in (AUTO, LOCAL) or re.fullmatch(r"[^\s/:]+:\d{1,5}", text) is not None


def import_ray() -> Any:
    """Import Ray without its telemetry; if it is missing, say which extra to install."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    return import_extra("ray", "working on Ray", "ray")


@contextlib.contextmanager
def joined(address: str) -> Iterator[Any]:
    """Join a Ray cluster, or start one here, and leave it in the end; one that was joined before is used as it is."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {"address": address}
    if address == LOCAL:
        own |= {"include_dashboard": False, "object_store_memory": _OBJECTS}
    with _silenced(ray):
        try:
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL, **own)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ClusterError(_unreachable(address)) from error
        try:
            yield ray
        finally:
            ray.shutdown()


def _unreachable(address: str) -> str:
    start = "start one with `ray start --head`, or use `ray='local'`"
    if address == AUTO:
        return f"no Ray cluster runs on this machine; {start}"
    return f"no Ray cluster answers at {address}, or this machine is no node of it; {start}"


@contextlib.contextmanager
def _silenced(ray: Any) -> Iterator[None]:
    """Keep Ray from printing to stdout what happens to nodes: stdout is for results, and we say it ourselves."""
    module = ray._private.worker
    printing = getattr(module, "print_to_stdstream", None)
    module.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        module.print_to_stdstream = printing


@contextlib.contextmanager
def on_a_worker() -> Iterator[None]:
    """Let an error of the user's say on which machine it happened, in a form that can travel."""
    where = f"(worker on {socket.gethostname()})"
    try:
        yield
    except NearLMError as error:
        raise ClusterError(f"{error} {where}") from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise ClusterError(f"{place}{error.strerror or error} {where}") from None


def reason(error: BaseException) -> NearLMError:
    """Return what went wrong on Ray as an error of one line: a worker's own, or the end of somebody else's."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, NearLMError):
        return cause
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    missing = next((line for line in lines if "ModuleNotFoundError: " in line), "")
    if missing:
        module = missing.rpartition("ModuleNotFoundError: ")[2]
        return ClusterError(f"a worker cannot start ({module}); install the same nearlm[ray] on every machine")
    kind = type(cause or error).__name__
    return ClusterError(f"a worker failed: {kind}: {(lines or [''])[-1][:_DETAIL]}")
