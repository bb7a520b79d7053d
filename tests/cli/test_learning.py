"""From an index to a gate, as a user types it."""

import json


def test_from_an_index_to_a_gate(nearlm, text_store):
    valid = text_store.parent / "valid.txt"
    nearlm("index", text_store, "-q")
    nearlm("tune", text_store, "--text", valid, "-q")
    code, out, err = nearlm("eval", text_store, "--text", valid, "--gate", "nothing", "-q")
    assert code == 2 and "nearlm gate" in err and err.count("\n") == 1
    code, out, err = nearlm("gate", text_store, "--text", valid)
    assert code == 0 and "50 % skipped" in out and "few to learn from" in err
    code, out, _ = nearlm("gate", text_store, "--text", valid, "-q", "--json", "--gate", "other", "--features", "fert")
    made = json.loads(out)
    assert code == 0 and made["gate"]["shape"]["features"] == ["fert"] and len(made["gate"]["thresholds"]) == 99
    assert made["mixture"]["sources"] == ["knn", "ngram", "text"]
    code, out, _ = nearlm("eval", text_store, "--text", valid, "-q", "--json", "--gate", "other", "--skip", 0.5)
    found = json.loads(out)
    assert code == 0 and found["retrievals"] == round((1 - found["skipped"]) * found["tokens"])
    assert 0.2 < found["skipped"] < 0.8
    code, out, _ = nearlm("eval", text_store, "--text", valid, "-q", "--gate", "other", "--skip", "auto", "--budget", 1)
    assert code == 0 and "skipped" in out and "gate share" in out
    generated = nearlm(
        "generate",
        text_store,
        "--prompt",
        "the",
        "--max-new-tokens",
        4,
        "--gate",
        "other",
        "--skip",
        "0.5",
        "--explain",
    )
    assert generated[0] == 0 and generated[1].count("p_kNN") == 4
    assert nearlm("verify", text_store)[0] == 0
    weights = text_store / "gate" / "other" / "gate.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, err = nearlm("verify", text_store)
    assert code == 2 and "gate.safetensors" in err


def test_experiments_print_one_json_object(nearlm, text_store, tmp_path, quick_timing):
    valid = text_store.parent / "valid.txt"
    nearlm("index", text_store, "-q")
    assert json.loads(nearlm("tune", text_store, valid, "--json")[1])["best"]
    assert json.loads(nearlm("gate", text_store, valid, "--sources", "none", "--json")[1])["gate"]["shape"]
    assert json.loads(nearlm("ablate", text_store, valid, "--json")[1])["curves"]
    out = nearlm("sweep", text_store, 8, "--over", "dim", "--text", valid, "--out", tmp_path / "sweep", "--json")[1]
    assert [point["value"] for point in json.loads(out)["points"]] == [None, 8]
