"""Commands that edit a store which is in use: add text, forget documents, take them off the disk."""

import dataclasses
from typing import Annotated

from nearlm.base import printable, to_json
from nearlm.cli.help import STORE
from nearlm.cli.options import OWN_MODEL, PLAIN, Model, Restart, Shown, Source, Store, model_spec, option
from nearlm.store import Datastore


def add_command(
    store: Store,
    /,
    source: Source,
    *,
    spec: Model = OWN_MODEL,
    restart: Restart = False,
    output: Shown = PLAIN,
) -> None:
    """Add text to a store that is in use, with all that belongs to it."""
    from nearlm.mixing import add

    opened = Datastore.open(store)
    model = model_spec(opened, spec)
    if spec.dtype == "auto":
        model = dataclasses.replace(model, dtype=opened.manifest.model.dtype)
    made = add(opened, source, model, restart=restart, reporter=output.reporter)
    if output.as_json:
        output.show(made.summary())


def forget_command(
    store: Store,
    /,
    *,
    document: Annotated[str | None, option(STORE, "Name of a document, as info --record shows it.")] = None,
    source: Annotated[str | None, option(STORE, "All documents of the files whose names match.")] = None,
    matching: Annotated[str | None, option(STORE, "All documents whose text contains this regular expression.")] = None,
    dry_run: Annotated[bool, option(STORE, "Show what would go, and change nothing.")] = False,
    output: Shown = PLAIN,
) -> None:
    """Forget documents: no search, count or trace of text shows them any more."""
    from nearlm.mixing import forget

    chosen = {"document": document, "source": source, "matching": matching}
    gone = forget(store, **chosen, dry_run=dry_run, reporter=output.reporter)
    if output.as_json:
        output.show({"store": str(store), **to_json(gone)})
        return
    print(printable(str(gone)))
    if not dry_run:
        print(f"They are still on disk; to take them off it: nearlm compact {store}")


def compact_command(store: Store, /, *, output: Shown = PLAIN) -> None:
    """Take forgotten documents off the disk."""
    from nearlm.mixing import compact

    made = compact(store, reporter=output.reporter)
    if output.as_json:
        output.show(made.summary())
