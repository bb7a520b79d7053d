"""The commands, and how they end: one line for an error of the user's, exit code 2.

A command's module is imported when the command is called, so that `nearlm --help` is there at once.
"""

import contextlib
import errno
import gc
import io
import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, get_args

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError

from nearlm import __version__
from nearlm.cli.commands import COMMANDS, EXAMPLES, RESUMES
from nearlm.cli.help import HelpFormatter, show_default

_RESUMED = "Interrupted at any moment, the same command resumes where it stopped."
_HELP = (
    "Give any Hugging Face causal LM a memory of your text, without training it.\n\n"
    "The memory is a store: a folder of records, each a context of your text and the token that followed it. At every "
    "token the model retrieves the nearest contexts, and what followed them is mixed into its own prediction, with "
    "weights that are learned. From a folder of text to a model that knows it:\n\n"
    "  nearlm fit docs/ --model smollm2-135m --out mystore\n"
    "  nearlm serve mystore\n"
    '  nearlm generate mystore "To install it,"\n\n'
    "Every command takes --help and --debug, which shows the traceback of an error."
)
_OBJECTS = 50_000  # between two collections: imports make millions that stay, and looking at them again took a fifth
_DIGITS = 19  # of 2^63
_SHOWN = 40  # digits of a number
_STDIN = "(stdin)"  # what a lone - is while the command line is parsed, where it would be taken for an option


def _check_tokens(command: App, chain: Sequence[str], arguments: Any) -> None:
    """Write - again where stdin was meant, and refuse numbers that no computer counts to."""
    for argument in arguments:
        argument.tokens[:] = [each.evolve(value="-") if each.value == _STDIN else each for each in argument.tokens]
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                _check_number(argument.name, token.value)


def _check_number(name: str, value: str) -> None:
    digits = value.replace("_", "").lstrip("+-").lstrip("0")
    if digits.isdecimal() and (len(digits) > _DIGITS or int(digits) >= 1 << 63):
        from nearlm.base import OptionError

        shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
        raise OptionError(f"{name} is {shown}, expected less than 2^63")


_GENERAL = Group("Options", sort_key=len(COMMANDS))
app = App(
    name="nearlm",
    help=_HELP,
    version=f"nearlm {__version__}",
    help_flags=["--help", "-h"],
    help_format="plaintext",
    help_formatter=HelpFormatter(),
    usage="nearlm COMMAND",
    group_commands=_GENERAL,
    default_parameter=Parameter(negative=(), consume_multiple=True, show_default=show_default, show_choices=False),
    config=_check_tokens,
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
)


def _register(group: Group, place: str, takes: str, summary: str, more: str) -> None:
    """Add a command, which is imported when it is called."""
    module, _, name = place.partition(":")
    paragraphs = [summary, more, _RESUMED if name in RESUMES else "", _example(name.replace("_", "-"))]
    app.command(
        f"nearlm.cli.{module}:{name}_command",
        name=name.replace("_", "-"),
        help="\n\n".join(filter(None, paragraphs)),
        usage=" ".join(filter(None, ["nearlm", name.replace("_", "-"), takes, "[OPTIONS]"])),
        group=group,
        sort_key=len(list(app)),
    )


def _example(name: str) -> str:
    return f"Example: {EXAMPLES[name]}" if name in EXAMPLES else ""


for _number, (_title, _commands) in enumerate(COMMANDS.items()):
    _group = Group(_title, sort_key=_number)
    for _place, _words in _commands.items():
        _register(_group, _place, *_words)
app.command(
    "nearlm.cli.completion:install_completion_command",
    name="--install-completion",
    help="Let Tab complete commands and options in bash, zsh or fish.",
    group=_GENERAL,
)


def main() -> NoReturn:
    """Run the command line; an error of the user's is one line and exit code 2."""
    gc.set_threshold(_OBJECTS)
    arguments = sys.argv[1:] or ["--help"]
    debug = "--debug" in arguments or bool(os.environ.get("NEARLM_DEBUG"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = 0
    message = ""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, bool({"-q", "--quiet"} & set(arguments)))
            app(list(spell_out(arguments)))
        _flush()
    except KeyboardInterrupt:
        code = 130
        resumes = RESUMES & set(arguments)
        message = f"interrupted{'; the same command resumes where it stopped' if resumes else ''}"
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        code, message = _verdict(error)
    if message:
        from nearlm.base import printable

        with contextlib.suppress(OSError):  # nobody listens
            print(f"nearlm: {printable(' '.join(as_flags(message).split()))}", file=sys.stderr, flush=True)
    _leave(code)


def _show_warning(quiet: bool, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning of our own as one line, and others as Python does; what cannot be said does not matter."""
    line = warnings.formatwarning(message, category, *where[:2])
    if category.__name__ == "NearLMWarning":  # whose module would be imported for --help too
        line = "" if quiet else f"nearlm: warning: {as_flags(str(message))}\n"
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, end="")


def spell_out(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what was typed without --debug, and so that neither stdin (-) nor a prompt is taken for an option.

    The address after --ray may be left out.
    """
    typed = iter(_spell_out_ray([argument for argument in arguments if argument != "--debug"]))
    for argument in typed:
        prompt = next(typed, None) if argument == "--prompt" else None
        if prompt is not None:
            yield f"--prompt={prompt}"
        else:
            yield _STDIN if argument == "-" else argument


def _spell_out_ray(arguments: Sequence[str]) -> Iterator[str]:
    for argument, after in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        given = re.fullmatch(r"auto|local|[^\s/:-][^\s/:]*:\d{1,5}", after)
        yield "--ray=auto" if argument == "--ray" and not given else argument


def as_flags(message: str) -> str:
    """Write parameters that the library names, `skip='auto'`, as on the command line, --skip auto."""
    message = re.sub(r", or [\w.]+\(\)", "", message)  # the same in Python
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
    if isinstance(error, UnusedCliTokensError):
        unused = " ".join(map(repr, error.unused_tokens or ())).replace(_STDIN, "-")
        return 2, f"no place for {unused}: name a text with --text or without, not both, and put a prompt in quotes"
    if isinstance(error, MissingArgumentError) and str(error).count("--") == 1:
        words = re.sub(r".*--(text|prompt)\b.*", lambda found: f"no {found[1]} was given", str(error), flags=re.S)
        return 2, f"{words} (see `{' '.join(['nearlm', *(error.command_chain or ())])} --help`)"
    if isinstance(error, CycloptsError):  # a mistake in the command itself
        return 2, f"{error} (see `{' '.join(['nearlm', *(error.command_chain or ())])} --help`)"
    if isinstance(error, BrokenPipeError):
        return 141, ""
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "; free some space and repeat the command" if full else ""
        return 2, f"{place}{error.strerror or error}{remedy} (--debug shows where)"
    return 1, f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)"


def _flush() -> None:
    if sys.stdout is not None:  # None: it was closed
        sys.stdout.flush()


def _leave(code: int) -> NoReturn:
    """Exit, without a word about output that nobody reads any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            from nearlm.base.progress import silence

            silence(stream)
    sys.exit(code)
