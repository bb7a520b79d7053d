"""Benchmarks say what they do when asked, and one of them runs at a tiny size; their numbers are no test."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


def run(name, *arguments):
    sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.argv = [name, *arguments]
    spec.loader.exec_module(module)
    module.main()


@pytest.fixture(autouse=True)
def _own_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_benchmark_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as left:
        run(name, "--help")
    assert left.value.code == 0 and "usage: " in capsys.readouterr().out


def test_merging_is_measured(capsys):
    with pytest.raises(SystemExit):
        run("merge_speed", "--records", "2000", "--search-records", "400", "--dim", "16", "--json")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"speedup", "search_ratio"} <= found.keys() and 0 < found["kept"] <= 1
