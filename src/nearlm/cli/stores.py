"""Commands that make stores from text, and look into them."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from nearlm.base import check_at_least, size
from nearlm.cli.help import CLUSTER, RECORDS, STORE
from nearlm.cli.options import (
    ALONE,
    OWN_MODEL,
    PLAIN,
    Model,
    Out,
    Restart,
    Shown,
    Source,
    Store,
    Workers,
    flat,
    model_spec,
    option,
)
from nearlm.store import BuildOptions, Datastore, still_held


@dataclass(frozen=True)
class BuildFlags(BuildOptions):
    """Options of a build, of which BOS can be switched on or off."""

    bos: Annotated[bool | None, Parameter(negative="--no-bos")] = None
    """Begin each document with the BOS token, or do not. [default: as the tokenizer does]"""


USUAL = BuildFlags()


def build_command(
    source: Source,
    *,
    out: Out,
    spec: Model = OWN_MODEL,
    options: Annotated[BuildFlags, flat(RECORDS)] = USUAL,
    append: Annotated[bool, option(STORE, "Add the text to a finished store.")] = False,
    restart: Restart = False,
    cluster: Workers = ALONE,
    threads: Annotated[
        int | None, option(CLUSTER, "Threads that compute, on Ray those of each worker. [default: all cores, shared]")
    ] = None,
    output: Shown = PLAIN,
) -> None:
    """Run a model over a text and keep what follows each context."""
    from nearlm.mixing import build_text_first, catch_up

    check_at_least(1, threads=threads)
    model = spec if spec.model is not None else None
    if model is None and append:
        store = Datastore.open(out)
        model = model_spec(store, spec)
        if spec.dtype == "auto":
            model = dataclasses.replace(model, dtype=store.manifest.model.dtype)
    chosen = BuildOptions(**vars(options))
    how: dict[str, Any] = {"restart": restart, "threads": threads, "reporter": output.reporter}
    if cluster.wanted:
        from nearlm.cluster.building import build_on_ray

        built = build_on_ray(model, source, out, chosen, cluster, append=append, **how)
    elif append:
        from nearlm.store.builder import build

        built = build(model, source, out, chosen, append=True, **how)
    else:
        built = build_text_first(model, source, out, chosen, **how)
    catch_up(built, output.reporter)
    if output.as_json:
        output.show(built.summary())


def info_command(
    store: Store,
    /,
    *,
    record: Annotated[int | None, option(STORE, "Show which text record N comes from.")] = None,
    output: Shown = PLAIN,
) -> None:
    """Show what a store holds, or trace one of its records to its text."""
    opened = Datastore.open(store)
    if record is not None:
        output.show(opened.trace(record))
        return
    held = still_held(opened)
    output.show({**opened.summary(), **({"no_longer_in_its_parent": held} if held else {})})


def verify_command(store: Store, /, *, output: Shown = PLAIN) -> None:
    """Read every byte of a store and name the first damaged file."""
    from nearlm.mixing import verify_gate, verify_infinigram, verify_mixture, verify_ngrams
    from nearlm.optimizer import verify_fit
    from nearlm.search import read_settings, verify_index
    from nearlm.shrink import verify_neighbors

    opened = Datastore.open(store)
    with output.reporter.bar("verifying", opened.bytes, "bytes") as advance:
        opened.verify(advance)
    for name in opened.indexes:
        verify_index(opened, name)
        if read_settings(opened, name) is None:
            output.reporter.say(f"index {name!r} is not tuned: it is used with a usual λ and T")
        verify_neighbors(opened, name)
    verify_ngrams(opened)
    verify_infinigram(opened)
    for name in opened.gates:
        verify_gate(opened, name)
    for name in opened.mixtures:
        verify_mixture(opened, name)
    verify_fit(opened.layout.fit)
    held = still_held(opened)
    if held:
        names = ", ".join(held[:3]) + (f" and {len(held) - 3:,} more" if len(held) > 3 else "")
        output.reporter.say(f"warning: {store} holds documents that its parent has forgotten: {names}; make it again")
    files = len(opened.manifest.files)
    if output.as_json:
        checked = {"indexes": list(opened.indexes), "gates": list(opened.gates)}
        output.show({"store": str(store), "files": files, "bytes": opened.bytes, **checked})
    else:
        print(f"{store}: {files} files, {size(opened.bytes)}, all as they were written")
