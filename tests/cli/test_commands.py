"""Every command that is listed is there, and examples are of commands that are."""

import importlib
import shlex

import pytest

from nearlm.cli.commands import COMMANDS, EXAMPLES, RESUMES

PLACES = [place for group in COMMANDS.values() for place in group]
NAMES = {place.partition(":")[2].replace("_", "-") for place in PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_a_listed_command_is_there(place):
    module, _, name = place.partition(":")
    assert callable(getattr(importlib.import_module(f"nearlm.cli.{module}"), f"{name}_command"))


def test_examples_and_what_resumes_are_commands():
    assert NAMES >= RESUMES and EXAMPLES.keys() <= NAMES
    assert all(shlex.split(example)[:2] == ["nearlm", name] for name, example in EXAMPLES.items())
