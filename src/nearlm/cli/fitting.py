"""The command that makes a memory from a text in one go."""

from typing import Annotated

from cyclopts import Parameter

from nearlm.base import to_json
from nearlm.cli.help import RECORDS, SEARCH, STORE, TEXT
from nearlm.cli.options import OWN_MODEL, PLAIN, Model, Out, Place, Restart, Shown, Source, flat, option
from nearlm.cli.stores import USUAL, BuildFlags
from nearlm.store import BuildOptions

Texts = tuple[Place, ...]


def fit_command(
    source: Source,
    *,
    out: Out,
    valid: Annotated[Texts, option(TEXT, "A text of your own to tune on. [default: documents that are held out]")] = (),
    test: Annotated[Texts, option(TEXT, "A text of your own to measure on. [default: documents held out]")] = (),
    minutes: Annotated[float | None, option(TEXT, "How long it may take, about. [default: until all is read]")] = None,
    overhead: Annotated[
        float | None, option(SEARCH, "What it may take of a token's time, as a share of the LM's. [default: 0.02]")
    ] = None,
    budget: Annotated[
        float | None, option(SEARCH, "Instead: the fastest within so much perplexity of the vanilla kNN-LM.")
    ] = None,
    store_all: Annotated[
        bool, Parameter(name="--all", group=STORE, help="Add what was held out to the memory in the end.")
    ] = False,
    restart: Restart = False,
    spec: Model = OWN_MODEL,
    options: Annotated[BuildFlags, flat(RECORDS)] = USUAL,
    output: Shown = PLAIN,
) -> None:
    """Make a memory of a text, ready to use."""
    from nearlm.optimizer import fit

    found = fit(
        spec if spec.model is not None else None,
        source,
        out,
        BuildOptions(**vars(options)),
        valid=tuple(map(str, valid)) or None,
        test=tuple(map(str, test)) or None,
        minutes=minutes,
        overhead=overhead,
        budget=budget,
        store_all=store_all,
        restart=restart,
        reporter=output.reporter,
    )
    commands = found.commands(out)
    if output.as_json:
        output.show({**to_json(found), "commands": commands})
    else:
        output.tell(found)
        print("\nGo on with:", *commands, sep="\n  ")
