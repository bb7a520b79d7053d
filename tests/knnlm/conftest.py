"""Stores with gates, texts, and a kNN-LM in float64."""

import pytest
from gated import SETTINGS, WINDOW, untrained

from calls import build, build_index, load_knnlm
from nearlm.base import files
from nearlm.mixing import Mixture, Training
from nearlm.mixing.gate import Gate
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.network_files import save_trained
from nearlm.mixing.ngrams import build_ngrams
from nearlm.model.lm import LM
from nearlm.search.retriever import Retriever
from tiny import make_llama, make_text


@pytest.fixture(scope="module")
def double_lm(tokenizer):
    """A float64 model, so that rounding cannot hide anything."""
    return LM(make_llama(seed=3).double(), tokenizer, name="double")


@pytest.fixture(scope="module")
def store(tmp_path_factory, double_lm):
    folder = tmp_path_factory.mktemp("adaptive")
    for number in range(2):
        (folder / f"train{number}.txt").write_text(make_text(250, seed=number))
    made = build(double_lm, str(folder), folder / "store", window=WINDOW, key_dtype="float32", quiet=True)
    build_index(made, "flat", quiet=True)
    files.write_stamped(made.path / "index" / "default" / "settings.json", {**SETTINGS, "lam": 0.4})
    build_ngrams(made)
    for name, weight, features in (
        ("learned", "learned", ("keys", "conf", "ent", "freq", "fert")),
        ("counts", "learned", ("freq", "fert")),
        ("constant", "constant", ("keys", "conf", "ent", "fert")),
    ):
        save_trained(made.layout.gate(name), *untrained(made, double_lm, weight, features))
    return made


@pytest.fixture(scope="module")
def test_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive-text")
    for number in range(3):
        (folder / f"test{number}.txt").write_text(make_text(70, seed=90 + number))
    return folder


@pytest.fixture
def searches(monkeypatch):
    """The number of queries of every search."""
    counted, real = [], Retriever.search

    def search(self, queries, k=None, **options):
        counted.append(len(queries))
        return real(self, queries, k, **options)

    monkeypatch.setattr(Retriever, "search", search)
    return counted


@pytest.fixture(scope="module")
def knnlm(tmp_path_factory, tokenizer):
    """A float64 model with a memory of some text, so that ties and rounding cannot hide anything."""
    folder = tmp_path_factory.mktemp("knnlm")
    (folder / "text.txt").write_text(make_text(400, seed=5))
    lm = LM(make_llama(seed=3).double(), tokenizer, name="double")
    store = build(lm, str(folder / "text.txt"), folder / "store", window=64, key_dtype="float32", quiet=True)
    build_index(store, "flat", quiet=True)
    return load_knnlm(store, lm, lam=0.5, knn_temperature=3.0, k=32)


@pytest.fixture(scope="module")
def mixed(store, double_lm, test_text):
    """The store with a mixture, and a gate for it, both called `mixed`."""
    Mixture.train(store, str(test_text), double_lm, name="mixed")
    Gate.train(store, str(test_text), double_lm, Training(epochs=1), name="mixed", mixture="mixed")
    return store


@pytest.fixture(scope="module")
def bare(tmp_path_factory, double_lm):
    """A float64 model with a memory without keys, used by the usual weights."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "text.txt").write_text(make_text(300, seed=5))
    made = build(double_lm, str(folder / "text.txt"), folder / "store", window=WINDOW, quiet=True, keys="none")
    build_infinigram(made)
    return load_knnlm(made, double_lm, mixture="none")
