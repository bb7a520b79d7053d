"""The commands, and how they end: one line for an error of the user's, exit code 2.

A command's module is imported when the command is called, so that `nearlm --help` is there at once.
"""

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from nearlm import __version__

_COMMANDS = {
    "stores:build": "Run a model over a text and keep (context vector, token) records.",
    "stores:info": "Show what a store holds, or trace one of its records to its text.",
    "stores:verify": "Read every byte of a store and name the first damaged file.",
    "shrinking:reduce": "Make a store with narrower keys, by PCA and a random rotation.",
    "shrinking:prune": "Make a store with fewer records, weighted by what they stand for.",
    "shrinking:index": "Make a search index over a store's keys, or bring it up to date.",
    "memory:tune": "Choose λ, T and k on a validation text, and keep them with the index.",
    "learning:gate": "Train a gate on a validation text: when to skip retrieval, and how much to trust the memory.",
    "memory:eval": "Perplexity and speed over a text, and where the time went.",
    "memory:generate": "Continue a prompt with the model and its memory.",
    "learning:ablate": "Take a gate apart on a test text: masks, weights, features, objectives.",
    "learning:sweep": "Vary one thing of a store and measure what it costs.",
    "memory:optimize": "Make the fastest store within a perplexity budget, ready to use.",
    "reproduction:demo": "From nothing to a fast memory: SmolLM2 and licence texts.",
    "reproduction:reproduce": "Measure every table and figure of the paper, and make a page of them.",
}
_RESUMES = {"build", "reduce", "prune", "index", "tune", "gate", "ablate", "sweep", "optimize", "demo", "reproduce"}

_EXAMPLES = {
    "build": "nearlm build --model smollm2-135m --text spdx:train --max-tokens 20000 --out mystore",
    "prune": "nearlm prune mystore --method merge --keep 0.6 --out smaller",
    "optimize": "nearlm optimize mystore --text valid/ --out fast",
}
_RESUMED = "Interrupted at any moment, the same command resumes where it stopped."

app = App(
    name="nearlm",
    help="Give any Hugging Face causal LM a memory of your text. --debug shows the traceback of an error.",
    version=f"nearlm {__version__}",
    help_flags=["--help", "-h"],
    help_format="plaintext",
    default_parameter=Parameter(negative=(), consume_multiple=True),
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)
for _number, (_place, _help) in enumerate(_COMMANDS.items()):
    _module, _, _name = _place.partition(":")
    _more = f"\n\n{_RESUMED}" if _name in _RESUMES else ""
    _more += f"\n\nExample: {_EXAMPLES[_name]}" if _name in _EXAMPLES else ""
    app.command(f"nearlm.cli.{_module}:{_name}_command", name=_name, help=f"{_help}{_more}", sort_key=_number)


def main() -> NoReturn:
    """Run the command line; an error of the user's is one line and exit code 2."""
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in arguments or bool(os.environ.get("NEARLM_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = 0
    message = ""
    try:
        app(list(spell_out(arguments)))
        _flush()
    except KeyboardInterrupt:
        code = 130
        resumes = _RESUMES & set(arguments)
        message = f"interrupted{'; the same command resumes where it stopped' if resumes else ''}"
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        code, message = _verdict(error)
    if message:
        print(f"nearlm: {' '.join(as_flags(message).split())}", file=sys.stderr)
    _leave(code)


def spell_out(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what was typed without --debug, and with a lone - (stdin) as the value of --text, not as an option."""
    typed = [argument for argument in arguments if argument != "--debug"]
    for before, argument, after in zip(["", *typed], typed, [*typed[1:], ""], strict=False):
        if argument == "-" and before != "--prompt":
            yield "--text=-"
        elif before == "-" and not argument.startswith("-"):
            yield from ("--text", argument)
        elif (argument, after) != ("--text", "-"):
            yield argument


def as_flags(message: str) -> str:
    """Write parameters that the library names, `skip='auto'`, as on the command line, --skip auto."""
    return re.sub(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`", _as_flag, message)


def _as_flag(found: re.Match[str]) -> str:
    name = found[1].replace("_", "-")
    if found[2] == "False":
        return f"--no-{name}"
    if found[2] in (None, "True"):
        return f"--{name}"
    return f"--{name} {found[2].strip(chr(39))}"


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit code that an error deserves, and what to say about it."""
    from nearlm.base import NearLMError

    if isinstance(error, NearLMError):
        return 2, str(error)
    if isinstance(error, CycloptsError):  # a mistake in the command itself
        return 2, f"{error} (see `{' '.join(['nearlm', *(error.command_chain or ())])} --help`)"
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
