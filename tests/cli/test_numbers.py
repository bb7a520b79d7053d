"""Numbers that no computer counts to, and those below what an option can be, on every option of every command."""

from typing import get_args

import pytest
from refusals import is_refusal

from calls import build_index
from nearlm.cli.app import app
from nearlm.mixing import tune

GIVEN = {  # what a command needs beside the option
    "build": ["VALID", "--model", "nowhere", "--out", "OUT"],
    "index": ["STORE"],
    "fit": ["VALID", "--model", "none", "--out", "OUT"],
    "serve": ["STORE"],
    "chat": ["STORE"],
    "lm-eval": ["STORE", "--tasks", "none"],
    "tune": ["STORE", "VALID"],
    "generate": ["STORE", "a"],
    "eval": ["STORE", "VALID"],
    "optimize": ["STORE", "VALID", "--out", "OUT"],
    "gate": ["STORE", "VALID"],
    "reduce": ["STORE", "--dim", "8", "--out", "OUT"],
    "prune": ["STORE", "--method", "random", "--keep", "0.5", "--out", "OUT"],
    "info": ["STORE"],
    "verify": ["STORE"],
    "demo": ["--out", "OUT"],
    "reproduce": ["--setting", "domain", "--out", "OUT"],
    "sweep": ["STORE", "4", "--over", "dim", "--text", "VALID"],
    "ablate": ["STORE", "VALID", "--valid", "VALID"],
    "add": ["STORE", "VALID"],
    "serve-index": ["STORE"],
    "plan": ["--records", "1e6", "--dim", "8"],
}
OPTIONS = [
    (command, argument.name)
    for command in app
    if not command.startswith("-")
    for argument in app[command].assemble_argument_collection()
    if int in (argument.hint, *get_args(argument.hint))
]


@pytest.fixture(scope="module")
def tuned(text_store):
    build_index(text_store, quiet=True)
    tune(text_store, text_store.parent / "valid.txt")
    return text_store


def run(nearlm, tuned, tmp_path, command, option, value):
    places = {"STORE": tuned, "VALID": tuned.parent / "valid.txt", "OUT": tmp_path / "out"}
    given = [places.get(word, word) for word in GIVEN[command]]
    if option in given:
        at = given.index(option)
        del given[at : at + 2]
    result = nearlm(command, *given, "-q", f"{option}={value}")
    assert is_refusal(result), result
    assert not (tmp_path / "out").exists()
    return result[2]


@pytest.mark.parametrize("value", [2**63, 2**70, -(2**70), "9" * 5000])
@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_a_number_that_no_computer_counts_to_is_refused_at_once(nearlm, tuned, tmp_path, command, option, value):
    said = run(nearlm, tuned, tmp_path, command, option, value)
    assert f"{option} is {str(value)[:40]}" in said and "expected less than 2^63" in said


@pytest.mark.parametrize(("command", "option"), [each for each in OPTIONS if each != ("info", "--record")])
def test_a_number_below_all_is_refused_before_anything_is_written(nearlm, tuned, tmp_path, command, option):
    assert option in run(nearlm, tuned, tmp_path, command, option, -1)


def test_a_name_of_digits_is_no_number(nearlm, tmp_path):
    (tmp_path / ("7" * 30)).mkdir()
    result = nearlm("info", tmp_path / ("7" * 30))
    assert is_refusal(result) and "2^63" not in result[2]
