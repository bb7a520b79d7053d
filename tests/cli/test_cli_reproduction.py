"""`demo` and `reproduce`: which setting they run, where, and what they refuse before any work."""

import json

import pytest

from nearlm.paper import report, reproduction
from nearlm.paper.reproduction import ALL_PARTS, COMPARED_PARTS, DEMO_PARTS
from nearlm.paper.results import Results
from nearlm.paper.settings import DEMO, SETTINGS, resize


@pytest.fixture
def asked(monkeypatch):
    """What would be run."""
    runs = []

    class Recorded:
        def __init__(self, setting, folder, reporter, **options):
            self.given = {"setting": setting, "folder": folder, "quiet": reporter.quiet, **options}

        def run(self, parts):
            runs.append({**self.given, "parts": parts})
            return Results(self.given["folder"])

    monkeypatch.setattr(reproduction, "Reproduction", Recorded)
    monkeypatch.setattr(report, "write_report", lambda results: results.folder / "report.html")
    return runs


def test_the_demo_runs_its_own_setting_and_parts(nearlm, tmp_path, asked):
    code, out, err = nearlm("demo", "--out", tmp_path / "demo", "--max-tokens", 8000, "-q")
    assert (code, err) == (0, "") and out.rstrip().endswith(str(tmp_path / "demo" / "report.html"))
    (run,) = asked
    assert run["setting"] == resize(DEMO, 8000) and run["parts"] == DEMO_PARTS and run["quiet"]
    assert run["folder"] == tmp_path / "demo" and run["finetune_tokens"] is None
    assert run["command"] == f"nearlm demo --out {tmp_path / 'demo'} --max-tokens 8000 -q"


def test_the_parts_as_json(nearlm, tmp_path, asked):
    code, out, err = nearlm("demo", "--out", tmp_path / "demo", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "") and found["page"] == str(tmp_path / "demo" / "report.html") and "main" in found
    assert json.loads(nearlm("reproduce", "--setting", "domain", "--out", tmp_path / "a", "--json")[1])["main"] is None


def test_reproduce_takes_a_setting_another_model_and_other_texts(nearlm, tmp_path, asked):
    assert nearlm("reproduce", "--setting", "standard", "--out", tmp_path / "a")[0] == 0
    options = ("--model", "mine", "--train", "t1", "t2", "--valid", "v", "--test", "w", "--finetune-tokens", 99)
    assert nearlm("reproduce", "--setting", "domain", "--out", tmp_path / "b", *options)[0] == 0
    plain, changed = asked
    assert plain["setting"] == SETTINGS["standard"] and plain["parts"] == ALL_PARTS and not plain["quiet"]
    setting = changed["setting"]
    assert (setting.model, setting.train, setting.valid, setting.test) == ("mine", ("t1", "t2"), ("v",), ("w",))
    assert setting.store is None and changed["finetune_tokens"] == 99


def test_a_comparison_takes_budgets_methods_and_texts(nearlm, tmp_path, asked):
    assert nearlm("reproduce", "--setting", "comparison", "--out", tmp_path / "a")[0] == 0
    options = ("--budgets", 0.5, 2, "--methods", "LoRA", "LoRA + nearlm", "--train", "t", "--unrelated", "u")
    assert nearlm("reproduce", "--setting", "comparison", "--out", tmp_path / "b", *options)[0] == 0
    plain, changed = asked
    assert plain["parts"] == changed["parts"] == COMPARED_PARTS and plain["methods"] == ()
    assert plain["setting"] == SETTINGS["comparison"]
    assert changed["setting"].budgets == (0.5, 2.0) and changed["methods"] == ("LoRA", "LoRA + nearlm")
    assert (changed["setting"].train, changed["setting"].unrelated) == (("t",), ("u",))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("demo", "--max-tokens", 100), "--max-tokens is 100"),
        (("reproduce", "--setting", "nonsense"), "expected one of domain"),
        (("reproduce",), "--setting"),
        (("reproduce", "--setting", "domain", "--budgets", 2), "--budgets is for comparisons"),
        (("reproduce", "--setting", "comparison", "--budgets", -2), "--budgets"),
    ],
)
def test_nonsense_gets_one_line_and_makes_no_folder(nearlm, tmp_path, asked, arguments, expected):
    code, out, err = nearlm(*arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and expected in err and err.count("\n") == 1
    assert not asked and not (tmp_path / "out").exists()
