"""Several stores at once, as a user types it."""

import json

import pytest

from nearlm.cli.console import format_explanation
from nearlm.knnlm import Explanation
from nearlm.knnlm.explanation import Suffix
from nearlm.store import Context
from pairs import make_pair, write_valid


@pytest.fixture(scope="module")
def pair(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("cli-several")
    write_valid(folder / "valid")
    return [store.path for store in make_pair(folder, lm)]


def test_from_two_stores_to_a_continuation(nearlm, pair):
    one, other = pair
    valid = one.parent / "valid"
    code, _, err = nearlm("eval", one, valid, "--store", other)
    assert code == 0 and "no weights were learned for" in err and f"--text … --store {other}" in err
    code, out, _ = nearlm("gate", one, valid, "--store", other, "-q", "--json")
    learned = json.loads(out)
    assert code == 0 and learned["gate"] is None and learned["mixture"]["others"][0]["name"] == "manuals"
    named = ["--store", other, "--mixture", "with-manuals", "-q"]
    code, out, _ = nearlm("eval", one, valid, *named, "--json")
    found = json.loads(out)
    assert code == 0 and found["stores"] == ["licences", "manuals"] and found["mixture"] == "with-manuals"
    assert found["retrievals"] == found["tokens"] and "index" not in found
    code, out, _ = nearlm("generate", one, "the licence", *named, "--max-new-tokens", 3, "--explain")
    assert code == 0 and "licences neighbours" in out and "manuals ∞-gram" in out and ": " in out
    for wrong, message in ((["--store", one], "named twice"), (["--store", other, "--skip", 0.5], "--skip is for one")):
        code, _, err = nearlm("eval", one, valid, *wrong)
        assert code == 2 and message in err and err.count("\n") == 1


def test_an_explanation_names_the_store():
    near = [(1.5, Context("a.txt", 3, "the", " licence", "licences"))]
    sources = {"licences/knn": (0.5, 0.9), "text": (0.1, 0.2)}
    one = Explanation(" licence", 0.1, 0.9, 0.5, 0.6, near, sources, Suffix(4, 1, "b.txt", "manuals"))
    lines = format_explanation(one).splitlines()
    assert lines[1].strip() == "weights: licences neighbours 0.50 of 0.9000, text so far 0.10 of 0.2000"
    assert lines[2].endswith("occur once, e.g. in manuals: b.txt") and lines[3].endswith("(licences: a.txt, 3)")
