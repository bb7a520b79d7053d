"""From a store to a continuation, as a user types it."""

import errno
import io
import json
import os
import sys

import pytest
from refusals import is_refusal

from nearlm.base import OptionError
from nearlm.mixing.traces import room_for_traces


def test_from_a_store_to_a_continuation(nearlm, text_store, monkeypatch):
    valid = text_store.parent / "valid.txt"
    code, out, err = nearlm("eval", text_store, "--text", valid)
    assert code == 2 and "nearlm index" in err and err.count("\n") == 1
    code, out, _ = nearlm("index", text_store, "--json", "-q")
    assert code == 0 and json.loads(out)["recall"] == 1.0
    code, out, err = nearlm("eval", text_store, valid)
    assert code == 0 and "nearlm: warning: index 'default' is not tuned, using λ=0.25 and T=1; tune it: nearlm" in err
    assert nearlm("eval", text_store, valid, "-q")[2] == ""
    assert "index 'default' is not tuned" in nearlm("verify", text_store)[2]
    code, out, _ = nearlm("tune", text_store, "--text", valid, "-q")
    assert code == 0 and "kept with the index" in out and "the paper's T=1" in out
    code, out, _ = nearlm("eval", text_store, "--text", valid, "-q", "--json")
    tuned = json.loads(out)
    assert code == 0 and tuned["perplexity"] < tuned["nlm_perplexity"] and tuned["retrievals"] == tuned["tokens"]
    code, out, _ = nearlm("eval", text_store, "--text", valid, "-q", "--json", "--no-knn")
    assert json.loads(out)["perplexity"] == pytest.approx(tuned["nlm_perplexity"], rel=1e-5)
    code, out, err = nearlm("generate", text_store, "--prompt", "the licence", "--max-new-tokens", 4, "--explain")
    assert code == 0 and out.count("p_kNN") == 4 and "train.txt" in out
    assert nearlm("generate", text_store, "--prompt", "the licence", "--max-new-tokens", 4, "--beams", 2)[0] == 0
    assert "default" in nearlm("info", text_store)[1] and nearlm("verify", text_store)[0] == 0
    assert json.loads(nearlm("eval", text_store, valid, "--json")[1])["perplexity"] == tuned["perplexity"]
    assert json.loads(nearlm("tune", text_store, valid, "--json")[1])
    said = nearlm("generate", text_store, "the licence", "--max-new-tokens", 4, "--top-k", 1, "--json")
    assert said[0] == 0 and len(json.loads(said[1])["tokens"]) == 4
    monkeypatch.setattr(sys, "stdin", io.StringIO("the licence"))
    read = json.loads(nearlm("generate", text_store, "-", "--max-new-tokens", 4, "--no-draft", "--json")[1])
    assert read["tokens"] == json.loads(said[1])["tokens"] and (read["passes"], read["drafted"]) == (4, 0)


