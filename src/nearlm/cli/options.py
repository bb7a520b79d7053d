"""What commands have in common: options of their own, loading a store's model, and showing what was found."""

import os
import shutil
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Group, Parameter

from nearlm.base import Reporter, printable, to_json
from nearlm.cli.app import as_flags
from nearlm.cli.help import CLUSTER, MODEL, OUTPUT, SEARCH, STORE, TEXT
from nearlm.cluster import ClusterOptions, SearchOn
from nearlm.model import ModelSpec
from nearlm.store import Datastore, SearchSettings
from nearlm.text import TextSource

if TYPE_CHECKING:
    from nearlm.model.lm import LM


def flat(group: Group) -> Parameter:
    """Make the fields of a dataclass options of a group."""
    return Parameter(name="*", group=group)


def option(group: Group, text: str, **more: Any) -> Parameter:
    """Describe an option that is no field of a library's dataclass."""
    return Parameter(group=group, help=text, **more)


Place = str | Path  # a str as it was typed; Path lets a shell complete the names of files


@dataclass(frozen=True)
class PlacedText(TextSource):
    """A text whose files a shell can complete."""

    text: tuple[Place, ...]  # type: ignore[assignment]


Store = Annotated[Place, option(STORE, "Folder of a store, or cache:NAME.")]
More = Annotated[
    tuple[Place, ...],
    option(
        STORE,
        "Another store of the same model, to be used together with the first; may be repeated.",
        name="--store",
        consume_multiple=False,
    ),
]
Out = Annotated[Place, option(STORE, "Folder of the store to make, or cache:NAME.")]
Restart = Annotated[bool, option(STORE, "Throw away an unfinished run first.")]
Source = Annotated[PlacedText, flat(TEXT)]
Stride = Annotated[int | None, option(TEXT, "Tokens from window to window. [default: the window]")]
Model = Annotated[ModelSpec, flat(MODEL)]
Search = Annotated[SearchSettings, flat(SEARCH)]
IndexName = Annotated[str, option(SEARCH, "Which index of the store.")]
Nprobe = Annotated[int | None, option(SEARCH, "Lists of the index that a search looks at. [default: the index's]")]
Figure = Annotated[Place | None, option(OUTPUT, "Draw a figure into a .png, .svg or .pdf.")]
Workers = Annotated[ClusterOptions, flat(CLUSTER)]
Where = Annotated[SearchOn, flat(CLUSTER)]
OWN_MODEL = ModelSpec()
ALONE = ClusterOptions()
HERE = SearchOn()


def model_spec(store: Datastore, given: ModelSpec) -> ModelSpec:
    """Say how to load a store's model: from where it was, or from where it is now, but for what is given."""
    known = store.model_spec()
    if given.model is not None:
        known = replace(known, model=given.model, revision=None)
    wishes = {
        name: getattr(given, name)
        for name in ("revision", "adapter", "quantization")
        if getattr(given, name) is not None
    }
    loading = {name: getattr(given, name) for name in ("device", "dtype", "trust_remote_code", "weights")}
    return replace(known, **wishes, **loading)


def load_model(store: Datastore, given: ModelSpec) -> "LM":
    """Load the model of an open store."""
    from nearlm.store.model_files import load_lm

    return load_lm(store, model_spec(store, given))


class FlagReporter(Reporter):
    """Standard error, where parameters that the library names are flags."""

    def say(self, line: str) -> None:
        """Print one line."""
        super().say(as_flags(line))


@dataclass(frozen=True)
class Output:
    """How a command tells what it does and what it found."""

    quiet: Annotated[bool, Parameter(name=["--quiet", "-q"])] = False
    """Show no progress, only results and errors."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print what was found as one JSON object; progress goes to standard error."""
    debug: bool = False
    """Show the traceback of an error."""  # here for the help alone: `main` looks for it
    verify: Literal["first", "always", "never"] | None = None
    """When to compare files with their checksums: before their first use on this machine, always, or never.
    [default: NEARLM_VERIFY, or first]"""

    def __post_init__(self) -> None:
        if self.verify is not None:
            os.environ["NEARLM_VERIFY"] = self.verify

    @property
    def reporter(self) -> Reporter:
        """Whom to tell of the progress."""
        return FlagReporter(self.quiet)

    def tell(self, found: Any) -> None:
        """Print what was found, as its table or as JSON."""
        if self.as_json:
            self.show(to_json(found))
        else:
            print(printable(found.table()))

    def show(self, values: dict[str, Any]) -> None:
        """Print values, one a line, or as JSON, where a number that is none (inf, nan) is null."""
        if self.as_json:
            print(msgspec.json.format(msgspec.json.encode(values), indent=1).decode())
        else:
            _print_lines(values)


Shown = Annotated[Output, flat(OUTPUT)]
PLAIN = Output()


def _print_lines(values: dict[str, Any]) -> None:
    width = max(map(len, values)) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_write(item)}" for key, item in value.items() if item is not None)
        lines = _wrap(printable(_write(value)), columns and max(20, columns - width))
        print(f"{name.replace('_', ' '):{width}}{lines[0]}".rstrip())
        for line in lines[1:]:
            print(f"{'':{width}}{line}".rstrip())


def _write(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_write, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wrap(text: str, width: int | None) -> list[str]:
    """Break a value into lines that fit a terminal; what goes elsewhere keeps its own lines only."""
    lines = text.split("\n")
    if width:
        lines = [part for line in lines for part in textwrap.wrap(line, width, replace_whitespace=False) or [""]]
    return lines
