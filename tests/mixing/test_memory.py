"""Which settings a memory gets: what is given, what the gate or tuning found, the store's defaults, the usual."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from calls import build_index, prune_store, reduce_store
from nearlm.base import NearLMWarning, OptionError, StoreError
from nearlm.mixing import Gate, Memory, Mixture, learn_all, tune
from nearlm.mixing.equations import log_p_knn
from nearlm.mixing.mixture_features import Known
from nearlm.search import Retriever, faiss_index
from nearlm.store import Datastore, SearchSettings, Tuned, write_defaults, write_tuned


@pytest.fixture
def opened(tuned_store, gate):
    """A store whose default index is tuned and has a gate; what a test writes as defaults is gone after it."""
    yield tuned_store
    tuned_store.layout.defaults.unlink(missing_ok=True)


def test_what_was_tuned_is_used_and_what_is_given_goes_before(opened):
    settings = Memory.open(opened).settings
    assert (settings.index, settings.k, settings.knn_temperature, settings.lam) == ("default", 32, 3.0, 0.3)
    assert (settings.nprobe, settings.distances) == (8, "index")
    given = SearchSettings(k=5, knn_temperature=1.5, lam=0.0, nprobe=2, distances="store")
    memory = Memory.open(opened, given)
    assert memory.settings == given.over(SearchSettings(index="default"))
    assert (memory.lam, memory.knn_temperature) == (0.0, 1.5)
    assert memory.retriever.index.nprobe == 2 and memory.retriever.distances == "store"


def test_an_index_that_nobody_tuned_gets_the_usual(opened):
    memory = Memory.open(opened, SearchSettings(index="flat"))
    assert (memory.lam, memory.knn_temperature, memory.settings.distances) == (0.25, 1.0, "index")
    assert memory.settings.k == min(1024, len(opened)) and memory.settings.nprobe is None


def test_more_neighbours_than_records_are_all_of_them(opened):
    assert Memory.open(opened, SearchSettings(k=10**9)).settings.k == len(opened)


def test_the_stores_defaults_hold_if_nothing_is_said_of_a_search(opened):
    write_defaults(opened.layout, SearchSettings(index="default", gate="default", skip=0.25))
    memory = Memory.open(opened)
    assert memory.gate is not None and memory.gate.skip == memory.settings.skip == 0.25
    assert memory.settings.knn_temperature == 3.0 and memory.settings.k == 32
    chosen = Memory.open(opened, SearchSettings(skip=0.5))  # says how much to skip, nothing of a search
    assert chosen.gate is not None and chosen.gate.skip == 0.5


@pytest.mark.parametrize(
    "said", [{"lam": 0.2}, {"k": 5}, {"knn_temperature": 2.0}, {"nprobe": 4}, {"distances": "store"}, {"index": "flat"}]
)
def test_the_stores_gate_is_not_used_once_a_search_is_described(opened, said):
    write_defaults(opened.layout, SearchSettings(index="default", gate="default", skip=0.25))
    memory = Memory.open(opened, SearchSettings(**said))
    assert memory.gate is None and memory.settings.skip is None
    assert all(getattr(memory.settings, name) == value for name, value in said.items())


def test_the_stores_index_is_used_whatever_is_said(opened):
    write_defaults(opened.layout, SearchSettings(index="flat"))
    assert Memory.open(opened, SearchSettings(k=5)).settings.index == "flat" == Memory.open(opened).settings.index


def test_gate_none_is_one_lambda(opened):
    write_defaults(opened.layout, SearchSettings(index="default", gate="default", skip=0.25))
    memory = Memory.open(opened, SearchSettings(gate="none"))
    assert memory.gate is None and memory.lam == 0.3 and memory.settings.gate is None
    with pytest.raises(OptionError, match="`gate`"):
        Memory.open(opened, SearchSettings(gate="none", skip=0.5))


def test_with_a_gate_its_own_settings_go_before_what_was_tuned_since(opened):
    before = opened.layout.index("default").settings.read_bytes()
    write_tuned(opened.layout, Tuned("default", 0.9, 7.0, 16, 4, "index"))
    try:
        gated = Memory.open(opened, SearchSettings(gate="default")).settings
        assert (gated.knn_temperature, gated.k, gated.nprobe) == (3.0, 32, 8)
        plain = Memory.open(opened, SearchSettings(gate="none")).settings
        assert (plain.knn_temperature, plain.k, plain.nprobe, plain.lam) == (7.0, 16, 4, 0.9)
    finally:
        opened.layout.index("default").settings.write_bytes(before)


@pytest.mark.parametrize("wrong", [{"skip": 0.5}, {"budget": 0.5}, {"gate": "default", "lam": 0.2}])
def test_what_needs_a_gate_or_excludes_one_is_refused(opened, wrong):
    with pytest.raises(OptionError, match="`gate`"):
        Memory.open(opened, SearchSettings(**wrong))


def test_a_model_that_the_gate_does_not_know_is_refused(opened, lm):
    gated = Memory.open(opened, SearchSettings(gate="default"))
    gated.check_model(lm.fingerprint())
    with pytest.raises(OptionError, match="another model"):
        gated.check_model("0" * 64)
    Memory.open(opened).check_model("0" * 64)


def test_probabilities_are_those_of_the_neighbours_at_its_temperature(opened, lm):
    memory = Memory.of(Retriever(opened, "flat"), SearchSettings(k=20, knn_temperature=2.5))
    queries = opened.keys[:6].astype(np.float32) + 0.1
    near, targets = memory.search(queries), opened.values[:6]
    assert near.ids.shape == (6, 20)
    prediction = memory.predict(queries, Known.of(None, None, 6))
    log_lm = torch.randn(6, lm.vocab_size, dtype=torch.float64).log_softmax(-1)
    log_knn, logp = prediction.score(log_lm[np.arange(6), targets].numpy(), targets)
    expected = log_p_knn(near.distances, near.tokens, targets, 2.5)
    np.testing.assert_allclose(log_knn, expected, rtol=1e-12)
    p_lm = log_lm.exp().numpy()
    mass = np.exp((near.distances.min(1, keepdims=True) - near.distances.astype(np.float64)) / 2.5)
    shares = zip(near.tokens, mass / mass.sum(1, keepdims=True), strict=True)
    p_knn = np.stack([np.bincount(tokens, share, lm.vocab_size) for tokens, share in shares])
    whole = prediction.log_p_vocabulary(log_lm).exp().numpy()
    np.testing.assert_allclose(whole, memory.lam * p_knn + (1 - memory.lam) * p_lm, rtol=1e-9)
    np.testing.assert_allclose(np.exp(logp), whole[np.arange(6), targets], rtol=1e-9)
    assert prediction.retrieved.all() and (prediction.lam == memory.lam).all() and min(prediction.spent) >= 0


def test_usual_settings_are_not_used_without_a_word(opened):
    settings = SearchSettings(index="flat")
    with pytest.warns(
        NearLMWarning, match="index 'flat' is not tuned, using λ=0.25 and T=1; tune it: nearlm tune .*flat"
    ):
        assert Memory.open(opened, settings).lam == 0.25
    with pytest.warns(NearLMWarning, match="using T=1;"):
        Memory.open(opened, SearchSettings(index="flat", lam=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Memory.open(opened, SearchSettings(index="flat", lam=0.5, knn_temperature=2.0))
        Memory.open(opened)


def test_a_store_without_keys_is_used_with_the_usual_weights_and_a_word(bare, lm):
    with pytest.warns(NearLMWarning, match="the memory is not tuned .*, using usual weights; .*: nearlm gate .*store"):
        memory = Memory.open(bare)
    assert memory.retriever is None and memory.gate is None and not memory.mixture.searches
    assert "tokens without keys" in repr(memory) and memory.needs_contexts
    memory.check_model(lm.fingerprint())
    memory.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Memory.open(bare, memory.settings).settings == memory.settings == SearchSettings(mixture="none")


@pytest.mark.parametrize("said", [{"k": 5}, {"nprobe": 2}, {"lam": 0.2}, {"index": "default"}, {"skip": 0.5}])
def test_a_search_in_a_store_without_keys_is_refused(bare, said):
    with pytest.raises(OptionError, match=f"no keys and searches nothing, so `{next(iter(said))}` has no effect"):
        Memory.open(bare, SearchSettings(**said))


def test_what_needs_keys_refuses_a_store_without(bare, lm, valid, tmp_path):
    refused = [
        lambda: Retriever(bare),
        lambda: build_index(bare, quiet=True),
        lambda: faiss_index(bare),
        lambda: reduce_store(bare, 8, tmp_path / "reduced", quiet=True),
        lambda: prune_store(bare, "random", tmp_path / "pruned", quiet=True, keep=0.5),
        lambda: Gate.train(bare, valid, lm),
        lambda: Mixture.train(bare, valid, lm),
        lambda: learn_all(bare, valid, lm, sources="none"),
        lambda: learn_all(bare, valid, lm, sources="knn"),
        lambda: bare.context_of(0),
    ]
    for attempt in refused:
        with pytest.raises(StoreError, match=r"store has no keys, only its text; add them with: nearlm build "):
            attempt()
    with pytest.raises(StoreError, match=r"has no keys, so nothing can be tuned; .*: nearlm gate "):
        tune(bare, valid, lm)
    assert bare.indexes == [] and not (tmp_path / "reduced").exists() and not (tmp_path / "pruned").exists()


def test_without_its_suffix_array_a_store_without_keys_says_how_to_make_it(bare, tmp_path):
    copied = Path(shutil.copytree(bare.path, tmp_path / "store"))
    shutil.rmtree(copied / "suffixes")
    with pytest.warns(NearLMWarning), pytest.raises(StoreError, match=r"has no suffix array; .*build_infinigram\(\)"):
        Memory.open(Datastore.open(copied))
