"""An index served by actors on Ray that outlive the command which started them: starting, finding, stopping."""

import importlib
import re
from dataclasses import dataclass, replace
from typing import Any

from nearlm import __version__
from nearlm.base import QUIET, Ints, OptionError, Reporter, canonical_hash, size
from nearlm.cluster.list_part import ListPart, Place, cut_lists
from nearlm.cluster.session import NAMESPACE, ClusterError, ServeOptions, reason
from nearlm.search import open_index, read_index_info
from nearlm.search.kinds import RECORD_BYTES
from nearlm.store import DEFAULT, AnyStore, Datastore

PATIENCE = 30.0  # seconds after which is said what is waited for
_PATTERN = re.compile(r"index-([0-9a-f]{16})-part([0-9]+)of([0-9]+)-replica([0-9]+)of([0-9]+)")


@dataclass(frozen=True)
class Served:
    """An index that is served: which it is, in how many parts, and how often each."""

    key: str
    parts: int
    replicas: int

    def name_of(self, part: int, replica: int) -> str:
        """Return the name of an actor."""
        return f"index-{self.key}-part{part + 1}of{self.parts}-replica{replica + 1}of{self.replicas}"

    @property
    def names(self) -> list[str]:
        """The names of all actors."""
        return [self.name_of(part, one) for part in range(self.parts) for one in range(self.replicas)]


def find_served(ray: Any, store: Datastore, name: str) -> Served | None:
    """Return how an index is served on this Ray, None if it is not, or not all of it was started."""
    key = _key(store, name)
    there = set(_names(ray))
    found = {(int(match[3]), int(match[5])) for match in map(_PATTERN.fullmatch, there) if match and match[1] == key}
    for parts, replicas in sorted(found):
        served = Served(key, parts, replicas)
        if there.issuperset(served.names):
            return served
    return None


def serve_index(
    ray: Any,
    store: AnyStore,
    options: ServeOptions = ServeOptions(),
    *,
    index: str = DEFAULT,
    reporter: Reporter = QUIET,
) -> Served:
    """Serve an index in parts until `stop_index`; Ray restarts an actor that dies, which reads its files again.

    The store must lie at the same path on every machine. Its index is read whole and compared with its checksums here.
    """
    opened = Datastore.open(store)
    opened.refuse_forgotten("which a served index would find")
    found, info = open_index(opened, index)
    if found.scan is None:
        raise OptionError(f"index {index!r} ({found.spec.factory}) cannot be served; make one with `factory='auto'`")
    served = Served(_key(opened, index), options.shards, options.replicas)
    there = find_served(ray, opened, index)
    if there is not None and there != served:
        raise ClusterError(f"index {index!r} is served in {there.parts} parts, {there.replicas} times; stop that first")
    offsets = found.scan.lists.offsets
    if options.shards >= len(offsets):
        raise OptionError(f"`shards` is {options.shards}, but the index has {len(offsets) - 1} lists only")
    record = found.scan.lists.codes.shape[1] + RECORD_BYTES
    path = str(opened.path.resolve())
    wanted = Place(path, index, info.manifest, 0, 0, max(1, int(options.cpus)), __version__)
    waited = _start_all(ray, served, wanted, offsets, options.cpus, record)
    _wait(ray, waited, options, opened, index, reporter)
    each = size(int(offsets[-1]) * record / options.shards)
    shown = f"{len(opened):,} records in {options.shards} parts of about {each}"
    reporter.say(f"index {index!r} of {opened.path} is served: {shown}, each {options.replicas} times")
    return served


def _start_all(ray: Any, served: Served, wanted: Place, offsets: Ints, cpus: float, record: int) -> list[Any]:
    """Start the actors of all parts, and let them read their lists, of so many bytes a record."""
    bounds = cut_lists(offsets, served.parts)
    waited = []
    for part in range(served.parts):
        first, stop = bounds[part : part + 2].tolist()
        needs = int(offsets[stop] - offsets[first]) * record
        for one in range(served.replicas):
            place = replace(wanted, first=first, stop=stop)
            actor = _start(ray, served.name_of(part, one), place, cpus, needs)
            waited.append(actor.load.remote())
    return waited


def stop_index(ray: Any, store: AnyStore, *, index: str = DEFAULT, reporter: Reporter = QUIET) -> int:
    """Stop all actors of a served index, also of one that was not started whole; return how many there were."""
    key = _key(Datastore.open(store), index)
    names = [name for name in _names(ray) if (match := _PATTERN.fullmatch(name)) and match[1] == key]
    for name in names:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
    reporter.say(f"stopped {len(names)} actors of index {index!r}")
    return len(names)


def _start(ray: Any, name: str, place: Place, cpus: float, memory: int) -> Any:
    """Start an actor that outlives this process, or find it; the same is asked of Ray for one that is restarted."""
    kind = ray.remote(ListPart)
    how = {"max_restarts": -1, "max_task_retries": 0, "lifetime": "detached", "scheduling_strategy": "SPREAD"}
    return kind.options(name=name, namespace=NAMESPACE, get_if_exists=True, num_cpus=cpus, memory=memory, **how).remote(
        place
    )


def _wait(ray: Any, waited: list[Any], options: ServeOptions, store: Datastore, index: str, reporter: Reporter) -> None:
    """Wait until all actors have read their files; one that cannot stops them all."""
    try:
        _, left = ray.wait(waited, num_returns=len(waited), timeout=PATIENCE)
        if left:
            there = ray.cluster_resources().get("CPU", 0)
            needs = f"{len(waited)} actors of {options.cpus:g} CPUs"
            reporter.say(f"waiting for {len(left)} of {needs}; the cluster has {there:g} CPUs in all")
        ray.get(waited)
    except ray.exceptions.RayError as error:
        stop_index(ray, store, index=index)
        raise reason(error) from None


def _key(store: Datastore, name: str) -> str:
    """Return what tells a served index from others: its files, and the state of its store."""
    info = read_index_info(store, name)
    return canonical_hash([info.manifest, sorted(file.sha256 for file in info.files.values())])[:16]


def _names(ray: Any) -> list[str]:
    """List the actors of nearlm that have a name."""
    util = importlib.import_module("ray.util")
    return [one["name"] for one in util.list_named_actors(all_namespaces=True) if one["namespace"] == NAMESPACE]
