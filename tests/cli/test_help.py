"""Help as a new user reads it: options in groups, and values in words."""

import re

import pytest
from test_app import COMMANDS

from nearlm.cli.help import show_default


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_speaks_python(nearlm, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = nearlm(command, "--help")
    assert not re.search(r"\b(STR|INT|FLOAT|CHOICE|PATH|LIST\[)|choices:|default: (False|None|\(\))", out)
    titles = re.findall(r"^╭─ (.*?) ─", out, re.M)
    assert "Parameters" not in titles and "Arguments" not in titles and titles[-1] == "Output"
    assert {"--json", "--quiet", "--debug"} <= set(re.findall(r"--[a-z]+", out))


def test_options_stand_in_the_group_of_their_dataclass(nearlm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = nearlm("generate", "--help")
    panels = dict(re.findall(r"^╭─ (\w+) ─.*?\n(.*?)^╰", out, re.M | re.S))
    assert list(panels) == ["Store", "Generation", "Sampling", "Search", "Model", "Cluster", "Output"]
    assert "--skip 0..1|auto " in panels["Search"] and "--lam 0..1 " in panels["Search"]
    assert "--knn-temperature T " in panels["Search"] and "--temperature T " in panels["Sampling"]
    assert "--max-new-tokens N " in panels["Generation"] and "PROMPT --prompt" in panels["Generation"]
    assert re.search(r"--seed N .*\[default: 0\]", panels["Sampling"])


def test_the_usage_of_a_command_names_what_it_needs(nearlm):
    assert nearlm("build", "--help")[1].startswith("Usage: nearlm build TEXT... --model MODEL --out STORE [OPTIONS]")
    assert nearlm("eval", "--help")[1].startswith("Usage: nearlm eval STORE TEXT... [OPTIONS]")


@pytest.mark.parametrize(("value", "shown"), [(False, None), (None, None), ((), None), (0, 0), (0.1, 0.1), ("x", "x")])
def test_only_what_is_off_is_no_default_to_show(value, shown):
    assert show_default(value) == shown
