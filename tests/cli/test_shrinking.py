"""From a built store to a reduced and pruned one that every command takes as it is."""

import json

import numpy as np
import pytest

from calls import build
from nearlm.search.retriever import Retriever
from nearlm.store.datastore import Datastore
from tiny import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("smaller")
    (folder / "train.txt").write_text(make_text(400, seed=1))
    (folder / "valid.txt").write_text(make_text(60, seed=2))
    build(str(model_folder), str(folder / "train.txt"), folder / "store", window=64, quiet=True)
    return folder / "store"


CHAINS = {
    "reduced, merged": (("reduce", "--dim", 12), ("prune", "--method", "merge", "--keep", 0.7)),
    "merged, reduced": (("prune", "--method", "merge", "--neighbors", 6), ("reduce", "--dim", 12)),
    "clustered, reduced": (("prune", "--method", "kmeans", "--ratio", 3), ("reduce", "--dim", 20)),
    "reduced, ranked": (("reduce", "--dim", 12), ("prune", "--method", "rank", "--keep", 0.5)),
    "random, clustered": (
        ("prune", "--method", "random", "--keep", 0.8),
        ("prune", "--method", "kmeans", "--keep", 0.5),
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_every_command_takes_a_derived_store_as_it_is(nearlm, store, tmp_path, chain):
    last, valid = store, store.parent / "valid.txt"
    for number, (verb, *options) in enumerate(CHAINS[chain]):
        out = tmp_path / f"{number}"
        code, said, err = nearlm(verb, last, *options, "--out", out, "--json", "-q")
        assert code == 0, err
        assert json.loads(said)["records"] == len(Datastore.open(out))
        last = out
    made = Datastore.open(last)
    assert len(made.manifest.transforms) == 2 and made.bytes < Datastore.open(store).bytes
    assert nearlm("index", last, "-q")[0] == 0
    if "clustered" not in chain:  # a survivor's own key, as the model gave it, leads to it
        built = Datastore.open(store)
        raw = built.keys.take(np.searchsorted(built.origin[:], made.origin[:40]))
        near = Retriever(made, distances="store").search(raw, 1)
        assert np.isin(made.values.take(near.ids[:, 0]), made.values[:40]).all() and near.distances.max() < 0.01
    for command in (("tune", last, "--text", valid, "-q"), ("verify", last)):
        assert nearlm(*command)[0] == 0
    code, said, err = nearlm("eval", last, "--text", valid, "--json", "-q")
    found = json.loads(said)
    assert code == 0 and found["perplexity"] < found["nlm_perplexity"], err
    for distances in ("store", "parent"):
        code, said, err = nearlm("eval", last, "--text", valid, "--json", "-q", "--distances", distances)
        assert code == (2 if (chain, distances) == ("random, clustered", "parent") else 0), err
    code, said, err = nearlm("generate", last, "--prompt", "the licence grants", "--max-new-tokens", 4, "--explain")
    assert code == 0 and said.strip(), err
    code, said, _ = nearlm("info", last)
    assert code == 0 and CHAINS[chain][0][0] in said
    heavy = int(np.argmax(made.weights[:]))
    code, said, _ = nearlm("info", last, "--record", heavy, "--json")
    traced = json.loads(said)
    assert code == 0 and traced["weight"] == made.weights[heavy]
    assert traced.get("positions", [int(made.origin[heavy])]) == made.positions_of(heavy).tolist()[:100]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("reduce", "STORE", "--dim", "33", "--out", "OUT"), "--dim is 33, expected 1 to 32"),
        (("reduce", "STORE", "--dim", "x", "--out", "OUT"), "--dim"),
        (("reduce", "STORE", "--dim", "4", "--out", "STORE"), "choose another folder"),
        (("reduce", "nowhere", "--dim", "4", "--out", "OUT"), "does not exist"),
        (("reduce", "STORE", "--dim", "4", "--sample", "1", "--out", "OUT"), "--sample is 1"),
        (("prune", "STORE", "--method", "best", "--out", "OUT"), "expected one of random, kmeans, merge, rank"),
        (("prune", "STORE", "--method", "random", "--out", "OUT"), "needs --keep"),
        (("prune", "STORE", "--method", "random", "--keep", "60", "--out", "OUT"), "at most 1"),
        (("prune", "STORE", "--method", "merge", "--out", "OUT"), "one of the two"),
        (("prune", "STORE", "--method", "merge", "--neighbors", "500", "--out", "OUT"), "2 to 101"),
        (("prune", "STORE", "--method", "merge", "--keep", "0.001", "--out", "OUT"), "least that can be reached"),
        (("prune", "STORE", "--method", "kmeans", "--count-self", "--out", "OUT"), "--count-self has no effect"),
        (("prune", "STORE", "--method", "rank", "--keep", "0.5", "--k", "0", "--out", "OUT"), "--k is 0"),
        (("prune", "STORE", "--method", "random", "--keep", "0.5", "--index", "a", "--out", "OUT"), "--index has no"),
        (("prune", "STORE", "--method", "random", "--keep", "0.5", "--out", "FILE"), "is a file"),
        (("eval", "STORE", "--text", "FILE", "--distances", "parent"), "no parent"),
    ],
)
def test_nonsense_gets_one_line(nearlm, store, tmp_path, arguments, expected):
    nearlm("index", store, "-q")
    places = {"STORE": store, "OUT": tmp_path / "out", "FILE": store.parent / "valid.txt"}
    code, _, err = nearlm(*(places.get(argument, argument) for argument in arguments))
    assert code == 2 and expected in err, err
    assert err.splitlines()[-1].startswith("nearlm: ") and "Traceback" not in err
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_an_index_takes_as_many_bytes_as_it_may(nearlm, store, monkeypatch):
    monkeypatch.setattr("nearlm.search.kinds._FEW", 0)
    code, said, err = nearlm("index", store, "--index", "narrow", "--bytes", 8, "--json")
    assert code == 0 and "16 principal axes × variance^-0.25, 4 bits each" in err and "codes of 8 bytes" in err
    narrow = json.loads(said)
    assert (narrow["spec"]["pca"], narrow["factory"]) == (16, "auto")
    code, said, _ = nearlm("index", store, "--index", "narrow", "--bytes", 4, "--json", "-q")
    assert code == 0 and json.loads(said)["bytes_per_record"] < narrow["bytes_per_record"]
    code, _, err = nearlm("index", store, "--index", "narrow", "--ram", "1kB")
    assert code == 2 and "--ram is 1.0 kB, too little for" in err
    code, _, err = nearlm("index", store, "--index", "narrow", "--factory", "paper", "--bytes", 8)
    assert code == 2 and "--bytes is 8, but only --factory auto goes by it" in err
