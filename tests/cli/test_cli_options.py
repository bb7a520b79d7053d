"""What commands have in common: how values are shown, and which model is loaded."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nearlm.cli.options import FlagReporter, Output, model_spec
from nearlm.model import ModelSpec
from nearlm.store.datastore import Datastore


def on_terminal(*arguments: object, columns: int) -> list[str]:
    """Run a command on a terminal of so many columns and return the lines that it shows."""
    main, side = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-m", "nearlm", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=side, stderr=side, stdin=side, env=environment)
    os.close(side)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_info_on_a_narrow_terminal_loses_nothing(store):
    lines = on_terminal("info", store, columns=80)
    assert all(len(line) <= 80 for line in lines)
    checksum = Datastore.open(store).checksum
    last = next(number for number, line in enumerate(lines) if line.startswith("checksum"))
    assert "".join(line.split()[-1] for line in lines[last : last + 2]) == checksum


def test_what_goes_elsewhere_is_not_wrapped(nearlm, store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert Datastore.open(store).checksum in nearlm("info", store)[1]


def test_a_text_of_many_lines_stays_aligned(capfd):
    Output().show({"text": "one\n two\n\nthree", "nothing": None, "yes": True, "n": 1234567, "f": 0.5})
    assert capfd.readouterr().out.splitlines() == [
        "text     one",
        "          two",
        "",
        "         three",
        "nothing  none",
        "yes      yes",
        "n        1,234,567",
        "f        0.5",
    ]


def test_brackets_in_names_are_not_eaten(nearlm, store):
    assert re.search(r"^texts +te\[bold\]xts$", nearlm("info", store)[1], re.M)


def test_a_stores_model_is_loaded_as_it_was_but_for_what_is_given(store, model_folder):
    opened = Datastore.open(store)
    assert Path(model_spec(opened, ModelSpec()).model) == model_folder
    given = ModelSpec(device="cpu", dtype="float32", quantization="8bit", trust_remote_code=True)
    found = model_spec(opened, given)
    assert Path(found.model) == model_folder
    assert (found.device, found.dtype, found.quantization) == ("cpu", "float32", "8bit") and found.trust_remote_code
    assert model_spec(opened, ModelSpec("elsewhere", revision="r")) == ModelSpec("elsewhere", revision="r")


def test_what_was_found_is_told_as_a_table_or_as_json(capfd):
    @dataclass
    class Found:
        value: float

        def table(self):
            return "| a table |"

    Output().tell(Found(0.5))
    assert capfd.readouterr().out == "| a table |\n"
    Output(as_json=True).tell(Found(0.5))
    assert json.loads(capfd.readouterr().out) == {"value": 0.5}


def test_json_is_read_by_any_program_also_where_a_number_is_none(capfd):
    Output(as_json=True).show({"perplexity": float("inf"), "loss": float("nan"), "text": "λ"})
    out = capfd.readouterr().out
    assert json.loads(out, parse_constant=lambda word: 1 / 0) == {"perplexity": None, "loss": None, "text": "λ"}


def test_progress_names_flags(capfd):
    FlagReporter().say("choose files with `glob`")
    assert capfd.readouterr().err == "choose files with --glob\n"
