"""Building a store, looking into it and verifying it, as a user types it."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest
from refusals import is_refusal

from nearlm import mixing
from nearlm.mixing import InfiniGram, build_infinigram
from nearlm.store import BuildOptions, builder
from nearlm.store.datastore import Datastore
from synthetic import skewed_store
from tiny import make_text


def test_build_info_verify(nearlm, tmp_path, model_folder, text_folder):
    out = tmp_path / "store"
    code, stdout, stderr = nearlm("build", "--model", model_folder, "--text", text_folder, "--out", out)
    assert (code, stdout) == (0, "")
    assert "records" in stderr and "needs" in stderr
    assert "\x1b" not in stderr and "\r" not in stderr

    code, stdout, stderr = nearlm("info", out)
    assert (code, stderr) == (0, "")
    opened = Datastore.open(out)
    assert re.search(rf"^records +{len(opened):,}$", stdout, re.M)
    assert re.search(r"^pack +no$", stdout, re.M)

    code, stdout, stderr = nearlm("verify", out)
    assert code == 0
    assert "all as they were written" in stdout


def test_options_reach_the_build(nearlm, tmp_path, model_folder, text_folder):
    options = "--window 64 --stride 32 --pack --separator none --max-tokens 300 --batch-tokens 256 --shard-records 128"
    more = "--key-dtype float32 --key-tap last_hidden --glob doc[01].txt --strict --quiet"
    command = ("build", *options.split(), *more.split(), "--text", text_folder, "--model", model_folder)
    assert nearlm(*command, "--out", tmp_path / "store") == (0, "", "")
    manifest = Datastore.open(tmp_path / "store").manifest
    expected = {"window": 64, "stride": 32, "pack": True, "separator": [], "tokens": 300, "records": 299}
    assert {name: getattr(manifest, name) for name in expected} == expected
    assert manifest.key_dtype == "float32"
    assert len(manifest.shards) > 1


def test_every_build_option_is_passed_on(nearlm, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(mixing, "build_text_first", lambda *args, **options: seen.update(options, args=args))
    nearlm("build", "--model", "m", "--text", "t", "--out", "o", "--revision", "r", "--adapter", "a", "--field", "f")
    spec, source, out, options = seen.pop("args")
    assert (spec.model, spec.revision, spec.adapter, spec.device) == ("m", "r", "a", "auto")
    assert (source.text, source.field, out, options) == (("t",), "f", "o", BuildOptions())
    for flag, bos in (("--bos", True), ("--no-bos", False)):
        nearlm("build", "t", "--model", "m", "--out", "o", flag, "--window", "64")
        assert seen.pop("args")[3] == BuildOptions(bos=bos, window=64)


def test_text_takes_what_a_shell_makes_of_a_glob(nearlm, monkeypatch):
    seen = []
    monkeypatch.setattr(mixing, "build_text_first", lambda spec, source, *_, **options: seen.append(source.text))
    monkeypatch.setattr(mixing, "catch_up", lambda *_: None)
    assert nearlm("build", "--text", "a", "b", "c", "--out", "o", "--model", "m")[0] == 0
    assert nearlm("build", "--text", "a", "--text", "b", "--out", "o", "--model", "m")[0] == 0
    assert nearlm("build", "a", "b", "--out", "o", "--model", "m")[0] == 0
    assert nearlm("build", "a", "--out", "o", "-q", "b", "--model", "m")[0] == 0
    assert nearlm("build", "--out", "o", "--model", "m", "a", "-")[0] == 0
    assert seen == [("a", "b", "c"), ("a", "b"), ("a", "b"), ("a", "b"), ("a", "-")]


def test_a_text_in_both_forms_is_refused_in_words(nearlm, tmp_path):
    result = nearlm("build", "a", "--text", "b", "--out", tmp_path / "o", "--model", "m")
    assert is_refusal(result) and "no place for 'a': name a text with --text or without, not both" in result[2]


def test_build_and_verify_as_json(nearlm, tmp_path, model_folder, text_folder):
    code, out, err = nearlm("build", text_folder, "--model", model_folder, "--out", tmp_path / "store", "--json")
    assert code == 0 and "records" in err
    assert json.loads(out) == json.loads(nearlm("info", tmp_path / "store", "--json")[1])
    checked = json.loads(nearlm("verify", tmp_path / "store", "--json")[1])
    opened = Datastore.open(tmp_path / "store")
    assert (checked["files"], checked["bytes"]) == (len(opened.manifest.files), opened.bytes)
    assert (checked["indexes"], checked["gates"]) == ([], [])


@pytest.mark.parametrize("text", [["--text", "-"], ["-"]])
def test_stdin_is_a_text(nearlm, monkeypatch, tmp_path, model_folder, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the licence grants rights to any person")))
    command = ("build", "--model", model_folder, "--out", tmp_path / "store", "-q", *text)
    assert nearlm(*command) == (0, "", "")
    assert Datastore.open(tmp_path / "store").context_of(0).document == "stdin"


def test_info_as_json(nearlm, store):
    code, out, err = nearlm("info", store, "--json")
    assert (code, err) == (0, "")
    values = json.loads(out)
    assert values["records"] == len(Datastore.open(store))
    assert nearlm("info", "--json", store)[1] == out


def test_info_traces_a_record(nearlm, store):
    code, out, err = nearlm("info", store, "--record", 3)
    assert (code, err) == (0, "")
    assert "document  te[bold]xts/a[red] :smile:.txt\n" in out
    traced = json.loads(nearlm("info", "--json", store, "--record", 3)[1])
    assert traced["document"] == "te[bold]xts/a[red] :smile:.txt"
    assert traced["record"] == 3


def test_verify_names_the_damaged_file(nearlm, tmp_path, model_folder, text_folder):
    out = tmp_path / "store"
    nearlm("build", "--model", model_folder, "--text", text_folder, "--out", out, "--quiet")
    path = out / "values-00000.npy"
    values = np.load(path)
    values[3] += 1
    np.save(path, values)
    result = nearlm("verify", out)
    assert is_refusal((result[0], result[1], result[2].splitlines()[-1] + "\n"))
    assert "values-00000.npy" in result[2]


def test_verify_reads_the_suffix_array(nearlm, tmp_path):
    made = skewed_store(tmp_path / "store")
    build_infinigram(made)
    assert nearlm("verify", made.path)[0] == 0
    path = next(made.layout.suffixes.folder.glob("data-*/following.npy"))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    code, _, said = nearlm("verify", made.path)
    assert code == 2 and "following.npy is damaged" in said


def test_a_damaged_file_is_not_used_unless_told_to(nearlm, tmp_path, store, monkeypatch):
    monkeypatch.setenv("NEARLM_VERIFY", "first")  # as it will be again after this test
    copied = tmp_path / "copied"
    shutil.copytree(store, copied)
    path = copied / "values-00000.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])
    code, out, said = nearlm("info", copied, "--record", 0)
    assert (code, out) == (2, "") and "values-00000.npy is damaged" in said
    assert nearlm("info", copied, "--record", 0, "--verify", "never")[0] == 0
    assert nearlm("info", copied, "--record", 0, "--verify", "always")[0] == 2
    assert nearlm("info", copied, "--verify", "perhaps")[0] == 2


def test_stores_in_the_cache_have_names(nearlm, tmp_path, monkeypatch, store):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "mine").symlink_to(store)
    assert nearlm("info", "cache:mine")[0] == 0
    assert nearlm("verify", "cache:mine")[0] == 0


def test_tilde_is_the_home_folder(nearlm, monkeypatch, store):
    monkeypatch.setenv("HOME", str(store.parent))
    assert nearlm("info", "~/store")[0] == 0


def test_skipped_files_are_said_once_with_the_flag_that_reads_them(nearlm, tmp_path, model_folder, text_folder):
    folder = tmp_path / "in"
    shutil.copytree(text_folder, folder)
    for name in ("a.pdf", "b.pdf", "c.ipynb", ".hidden.pdf"):
        (folder / name).touch()
    command = ("build", folder, "--model", model_folder, "--out", tmp_path / "store", "--strict")
    code, _, err = nearlm(*command)
    line = "warning: skipped 3 files of other kinds (2 × .pdf, 1 × .ipynb); choose files with --glob"
    assert code == 0 and err.splitlines().count(line) == 1


def test_names_and_texts_cannot_command_a_terminal(nearlm, model_folder, tmp_path):
    (tmp_path / "a\x1b]0;title\x07.txt").write_text("the licence \x1b[2J grants \x9b rights to any person")
    builder.build(str(model_folder), [str(tmp_path / "a\x1b]0;title\x07.txt")], tmp_path / "store")
    for arguments in ((), ("--record", 3)):
        code, out, _ = nearlm("info", tmp_path / "store", *arguments)
        assert code == 0 and r"a\x1b]0;title\x07.txt" in out and not {"\x1b", "\x07", "\x9b"} & set(out)
    assert json.loads(nearlm("info", tmp_path / "store", "--json")[1])["texts"] == ["a\x1b]0;title\x07.txt"]
    code, _, err = nearlm("info", tmp_path / "no\x1b[31m")
    assert code == 2 and r"no\x1b[31m does not exist" in err


def test_a_store_without_keys_is_ready_at_once_and_gets_its_keys_later(nearlm, tmp_path, model_folder, text_folder):
    out, more, valid = tmp_path / "store", tmp_path / "more.txt", tmp_path / "valid.txt"
    more.write_text(make_text(60, seed=8))
    valid.write_text(make_text(80, seed=9))
    command = ("build", text_folder, "--model", model_folder, "--out", out, "--window", 64)
    code, _, err = nearlm(*command, "--keys", "none")
    assert code == 0 and "tokens without keys" in err and "sorted" in err and "needs" not in err
    assert "is complete already: " in nearlm(*command, "--keys", "none")[2]
    code, _, err = nearlm("build", more, "--out", out, "--append", "--model", model_folder)
    assert code == 0 and "sorted" in err

    info = json.loads(nearlm("info", out, "--json")[1])
    assert (info["records"], info["bytes_per_record"], info["shards"]) == (0, None, 0) and len(info["texts"]) == 2
    assert nearlm("verify", out)[0] == 0
    code, shown, err = nearlm("eval", out, valid)
    assert code == 0 and "nearlm: warning: the memory is not tuned" in err and "nearlm gate" in err
    assert "retrievals" not in shown and "skipped" not in shown and "lm share" in shown
    found = json.loads(nearlm("eval", out, valid, "--json", "-q")[1])
    assert found["perplexity"] < found["nlm_perplexity"] and found["mixture"] == "none"
    code, shown, _ = nearlm("generate", out, "the licence", "--max-new-tokens", 4, "--explain", "-q")
    assert code == 0 and shown.count("∞-gram") == 4 and "p_kNN" not in shown
    code, shown, err = nearlm("gate", out, valid)
    assert code == 0 and "learning to weigh ngram,text, and no gate" in err and "held-out perplexity" in shown
    learned = json.loads(nearlm("gate", out, valid, "--json", "-q")[1])
    assert learned["gate"] is None and learned["mixture"]["sources"] == ["ngram", "text"]
    assert nearlm("eval", out, valid, "--mixture", "default", "-q")[0] == 0

    code, _, err = nearlm(*command)
    assert code == 0 and "sorted" not in err and "mixture 'default' was trained before" in err
    opened = Datastore.open(out)
    assert len(opened) == len(opened.tokens) - opened.manifest.documents and opened.manifest.format == 1
    code, _, err = nearlm("eval", out, valid, "--mixture", "default")
    assert code == 0 and f"was trained before {out} got its keys, and is used as it is; train it again" in err


def test_an_append_brings_the_memory_up_to_date(nearlm, tmp_path, model_folder, text_folder):
    out, more, valid = tmp_path / "store", tmp_path / "more.txt", tmp_path / "valid.txt"
    more.write_text(make_text(60, seed=8))
    valid.write_text(make_text(80, seed=9))
    assert nearlm("build", text_folder, "--model", model_folder, "--out", out, "--window", 64, "-q")[0] == 0
    append = ("build", more, "--out", out, "--append", "--model", model_folder)
    assert nearlm("index", out, "--factory", "flat")[0] == 0
    assert nearlm("gate", out, valid, "--epochs", 1, "-q")[0] == 0
    used = ("eval", out, valid, "--mixture", "default", "--json")
    before = json.loads(nearlm(*used, "-q")[1])
    for repeated in (False, True):  # as after a kill
        code, _, err = nearlm(*append)
        assert code == 0 and ("sorted" in err) != repeated
        assert f"index 'default' lacks the new records; bring it up to date with: nearlm index {out}\n" in err
        assert err.count("was trained before") == 2 and "and is used as it is; nearlm gate trains again" in err
    result = nearlm(*used)
    assert is_refusal(result) and f"bring it up to date with: nearlm index {out}" in result[2]
    assert nearlm("index", out, "-q")[0] == 0
    code, shown, err = nearlm(*used)
    assert code == 0 and err.count("warning") == 1 and "tokens, and is used as it is; train it again" in err
    after = json.loads(shown)
    assert after["perplexity"] != before["perplexity"] and after["nlm_perplexity"] == before["nlm_perplexity"]
    assert len(InfiniGram.open(Datastore.open(out)).tokens) == json.loads(nearlm("info", out, "--json")[1])["tokens"]
    assert nearlm("gate", out, valid, "--epochs", 1, "-q")[0] == 0
    assert "warning" not in nearlm(*used)[2]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["index", "STORE"], "nearlm build --text"),
        (["tune", "STORE", "VALID"], "nearlm gate"),
        (["reduce", "STORE", "--dim", 8, "--out", "x"], "nearlm build --text"),
        (["prune", "STORE", "--method", "random", "--keep", 0.5, "--out", "x"], "nearlm build --text"),
        (["sweep", "STORE", 8, "--over", "dim", "--text", "VALID"], "nearlm build --text"),
        (["optimize", "STORE", "VALID", "--out", "x"], "nearlm build --text"),
        (["ablate", "STORE", "VALID"], "nearlm build --text"),
        (["gate", "STORE", "VALID", "--sources", "none"], "nearlm build --text"),
        (["info", "STORE", "--record", 0], "nearlm build --text"),
        (["eval", "STORE", "VALID", "--k", 5], "--k has no effect"),
        (["build", "VALID", "--out", "STORE", "--append", "--keys", "all"], "--keys is all"),
    ],
)
def test_what_needs_keys_is_refused_in_one_line(nearlm, bare_store, command, named):
    places = {"STORE": bare_store, "VALID": bare_store.parent / "valid.txt"}
    result = nearlm(*(places.get(word, word) for word in command))
    assert is_refusal(result) and "keys" in result[2] and named in result[2], result
