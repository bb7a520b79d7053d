"""An index on Ray: trained here, its records assigned and encoded by tasks, its lists put together here."""

from collections.abc import Sequence
from typing import Any

import faiss
import numba

from nearlm import __version__
from nearlm.base import QUIET, Advance, Reporter
from nearlm.cluster.session import ClusterError, ClusterOptions, joined, on_a_worker, reason
from nearlm.search import IndexInfo, build_index
from nearlm.search.parts import Part
from nearlm.store import DEFAULT, AnyStore, Datastore

_RETRIES = 3  # of a part whose worker dies
_AT_ONCE = 2  # parts that are asked for, for each CPU


def index_on_ray(
    store: AnyStore,
    factory: str | None = None,
    cluster: ClusterOptions = ClusterOptions(),
    *,
    name: str = DEFAULT,
    nprobe: int | None = None,
    bytes: int | None = None,
    ram: int | None = None,
    reporter: Reporter = QUIET,
) -> IndexInfo:
    """Make or finish an index as `build_index` does, with the same files; workers read the keys and write lists.

    Each of `cluster.workers` is a task at a time; by default there are as many as the cluster has CPUs. The store must
    be on a file system that all machines share. Kinds without lists, e.g. `flat`, are filled here.
    """
    opened = Datastore.open(store)
    with joined(cluster.address) as ray:

        def fill(parts: Sequence[Part], advance: Advance) -> None:
            fill_parts(ray, parts, advance, cluster.workers)

        given = {"name": name, "nprobe": nprobe, "bytes": bytes, "ram": ram}
        return build_index(opened, factory, fill_parts=fill, reporter=reporter, **given)  # type: ignore[arg-type]


def fill_parts(ray: Any, parts: Sequence[Part], advance: Advance, workers: int | None = None) -> None:
    """Fill parts by tasks of one CPU each, some at a time; Ray repeats those whose worker dies."""
    task = ray.remote(num_cpus=1, max_retries=_RETRIES, scheduling_strategy="SPREAD")(fill_one)
    most = workers or _AT_ONCE * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = list(reversed(parts))
    running: dict[Any, Part] = {}
    while left or running:
        while left and len(running) < most:
            part = left.pop()
            running[task.remote(part, __version__)] = part
        ready, _ = ray.wait(list(running))
        for reference in ready:
            part = running.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayError as error:
                raise reason(error) from None
            if not part.finished:
                raise ClusterError(f"{part.folder} was written by a worker, but is not here; share the store's folder")
            advance(part.stop - part.first)


def fill_one(part: Part, version: str) -> None:
    """Fill a part, on a worker."""
    with on_a_worker():
        if version != __version__:
            raise ClusterError(f"nearlm is {__version__} here and {version} at the driver")
        faiss.omp_set_num_threads(1)
        numba.set_num_threads(1)
        part.fill()
