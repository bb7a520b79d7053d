"""The loop of a dialogue in a terminal, or in a pipe: lines in, answers out, and commands that begin with /."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearlm.base import NearLMError, printable
from nearlm.cli.app import as_flags
from nearlm.cli.console import MOST_EXPLAINED, Generation, _streamer, choose_explained, format_explanation

if TYPE_CHECKING:
    from nearlm.knnlm.dialogue import Dialogue

_HELP = """/explain      what the memory contributed to the last answer (/explain all: to every token)
/memory off   answer without the memory (/memory on: with it again)
/new          begin anew
/help         this
/quit         end, as Ctrl-D does"""


def talk(dialogue: "Dialogue", generation: Generation) -> None:
    """Answer lines until there are no more."""
    import torch

    torch.manual_seed(generation.seed)
    kind = "Write a message" if dialogue.chats else "Write a text to be continued (the model has no chat template)"
    _say(f"{kind}; /help lists commands.")
    for line in _lines():
        try:
            if line.startswith("/"):
                if not _obey(dialogue, line):
                    return
            elif line.strip():
                dialogue.answer(line, **generation.options, streamer=_streamer(dialogue.knnlm.lm.tokenizer))
        except NearLMError as error:
            _say(as_flags(str(error)))
        sys.stdout.flush()


def _lines() -> Iterator[str]:
    """Yield what is typed, or what stdin holds, line by line."""
    if sys.stdin is None:
        return
    terminal = sys.stdin.isatty()
    while True:
        try:
            yield input("> ") if terminal else _read()
        except (EOFError, KeyboardInterrupt):
            if terminal:
                print()
            return


def _read() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _obey(dialogue: "Dialogue", line: str) -> bool:
    """Do what a command says; return whether the dialogue goes on."""
    words = line.split()
    match words:
        case ["/quit"] | ["/exit"]:
            return False
        case ["/help"]:
            print(_HELP)
        case ["/new"]:
            dialogue.forget()
        case ["/memory", "on" | "off"]:
            dialogue.memory = words[1] == "on"
            _say(f"the memory is {words[1]}")
        case ["/memory"]:
            _say(f"the memory is {'on' if dialogue.memory else 'off'}")
        case ["/explain"] | ["/explain", "all"]:
            explained = dialogue.explain()
            shown = choose_explained(explained, None if len(words) > 1 else MOST_EXPLAINED)
            print(*(printable(format_explanation(one)) for one in shown), sep="\n")
        case _:
            _say(f"there is no command {words[0]}; /help lists them")
    return True


def _say(line: str) -> None:
    """Tell something that is no answer, apart from answers."""
    print(printable(line), file=sys.stderr)
