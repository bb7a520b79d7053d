"""The Typer application, and how it ends: one line for an error of the user's, exit code 2."""

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from nearlm import __version__

_GOES_ON = {"build", "reduce", "prune", "index", "tune", "adapt", "ablate", "sweep", "optimize", "demo", "reproduce"}
app = typer.Typer(
    name="nearlm",
    help="Give any Hugging Face causal LM a memory of your text.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"nearlm {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also after the command).")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass  # `main` looks for --debug itself


def main() -> NoReturn:
    """Run the command line; an error of the user's is one line and exit code 2."""
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in arguments or bool(os.environ.get("NEARLM_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code, message = 0, ""
    try:
        code = app([each for each in arguments if each != "--debug"], prog_name="nearlm", standalone_mode=False) or 0
        _flush()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        code, message = _verdict(error)
    if code == 130:
        message = f"interrupted{'; the same command goes on where it stopped' if _GOES_ON & set(arguments) else ''}"
    if message:
        print(f"nearlm: {' '.join(message.split())}", file=sys.stderr)
    _leave(code)


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit code that an error deserves, and what to say about it."""
    from nearlm.base import NearLMError

    if isinstance(error, NearLMError):
        return 2, str(error)
    if hasattr(error, "format_message"):  # a mistake in the command itself
        context = getattr(error, "ctx", None)
        return 2, f"{error.format_message()} (see `{context.command_path if context else 'nearlm'} --help`)"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return 2, f"{place}{error.strerror or error} (--debug shows where)"
    return 1, f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)"


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed
        sys.stdout.flush()


def _leave(code: int) -> NoReturn:
    """Exit, without a word about output that nobody reads any more."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
