"""push and pull with folders, as a user types them."""

import json

from refusals import is_refusal

from nearlm.search import build_index
from nearlm.store import Datastore
from synthetic import skewed_store


def test_push_and_pull_a_folder(nearlm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_index(skewed_store(tmp_path / "store"), "flat")
    assert nearlm("push", "store", "./shared", "-q")[:2] == (0, "store is at shared\n")
    assert nearlm("pull", "./shared", "--out", "copy", "-q") == (0, "copy: 500 records\n", "")
    code, out, _ = nearlm("push", "copy", "/".join([str(tmp_path), "slim"]), "--slim", "--json")
    assert code == 0 and json.loads(out) == {"store": "copy", "pushed": str(tmp_path / "slim")}
    assert json.loads(nearlm("info", "slim", "--json")[1])["slim"] is True
    assert nearlm("verify", "slim")[0] == 0
    assert Datastore.open("slim").slim


def test_what_cannot_be_is_one_line(nearlm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    skewed_store(tmp_path / "store")
    assert is_refusal(nearlm("push", "store", "./slim", "--slim", "-q"))
    assert is_refusal(nearlm("push", "none", "./x"))
    assert is_refusal(nearlm("pull", "./store"))
    assert is_refusal(nearlm("pull", "./nowhere", "--out", "copy"))
    assert is_refusal(nearlm("pull", "hf:name"))
    assert is_refusal(nearlm("pull", "user/name", "--out", "copy"))  # tests have no network
    assert not (tmp_path / "copy").exists()
