"""Shell completion: a script with every command and option, put where the shell finds it."""

from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.completion.detect import ShellDetectionError

from nearlm.base import OptionError
from nearlm.cli.app import app


def install_completion_command(
    *, shell: Annotated[Literal["bash", "zsh", "fish"] | None, Parameter(help="[default: the one you use]")] = None
) -> None:
    """Let the Tab key complete commands and options in bash, zsh or fish."""
    try:
        path = app.install_completion(shell=shell)
    except ShellDetectionError:
        raise OptionError("cannot tell which shell this is; name it with --shell bash, zsh or fish") from None
    print(f"{path}: open a new shell to use it")
