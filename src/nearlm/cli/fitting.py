"""The command that makes a memory from a text in one go."""

from typing import Annotated

from nearlm.base import printable, to_json
from nearlm.cli.help import FIT, RECORDS, TEXT
from nearlm.cli.options import OWN_MODEL, PLAIN, Model, Out, Place, Restart, Shown, Source, flat, option
from nearlm.cli.stores import USUAL, BuildFlags
from nearlm.optimizer import FitOptions, fit
from nearlm.store import BuildOptions

Texts = tuple[Place, ...]
_USUAL = FitOptions()


def fit_command(
    source: Source,
    *,
    out: Out,
    valid: Annotated[Texts, option(TEXT, "A text of your own to tune on. [default: documents that are held out]")] = (),
    test: Annotated[Texts, option(TEXT, "A text of your own to measure on. [default: documents held out]")] = (),
    options: Annotated[FitOptions, flat(FIT)] = _USUAL,
    restart: Restart = False,
    spec: Model = OWN_MODEL,
    records: Annotated[BuildFlags, flat(RECORDS)] = USUAL,
    output: Shown = PLAIN,
) -> None:
    """Make a memory of a text, ready to use."""
    own = {name: tuple(map(str, texts)) or None for name, texts in (("valid", valid), ("test", test))}
    model = spec if spec.model is not None else None
    how = BuildOptions(**vars(records))
    found = fit(model, source, out, options, how, **own, restart=restart, reporter=output.reporter)
    commands = found.commands(out)
    if output.as_json:
        output.show({**to_json(found), "commands": commands})
    else:
        output.tell(found)
        print("\nGo on with:", *map(printable, commands), sep="\n  ")