def make_index(nearlm, store):
    if not (store / "index").exists():
        nearlm("index", store, "-q")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("index", "STORE", "--factory", "nonsense"), "not a FAISS factory"),
        (("index", "STORE", "--index", "a/b"), "plain name"),
        (("eval", "STORE", "--text", "VALID", "--lam", "2"), "expected 0 to 1"),
        (("eval", "STORE", "--text", "VALID", "--knn-temperature", "-1"), "--knn-temperature"),
        (("eval", "STORE", "--text", "VALID", "--k", "0"), "--k"),
        (("eval", "STORE", "--text", "VALID", "--index", "none"), "no index"),
        (("eval", "STORE", "--text", "VALID", "--distances", "near"), "--distances"),
        (("eval", "STORE", "--text", "VALID", "--stride", "9999"), "--stride"),
        (("eval", "STORE", "--text", "missing.txt"), "does not exist"),
        (("generate", "STORE", "--prompt", "x", "--chat"), "chat template"),
        (("generate", "STORE", "--prompt", "x", "--max-new-tokens", "0"), "at least 1"),
        (("generate", "STORE", "x", "--temperature", "0"), "--temperature is 0.0"),
        (("generate", "STORE", "x", "--top-p", "2"), "--top-p is 2.0"),
        (("generate", "STORE", "x", "--top-k", "many"), "--top-k"),
        (("generate", "STORE", "x", "y"), "put a prompt in quotes"),
        (("eval", "STORE", "VALID", "--text", "VALID"), "not both"),
        (("eval", "STORE"), "no text was given"),
        (("tune", "STORE", "--text", "x.txt", "--k", "0"), "--k is 0"),
        (("tune", "nowhere", "--text", "VALID"), "does not exist"),
        (("gate", "nowhere", "--text", "VALID"), "does not exist"),
        (("gate", "STORE", "--text", "VALID", "--features", "keys,size"), "--features"),
        (("gate", "STORE", "--text", "VALID", "--objective", "guess"), "--objective"),
        (("gate", "STORE", "--text", "VALID", "--l1", "-3"), "--l1 is"),
        (("gate", "STORE", "--text", "VALID", "--standardise", "some"), "--standardise"),
        (("gate", "STORE", "--text", "VALID", "--gate", "a/b"), "plain name"),
        (("gate", "STORE", "--text", "VALID", "--index", "none"), "no index 'none'"),
        (("gate", "STORE", "--text", "VALID", "--sources", "lm"), "--sources"),
        (("eval", "STORE", "--text", "VALID", "--skip", "0.5"), "--gate"),
        (("eval", "STORE", "--text", "VALID", "--budget", "0.5"), "--gate"),
        (("eval", "STORE", "--text", "VALID", "--gate", "../x"), "plain name"),
    ],
)
def test_nonsense_gets_one_line(nearlm, text_store, arguments, expected):
    make_index(nearlm, text_store)
    places = {"STORE": text_store, "VALID": text_store.parent / "valid.txt"}
    code, _, err = nearlm(*(places.get(argument, argument) for argument in arguments))
    assert code == 2 and expected in err
    assert err.splitlines()[-1].startswith("nearlm: ") and "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["generate", "STORE", "a", "--seed", 2**70], "--seed is 1180591620717411303424"),
        (["generate", "STORE", "a", "--nprobe", 2**70], "--nprobe is 1180591620717411303424"),
        (["generate", "STORE", "\udcff"], "the prompt is not valid UTF-8"),
        (["eval", "STORE", "VALID", "--stride", 0, "-q"], "--stride is 0"),
        (["sweep", "STORE", "nan", "--over", "dim", "--text", "VALID"], "has nan, expected whole numbers"),
        (["sweep", "STORE", "inf", "--over", "dim", "--text", "VALID"], "has inf, expected whole numbers"),
        (["prune", "STORE", "--method", "random", "--keep", 0.5, "--seed", -1, "--out", "x"], "--seed is -1"),
        (["index", "STORE", "--index", "x", "--factory", "IVF40000,Flat"], "asks for 40000, expected at most"),
        (["index", "STORE", "--index", "x", "--factory", "IVF0,Flat"], "0 of something"),
        (["index", "STORE", "--index", "x", "--factory", "HNSW0"], "0 of something"),
        (["index", "STORE", "--index", "x", "--factory", "NSG16"], "a graph of kind NSG"),
        (["index", "STORE", "--index", "x", "--factory", "IDMap,Flat", "-q"], "FAISS cannot make"),
        (["reduce", "STORE", "--dim", 8, "--out", "x\udcff"], "no UTF-8 file name"),
        (["reduce", "STORE", "--dim", 8, "--out", "LOOP"], "leads back to itself"),
    ],
)
def test_odd_values_are_refused_in_one_line_before_anything_is_written(
    nearlm, text_store, tmp_path, monkeypatch, command, says
):
    make_index(nearlm, text_store)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    indexes = sorted(text_store.glob("index/*"))
    places = {"STORE": text_store, "VALID": text_store.parent / "valid.txt", "LOOP": tmp_path / "loop"}
    result = nearlm(*(places.get(word, word) for word in command))
    assert is_refusal(result), result
    assert says in result[2]
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]
    assert sorted(text_store.glob("index/*")) == indexes


def test_a_closed_stdin_holds_no_prompt(nearlm, text_store, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    result = nearlm("generate", text_store, "-")
    assert is_refusal(result)
    assert "stdin is closed" in result[2]


@pytest.mark.parametrize("room", ["inf", "nan", "-1", "much"])
def test_odd_room_for_traces_is_refused(monkeypatch, room):
    monkeypatch.setenv("NEARLM_TRACE_GB", room)
    with pytest.raises(OptionError, match="NEARLM_TRACE_GB is"):
        room_for_traces()


def test_a_full_disk_names_the_file_and_the_remedy(nearlm, text_store, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    code, _, err = nearlm("index", text_store, "--index", "full", "-q")
    assert code == 2
    assert "index/full" in err and "No space left" in err and "free some space" in err
