"""Commands for memories beyond one machine: what they take, and an index served by several."""

from typing import Annotated

from nearlm.base import OptionError, parse_size
from nearlm.cli.app import as_flags
from nearlm.cli.help import CLUSTER, MODEL, RECORDS, SEARCH
from nearlm.cli.options import PLAIN, IndexName, Shown, Store, flat, option
from nearlm.cluster import AUTO, ServeOptions, joined
from nearlm.store import DEFAULT

ONE = ServeOptions()


def plan_command(
    *,
    records: Annotated[str, option(RECORDS, "Tokens of text, one record each, e.g. 1e9, 250M or 2000000.")],
    dim: Annotated[int | None, option(RECORDS, "Dimensions of a key. [default: the model's]")] = None,
    model: Annotated[str | None, option(MODEL, "Folder or hub id of the model, for the time of the build.")] = None,
    ram: Annotated[str | None, option(SEARCH, "RAM of each machine, e.g. 64GB. [default: enough]")] = None,
    workers: Annotated[int, option(CLUSTER, "Machines or GPUs that build and search.")] = 1,
    flops: Annotated[
        str | None, option(CLUSTER, "What each computes in a second, e.g. 80T. [default: as two CPU cores did]")
    ] = None,
    output: Shown = PLAIN,
) -> None:
    """Say what a memory of some size will take."""
    from nearlm.cluster.forecast import forecast, read_count

    count = read_count("records", records)
    within = None if ram is None else parse_size("ram", ram)
    speed = None if flops is None else float(read_count("flops", flops))
    told = forecast(count, dim, model, ram=within, workers=workers, flops=speed)
    if output.as_json:
        output.tell(told)
    else:
        print(as_flags(told.table()))


def serve_index_command(
    store: Store,
    /,
    *,
    options: Annotated[ServeOptions, flat(CLUSTER)] = ONE,
    ray: Annotated[str, option(CLUSTER, "Ray cluster to serve on: HOST:PORT, or auto.")] = AUTO,
    index: IndexName = DEFAULT,
    stop: Annotated[bool, option(CLUSTER, "Stop serving it.")] = False,
    output: Shown = PLAIN,
) -> None:
    """Serve an index in parts on a Ray cluster, or stop that."""
    from nearlm.cluster.serving import serve_index, stop_index

    if stop and options != ONE:
        raise OptionError("`stop` takes no other options of serving; leave them out")
    with joined(ray) as session:
        if stop:
            output.show({"stopped": stop_index(session, store, index=index, reporter=output.reporter)})
            return
        served = serve_index(session, store, options, index=index, reporter=output.reporter)
        output.show({"index": index, "parts": served.parts, "replicas": served.replicas})
