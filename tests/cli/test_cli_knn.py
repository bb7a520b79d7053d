"""The commands from a store to a continuation, as a user types them."""

import json

import pytest

from calls import build
from conftest import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("cli-knn")
    (folder / "train.txt").write_text(make_text(300, seed=1))
    (folder / "valid.txt").write_text(make_text(80, seed=2))
    build(str(model_folder), str(folder / "train.txt"), folder / "store", window=64, quiet=True)
    return folder / "store"


def test_from_a_store_to_a_continuation(nearlm, store):
    valid = store.parent / "valid.txt"
    code, out, err = nearlm("eval", store, "--text", valid)
    assert code == 2 and "nearlm index" in err and err.count("\n") == 1
    code, out, _ = nearlm("index", store, "--json", "-q")
    assert code == 0 and json.loads(out)["recall"] == 1.0
    code, out, _ = nearlm("tune", store, "--text", valid, "-q")
    assert code == 0 and "kept with the index" in out and "the paper's T=1" in out
    code, out, _ = nearlm("eval", store, "--text", valid, "-q", "--json")
    tuned = json.loads(out)
    assert code == 0 and tuned["perplexity"] < tuned["nlm_perplexity"] and tuned["retrievals"] == tuned["tokens"]
    code, out, _ = nearlm("eval", store, "--text", valid, "-q", "--json", "--no-knn")
    assert json.loads(out)["perplexity"] == pytest.approx(tuned["nlm_perplexity"], rel=1e-5)
    code, out, err = nearlm("generate", store, "--prompt", "the licence", "--max-new-tokens", 4, "--explain")
    assert code == 0 and out.count("p_kNN") == 4 and "train.txt" in out
    assert nearlm("generate", store, "--prompt", "the licence", "--max-new-tokens", 4, "--beams", 2)[0] == 0
    assert "default" in nearlm("info", store)[1] and nearlm("verify", store)[0] == 0


def test_from_an_index_to_an_adaptor(nearlm, store):
    valid = store.parent / "valid.txt"
    nearlm("index", store, "-q")
    nearlm("tune", store, "--text", valid, "-q")
    code, out, err = nearlm("eval", store, "--text", valid, "--adaptor", "nothing", "-q")
    assert code == 2 and "nearlm adapt" in err and err.count("\n") == 1
    code, out, err = nearlm("adapt", store, "--text", valid)
    assert code == 0 and "50 % skipped" in out and "few to learn from" in err
    code, out, _ = nearlm("adapt", store, "--text", valid, "-q", "--json", "--adaptor", "other", "--features", "fert")
    made = json.loads(out)
    assert code == 0 and made["shape"]["features"] == ["fert"] and len(made["thresholds"]) == 99
    code, out, _ = nearlm("eval", store, "--text", valid, "-q", "--json", "--adaptor", "other", "--skip", 0.5)
    found = json.loads(out)
    assert code == 0 and found["retrievals"] == round((1 - found["skipped"]) * found["tokens"])
    assert 0.2 < found["skipped"] < 0.8
    code, out, _ = nearlm("eval", store, "--text", valid, "-q", "--adaptor", "other", "--skip", "auto", "--budget", 1)
    assert code == 0 and "skipped" in out and "adaptor share" in out
    generated = nearlm(
        "generate", store, "--prompt", "the", "--max-new-tokens", 4, "--adaptor", "other", "--skip", "0.5", "--explain"
    )
    assert generated[0] == 0 and generated[1].count("p_kNN") == 4
    assert nearlm("verify", store)[0] == 0
    weights = store / "adaptor" / "other" / "adaptor.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, err = nearlm("verify", store)
    assert code == 2 and "adaptor.safetensors" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("index", "STORE", "--factory", "nonsense"), "no FAISS factory"),
        (("index", "STORE", "--index", "a/b"), "plain name"),
        (("eval", "STORE", "--text", "VALID", "--lam", "2"), "expected 0 to 1"),
        (("eval", "STORE", "--text", "VALID", "--temperature", "-1"), "--temperature"),
        (("eval", "STORE", "--text", "VALID", "--k", "0"), "--k"),
        (("eval", "STORE", "--text", "VALID", "--index", "none"), "no index"),
        (("eval", "STORE", "--text", "VALID", "--distances", "near"), "--distances"),
        (("eval", "STORE", "--text", "VALID", "--stride", "9999"), "--stride"),
        (("eval", "STORE", "--text", "missing.txt"), "does not exist"),
        (("generate", "STORE", "--prompt", "x", "--chat"), "chat template"),
        (("generate", "STORE", "--prompt", "x", "--max-new-tokens", "0"), "at least 1"),
        (("tune", "STORE", "--text", "x.txt", "--k", "0"), "--k is 0"),
        (("tune", "nowhere", "--text", "VALID"), "does not exist"),
        (("adapt", "nowhere", "--text", "VALID"), "does not exist"),
        (("adapt", "STORE", "--text", "VALID", "--features", "keys,size"), "--features"),
        (("adapt", "STORE", "--text", "VALID", "--objective", "guess"), "--objective"),
        (("adapt", "STORE", "--text", "VALID", "--a", "-3"), "--a is"),
        (("adapt", "STORE", "--text", "VALID", "--standardise", "some"), "--standardise"),
        (("adapt", "STORE", "--text", "VALID", "--adaptor", "a/b"), "plain name"),
        (("adapt", "STORE", "--text", "VALID", "--index", "none"), "nearlm tune"),
        (("eval", "STORE", "--text", "VALID", "--skip", "0.5"), "--adaptor"),
        (("eval", "STORE", "--text", "VALID", "--budget", "0.5"), "--adaptor"),
        (("eval", "STORE", "--text", "VALID", "--adaptor", "../x"), "plain name"),
    ],
)
def test_nonsense_gets_one_line(nearlm, store, arguments, expected):
    if not (store / "index").exists():
        nearlm("index", store, "-q")
    places = {"STORE": store, "VALID": store.parent / "valid.txt"}
    code, _, err = nearlm(*(places.get(argument, argument) for argument in arguments))
    assert code == 2 and expected in err
    assert err.splitlines()[-1].startswith("nearlm: ") and "Traceback" not in err
