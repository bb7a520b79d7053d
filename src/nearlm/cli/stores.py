"""Commands that make stores from text, and look into them."""

import dataclasses
from typing import Annotated

from cyclopts import Parameter

from nearlm.base import Reporter, size
from nearlm.cli.options import FLAT, OWN_MODEL, AsJson, Model, Out, Quiet, Restart, Source, Store, model_spec, show
from nearlm.store import BuildOptions, Datastore


def build_command(
    *,
    source: Source,
    out: Out,
    spec: Model = OWN_MODEL,
    options: Annotated[BuildOptions, FLAT] = BuildOptions(),
    append: Annotated[bool, Parameter(help="Add the text to a finished store.", show_default=False)] = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Run a model over a text and keep (context vector, token) records."""
    from nearlm.store.builder import build

    model = spec if spec.model is not None else None
    if model is None and append:
        store = Datastore.open(out)
        model = model_spec(store, spec)
        if spec.dtype == "auto":
            model = dataclasses.replace(model, dtype=store.manifest.model.dtype)
    build(model, source, out, options, append=append, restart=restart, reporter=Reporter(quiet))


def info_command(
    store: Store,
    /,
    *,
    record: Annotated[int | None, Parameter(help="Show where this record comes from.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a store holds, or trace one of its records to its text."""
    opened = Datastore.open(store)
    show(opened.summary() if record is None else opened.trace(record), as_json)


def verify_command(store: Store, /) -> None:
    """Read every byte of a store and name the first damaged file."""
    from nearlm.mixing import verify_gate, verify_ngrams
    from nearlm.search import verify_index
    from nearlm.shrink import verify_neighbors

    opened = Datastore.open(store)
    with Reporter().bar("verifying", opened.bytes, "bytes") as advance:
        opened.verify(advance)
    for name in opened.indexes:
        verify_index(opened, name)
        verify_neighbors(opened, name)
    verify_ngrams(opened)
    for name in opened.gates:
        verify_gate(opened, name)
    print(f"{store}: {len(opened.manifest.files)} files, {size(opened.bytes)}, all as they were written")
