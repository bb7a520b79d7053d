"""Commands that make smaller stores, and indexes."""

from typing import Annotated, Any

from nearlm.base import parse_size, to_json
from nearlm.cli.help import RECORDS, SEARCH
from nearlm.cli.options import ALONE, PLAIN, IndexName, Nprobe, Out, Restart, Shown, Store, Workers, flat, option
from nearlm.search import build_index
from nearlm.shrink import PruneOptions, ReduceOptions, prune_store, reduce_store
from nearlm.store import DEFAULT, result_of


def reduce_command(
    store: Store,
    /,
    *,
    options: Annotated[ReduceOptions, flat(RECORDS)],
    out: Out,
    restart: Restart = False,
    output: Shown = PLAIN,
) -> None:
    """Make a store with narrower keys, by PCA and a random rotation."""
    output.show(result_of(reduce_store(store, options, out, restart=restart, reporter=output.reporter)))


def prune_command(
    store: Store,
    /,
    *,
    options: Annotated[PruneOptions, flat(RECORDS)],
    out: Out,
    restart: Restart = False,
    output: Shown = PLAIN,
) -> None:
    """Make a store with fewer records, weighted by what they stand for."""
    output.show(result_of(prune_store(store, options, out, restart=restart, reporter=output.reporter)))


def index_command(
    store: Store,
    /,
    *,
    factory: Annotated[
        str | None,
        option(SEARCH, "Kind of index: auto, paper, flat, or a FAISS factory string. [default: auto, or as it is]"),
    ] = None,
    nprobe: Nprobe = None,
    bytes: Annotated[
        int | None, option(SEARCH, "For auto: most bytes of a record's code, e.g. 32, 64 or 128. [default: 96]")
    ] = None,
    ram: Annotated[
        str | None, option(SEARCH, "For auto: most bytes of the whole index, e.g. 2GB. [default: any]")
    ] = None,
    index: IndexName = DEFAULT,
    cluster: Workers = ALONE,
    output: Shown = PLAIN,
) -> None:
    """Make a search index over a store's keys, or bring it up to date."""
    within = None if ram is None else parse_size("ram", ram)
    how: dict[str, Any] = {"name": index, "nprobe": nprobe, "bytes": bytes, "ram": within, "reporter": output.reporter}
    if cluster.wanted:
        from nearlm.cluster.indexing import index_on_ray

        info = index_on_ray(store, factory, cluster, **how)
    else:
        info = build_index(store, factory, **how)
    output.show({name: value for name, value in to_json(info).items() if name not in ("files", "shards", "manifest")})
