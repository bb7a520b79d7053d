"""Commands that edit a store."""

import json

import pytest

from calls import build
from nearlm.search import build_index
from nearlm.store import Datastore
from tiny import make_text


@pytest.fixture
def store(lm, text_folder, tmp_path):
    made = build(lm, str(text_folder), tmp_path / "store", window=32, quiet=True)
    build_index(made, "flat")
    return made


def test_add_forget_and_compact(nearlm, store, tmp_path):
    page = tmp_path / "page.txt"
    page.write_text(make_text(30, seed=8))
    code, out, _ = nearlm("add", store.path, "--text", page, "--json")
    assert code == 0 and json.loads(out)["documents"] == 6
    code, out, _ = nearlm("forget", store.path, "--source", "*page.txt", "--dry-run")
    assert code == 0 and "1 documents" in out and "would be forgotten" in out and "page.txt" in out
    code, out, _ = nearlm("forget", store.path, "--source", "*page.txt", "--json")
    assert code == 0 and json.loads(out)["records"] > 0
    code, out, _ = nearlm("info", store.path, "--json")
    assert json.loads(out)["forgotten_on_disk"] == 1
    code, _, err = nearlm("compact", store.path)
    assert code == 0 and "are kept" in err
    assert len(Datastore.open(store.path).document_names()) == 5


@pytest.mark.parametrize(
    "arguments",
    [(), ("--document", "nobody"), ("--source", "*"), ("--matching", "("), ("--matching", "no such words at all")],
)
def test_what_cannot_be_forgotten_is_refused_in_one_line(nearlm, store, arguments):
    code, out, err = nearlm("forget", store.path, *arguments)
    assert code == 2 and out == "" and err.count("\n") == 1
    assert Datastore.open(store.path).forgotten is None


def test_a_derived_store_says_what_it_still_holds(nearlm, store, tmp_path):
    assert nearlm("reduce", store.path, "--dim", "8", "--out", tmp_path / "narrow")[0] == 0
    code, out, _ = nearlm("forget", store.path, "--source", "*doc3.txt")
    assert code == 0 and "narrow" in out
    assert nearlm("compact", store.path)[0] == 0
    code, out, _ = nearlm("info", tmp_path / "narrow", "--json")
    assert [name.endswith("doc3.txt") for name in json.loads(out)["no_longer_in_its_parent"]] == [True]
    code, _, err = nearlm("verify", tmp_path / "narrow")
    assert code == 0 and "forgotten" in err and "doc3.txt" in err
    code, _, err = nearlm("forget", tmp_path / "narrow", "--source", "*doc3.txt")
    assert code == 2 and "was made from" in err
