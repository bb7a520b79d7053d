"""Options that commands share, and what they do with them: load a store's model, show what was found."""

import json
import shutil
import sys
import textwrap
from typing import Annotated, Any

import typer

Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder of a store, or cache:NAME.")]
Texts = Annotated[
    list[str],
    typer.Option(
        "--text",
        metavar="TEXT...",
        help="File, folder, glob, JSON(L), Parquet, hf:NAME[/CONFIG][:SPLIT], spdx:train, pydocs:train, - for stdin.",
    ),
]
MoreTexts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IndexName = Annotated[str, typer.Option("--index", metavar="NAME", help="Which index of the store.")]
UsedIndex = Annotated[
    str | None, typer.Option("--index", metavar="NAME", help="Which index of the store. [default: the store's choice]")
]
Nprobe = Annotated[int | None, typer.Option(metavar="N", help="Lists a search looks at. [default: the index's]")]
K = Annotated[int | None, typer.Option("--k", metavar="N", help="Neighbours of a token. [default: tuned, or 1024]")]
Lam = Annotated[float | None, typer.Option("--lam", metavar="L", help="Weight of the memory, 0 to 1. [default: tuned]")]
Temperature = Annotated[float | None, typer.Option(metavar="T", help="Divides distances. [default: tuned, or 1]")]
Distances = Annotated[
    str | None,
    typer.Option(
        metavar="WHICH",
        help="index: as the index gives them; store: exact; parent: exact, by the keys of the store that this one was "
        "made from. [default: index]",
    ),
]
AdaptorName = Annotated[
    str | None,
    typer.Option("--adaptor", metavar="NAME", help="Let this adaptor choose λ, or none. [default: the store's choice]"),
]
Skip = Annotated[str | None, typer.Option(metavar="SHARE", help="Tokens that do not ask the memory: 0 to 1, or auto.")]
Budget = Annotated[
    float | None, typer.Option(metavar="PPL", help="With --skip auto: perplexity it may cost. [default: 0.1]")
]
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="The store's model, if it has moved.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1 …")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="auto, float32, bfloat16, float16.")]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", help="Use only the first N tokens of the text.")]
Stride = Annotated[int | None, typer.Option(metavar="N", help="Tokens from window to window. [default: the window]")]
Field = Annotated[str, typer.Option(metavar="NAME", help="Field of rows that holds the text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


Out = Annotated[str, typer.Option(metavar="STORE", help="Folder of the store to make, or cache:NAME.")]
Restart = Annotated[bool, typer.Option("--restart", help="Throw away an unfinished run first.")]


def model_spec(store: Any, model: str | None, **loading: Any) -> Any:
    """Say how to load a store's model: from where it was, or from where it is now."""
    import dataclasses

    from nearlm.model import ModelSpec

    spec = ModelSpec(**store.model_options())
    moved: dict[str, Any] = {"name": model, "revision": None} if model else {}
    return dataclasses.replace(spec, **moved, **loading)


def appending_spec(store: str, **given: Any) -> Any:
    """Say how to load the model of a store that is appended to: as it was, but for what is given."""
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    if given["dtype"] == "auto":
        given["dtype"] = opened.manifest["model"]["dtype"]
    return model_spec(opened, None, **{name: value for name, value in given.items() if value is not None})


def load_model(store: Any, model: str | None, device: str, dtype: str, trust_remote_code: bool) -> Any:
    """Load the model of an open store."""
    from nearlm.knnlm import load_lm

    return load_lm(store, model_spec(store, model, device=device, dtype=dtype, trust_remote_code=trust_remote_code))


def load_knnlm(store: str, model: str | None, loading: dict[str, Any], quiet: bool = True, **options: Any) -> Any:
    """Load a store with its model and index, and say what the index needs."""
    from nearlm.base import Reporter
    from nearlm.knnlm import KNNLM
    from nearlm.store import Datastore

    opened = Datastore.open(store)
    knnlm = KNNLM.load(opened, model_spec(opened, model, **loading), **options)
    if knnlm.retriever is not None:
        knnlm.retriever.announce(Reporter(quiet))
    return knnlm


def tell(found: Any, as_json: bool) -> None:
    """Print what was found, as its table or as JSON."""
    if as_json:
        show(found.to_json(), True)
    else:
        print(found.table())


def show(values: dict[str, Any], as_json: bool) -> None:
    """Print values, one a line, or as JSON."""
    if as_json:
        print(json.dumps(values, ensure_ascii=False, indent=1))
        return
    width = max(map(len, values)) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
    for name, value in values.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_worded(item)}" for key, item in value.items() if item is not None)
        lines = _wrapped(_worded(value), columns and max(20, columns - width))
        print(f"{name.replace('_', ' '):{width}}{lines[0]}".rstrip())
        for line in lines[1:]:
            print(f"{'':{width}}{line}".rstrip())


def _worded(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_worded, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _wrapped(text: str, width: int | None) -> list[str]:
    """Break a value into lines that fit a terminal; what goes elsewhere keeps its own lines only."""
    lines = text.split("\n")
    if width:
        lines = [part for line in lines for part in textwrap.wrap(line, width, replace_whitespace=False) or [""]]
    return lines
