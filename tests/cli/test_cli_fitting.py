"""`nearlm fit` as it is typed: text named or not, what it prints, JSON, and what it refuses."""

import json

import pytest

from nearlm.optimizer.fit_record import Fit

FOUND = Fit("tiny", 900, 9, 12_345, 2, 300, 3, 0, "k 64", (), None, None)


@pytest.fixture
def asked(monkeypatch):
    """What would be fitted."""
    calls = []
    monkeypatch.setattr("nearlm.cli.fitting.fit", lambda *given, **options: calls.append((given, options)) or FOUND)
    return calls


@pytest.mark.parametrize("text", [["docs", "more"], ["--text", "docs", "more"]])
def test_a_text_is_given_with_its_name_or_without(nearlm, asked, text):
    code, out, _ = nearlm("fit", *text, "--model", "m", "--out", "mem", "--minutes", 6, "--all", "--valid", "v", "-q")
    ((spec, source, place, options, records), how), *_ = asked
    assert (code, spec.model, source.text, place, records.window) == (0, "m", ("docs", "more"), "mem", None)
    assert (options.minutes, options.all, how["valid"], how["test"]) == (6, True, ("v",), None)
    assert out.endswith('Go on with:\n  nearlm serve mem\n  nearlm generate mem "Once"\n') and "900 records" in out


def test_all_of_it_as_json(nearlm, asked):
    _, out, _ = nearlm("fit", "docs", "--out", "mem", "--json")
    found = json.loads(out)
    assert found["records"] == 900 and found["commands"][0] == "nearlm serve mem" and asked[0][0][0] is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("fit", "docs"), "--out"),
        (("fit", "--out", "mem"), "no text was given"),
        (("fit", "absent", "--out", "mem"), "'absent' does not exist"),
        (("fit", "-", "--out", "mem"), "only once"),
        (("fit", "docs", "--out", "mem", "--minutes", "0"), "--minutes is 0"),
        (("fit", "docs", "--out", "mem", "--budget", "1", "--overhead", "1"), "--overhead and --budget"),
    ],
)
def test_nonsense_gets_one_line_and_makes_no_folder(nearlm, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearlm(*arguments)
    assert (code, out) == (2, "") and expected in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())
