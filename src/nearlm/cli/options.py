"""What commands have in common: options of their own, loading a store's model, and showing what was found."""

import json
import shutil
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nearlm.base import Reporter, to_json
from nearlm.model import ModelSpec
from nearlm.store import Datastore
from nearlm.text import TextSource

if TYPE_CHECKING:
    from nearlm.model.lm import LM

FLAT = Parameter(name="*")  # a dataclass whose fields are options

Store = Annotated[str, Parameter(help="Folder of a store, or cache:NAME.")]
Out = Annotated[str, Parameter(help="Folder of the store to make, or cache:NAME.")]
IndexName = Annotated[str, Parameter(help="Which index of the store.")]
Quiet = Annotated[bool, Parameter(name=["--quiet", "-q"], help="Say nothing but errors.", show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON.", show_default=False)]
Restart = Annotated[bool, Parameter(help="Throw away an unfinished run first.", show_default=False)]
Stride = Annotated[int | None, Parameter(help="Tokens from window to window. [default: the window]")]
Figure = Annotated[str | None, Parameter(help="Draw a figure into a .png, .svg or .pdf.")]
Source = Annotated[TextSource, FLAT]
Model = Annotated[ModelSpec, FLAT]
OWN_MODEL = ModelSpec()


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
    loading = {name: getattr(given, name) for name in ("device", "dtype", "trust_remote_code")}
    return replace(known, **wishes, **loading)


def load_model(store: Datastore, given: ModelSpec) -> "LM":
    """Load the model of an open store."""
    from nearlm.store.model_files import load_lm

    return load_lm(store, model_spec(store, given))


@dataclass(frozen=True)
class Output:
    """How a command tells what it does and what it found."""

    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def reporter(self) -> Reporter:
        """Whom to tell of the progress."""
        return Reporter(self.quiet)

    def tell(self, found: Any) -> None:
        """Print what was found, as its table or as JSON."""
        if self.as_json:
            self.show(to_json(found))
        else:
            print(found.table())

    def show(self, values: dict[str, Any]) -> None:
        """Print values, one a line, or as JSON."""
        show(values, self.as_json)


Shown = Annotated[Output, FLAT]
OUTPUT = Output()


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print values, one a line, or as JSON."""
    if as_json:
        print(json.dumps(values, ensure_ascii=False, indent=1))
        return
    width = max(map(len, values)) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_write(item)}" for key, item in value.items() if item is not None)
        lines = _wrap(_write(value), columns and max(20, columns - width))
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
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wrap(text: str, width: int | None) -> list[str]:
    """Break a value into lines that fit a terminal; what goes elsewhere keeps its own lines only."""
    lines = text.split("\n")
    if width:
        lines = [part for line in lines for part in textwrap.wrap(line, width, replace_whitespace=False) or [""]]
    return lines
