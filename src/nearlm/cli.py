"""The command line: every command calls one function; torch is imported only where it is needed."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nearlm import __version__
from nearlm.errors import NearLMError

app = typer.Typer(
    name="nearlm",
    help="Give any Hugging Face causal LM a memory of your text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nearlm {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["NEARLM_DEBUG"] = "1"


Store = Annotated[str, typer.Argument(metavar="STORE", help="Folder of a store, or `cache:NAME`.")]
Texts = Annotated[
    list[str],
    typer.Option(
        "--text",
        help="File, folder, glob, JSON(L), Parquet, `hf:NAME[/CONFIG][:SPLIT]`, `spdx:train`, `pydocs:train`, or `-`.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def build(
    text: Texts,
    out: Annotated[str, typer.Option(help="Folder of the store to make, or `cache:NAME`.")],
    model: Annotated[
        str | None,
        typer.Option(help="Hub id, model folder, .gguf file, or `smollm2-135m`. [default for --append: the store's]"),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    adapter: Annotated[str | None, typer.Option(help="PEFT adapter to put on top of the model.")] = None,
    quantization: Annotated[str | None, typer.Option(help="Load the model as `8bit` or `4bit`.")] = None,
    device: Annotated[str, typer.Option(help="`auto`, `cpu`, `cuda`, `cuda:1` …")] = "auto",
    dtype: Annotated[str, typer.Option(help="`auto`, `float32`, `bfloat16`, `float16`.")] = "auto",
    key_tap: Annotated[
        str | None,
        typer.Option(help="Where keys come from: `ffn`, `last_hidden`, or a module path. [default: ffn]"),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Use only the first tokens of the text.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens the model reads at once. [default: 512]")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens from window to window. [default: the window]")] = None,
    pack: Annotated[bool | None, typer.Option("--pack", help="Let windows cross documents.")] = None,
    separator: Annotated[
        str | None, typer.Option(help="After each document: `eos`, `none`, or a text. [default: eos]")
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens in a batch.")] = None,
    shard_records: Annotated[int, typer.Option(help="Records in a file.")] = 1 << 18,
    key_dtype: Annotated[str | None, typer.Option(help="`float16` or `float32`. [default: float16]")] = None,
    field: Annotated[str, typer.Option(help="Field of JSON, Parquet and dataset rows that holds the text.")] = "text",
    glob: Annotated[str | None, typer.Option(help="Which files of a folder to read, e.g. `**/*.rst`.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse undecodable, empty or unreadable documents.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Add the text to a finished store.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away an unfinished build first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
) -> None:
    """Build a datastore: run a model over a text and keep (context vector, next token) records.

    Interrupted at any moment, the same command goes on where it stopped.

    Example: `nearlm build --model smollm2-135m --text spdx:train --max-tokens 20000 --out mystore`
    """
    from nearlm.extract import BuildOptions
    from nearlm.extract import build as build_store
    from nearlm.pretrained import ModelSpec

    names = BuildOptions.__dataclass_fields__
    given = locals()
    spec = model and ModelSpec(model, revision, trust_remote_code, adapter, quantization, device, dtype)
    build_store(
        spec or None,
        text,
        _folder(out),
        append=append,
        restart=restart,
        field=field,
        glob=glob,
        strict=strict,
        quiet=quiet,
        **{name: given[name] for name in names},
    )


@app.command()
def info(
    store: Store,
    record: Annotated[int | None, typer.Option(help="Show where this record comes from.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a store holds, or trace one of its records to its text."""
    from nearlm.datastore import Datastore

    opened = Datastore.open(_folder(store))
    _show(opened.summary() if record is None else opened.trace(record), as_json)


@app.command()
def verify(store: Store) -> None:
    """Read every byte of a store and name the first damaged file."""
    from nearlm.datastore import Datastore
    from nearlm.progress import Reporter, size

    opened = Datastore.open(_folder(store))
    with Reporter().bar("verifying", opened.bytes, "bytes") as advance:
        opened.verify(advance)
    print(f"{store}: {len(opened.manifest['files'])} files, {size(opened.bytes)}, all as they were written")


def _folder(store: str) -> Path:
    """Resolve `cache:NAME` to a store in the cache."""
    from nearlm.fetch import cache_dir

    return cache_dir() / "stores" / store.removeprefix("cache:") if store.startswith("cache:") else Path(store)


def _show(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, ensure_ascii=False, indent=1))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in values.items():
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(name.replace("_", " "), shown)
    Console(markup=False, emoji=False).print(table)


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except NearLMError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on where it stopped", 130)
    except typer.Abort:
        _fail("aborted", 130)
    except Exception as error:
        if hasattr(error, "format_message"):  # a mistake in the command itself
            _fail(f"{error.format_message()} (see `nearlm --help`)", 2)
        if os.environ.get("NEARLM_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    if os.environ.get("NEARLM_DEBUG") and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    print(f"nearlm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
