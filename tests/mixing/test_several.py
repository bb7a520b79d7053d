"""A memory of several stores: p adds up to 1 however it is mixed, what was learned is found for these stores alone."""

import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from calls import build, build_index
from nearlm.base import NearLMWarning
from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing import learn_all
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.memory import Memory
from nearlm.mixing.mixture import Mixture, mixture_files, verify_mixture
from nearlm.mixing.mixture_features import Known
from nearlm.mixing.network_files import save_trained
from nearlm.mixing.several import find_learned, join_memories, open_memory
from nearlm.store import Datastore, SearchSettings
from nearlm.text import TextSource
from pairs import make_pair, write_valid

VOCABULARY = 300
WITH = SearchSettings(mixture="with-manuals")


@pytest.fixture(scope="module")
def pair(tmp_path_factory, lm):
    return make_pair(tmp_path_factory.mktemp("several"), lm)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    return write_valid(tmp_path_factory.mktemp("several-text") / "valid")


@pytest.fixture(scope="module")
def learned(pair, lm, valid):
    """The pair with a mixture of its own for the first store, and one for both."""
    Mixture.train(pair[0], valid, lm, name="own")
    return learn_all(pair, valid, lm).mixture


@pytest.fixture(scope="module")
def bare(pair, lm):
    """A store of text alone."""
    made = build(lm, str(pair[0].path.parent / "manuals.txt"), pair[0].path.parent / "bare", window=64, keys="none")
    build_infinigram(made)
    return made


def memories(pair, bare):
    """Every way in which stores are mixed together."""
    one, other = pair
    return {
        "one λ each": open_memory(pair, SearchSettings(mixture="none")),
        "a mixture and one λ": join_memories([Memory.open(one, SearchSettings(mixture="own")), Memory.open(other)]),
        "text alone": join_memories([Memory.open(bare), Memory.open(one, SearchSettings(mixture="own"))]),
        "learned": open_memory(pair, WITH),
    }


def asked(pair, count=40, seed=0):
    """Queries near some keys of both stores, and contexts out of their texts."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 100, count)
    keys = np.where(rng.random((count, 1)) < 0.5, pair[0].keys[0:100][records], pair[1].keys[0:100][records])
    tokens = np.asarray(pair[1].tokens[0:200], np.int32)
    contexts = Contexts(tokens, np.zeros(count, np.int64), np.arange(20, 20 + count))
    top = rng.integers(0, VOCABULARY, count).astype(np.int32)
    statistics = replace(Known.of(None, contexts, count), conf=rng.random(count, np.float32), top=top)
    return (keys + rng.normal(size=keys.shape, scale=0.05)).astype(np.float32), statistics


@pytest.mark.parametrize("way", ["one λ each", "a mixture and one λ", "text alone", "learned"])
def test_p_adds_up_to_one_and_few_are_many(pair, learned, bare, way):
    memory = memories(pair, bare)[way]
    queries, known = asked(pair)
    log_lm = torch.from_numpy(np.random.default_rng(1).normal(size=(len(known), VOCABULARY))).log_softmax(-1)
    many = memory.predict(queries, known)
    whole = many.log_p_vocabulary(log_lm)
    np.testing.assert_allclose(whole.exp().sum(1), 1, rtol=1e-5)
    targets = known.top
    log_knn, logp = many.score(log_lm.numpy()[np.arange(len(known)), targets], targets)
    np.testing.assert_allclose(logp, whole.numpy()[np.arange(len(known)), targets], rtol=1e-5, atol=1e-6)
    assert (np.exp(log_knn) <= 1 + 1e-6).all()
    for row in range(0, len(known), 13):
        few = memory.predict(queries[row : row + 1], known[np.array([row])])
        np.testing.assert_allclose(few.log_p_vocabulary(log_lm[row : row + 1])[0], whole[row], rtol=1e-4, atol=1e-5)


def test_the_nearest_of_all_stores_are_named_by_what_they_weigh(pair):
    memory = open_memory(pair, SearchSettings(mixture="none"))
    queries, known = asked(pair)
    said = memory.predict(queries, known)
    for row in (0, 7, 21):
        found = said.nearest(row, 5, memory.temperatures)
        both = [(number, near.distances[row, j]) for number, near in enumerate(said.nears) for j in range(16)]
        best = sorted(both, key=lambda one: one[1])[:5]
        assert [one.store for one in found] == [number for number, _ in best]  # distances of flat indexes compare
        np.testing.assert_allclose([one.distance for one in found], [d for _, d in best], rtol=1e-6)


def test_what_was_learned_is_found_in_any_order(pair, learned, lm):
    assert pair[0].mixtures == ["own", "with-manuals"] and pair[1].mixtures == []
    assert learned.info.others[0].name == "manuals" and str(pair[1].path) not in str(learned.info)
    place = mixture_files(pair[0], "with-manuals")
    for better in (True, False):
        save_trained(place, learned.network, replace(learned.info, better=better))
        found = find_learned(pair[::-1])
        assert (found == ([*pair], "with-manuals")) if better else found is None
    memory = open_memory(pair[::-1], WITH)
    memory.check_model(lm.fingerprint())
    assert [one.store for one in memory.each] == [*pair]
    with pytest.warns(NearLMWarning, match="no weights were learned"):
        assert open_memory(pair).mixture.name == "none"


def test_it_is_refused_for_other_stores(pair, learned, bare, lm):
    with pytest.raises(OptionError, match="is for licences and manuals; name just these stores"):
        Memory.open(pair[0], WITH)
    with pytest.raises(StoreError, match="no mixture 'with-manuals' was learned for"):
        open_memory([pair[0], bare], WITH)
    with pytest.raises(OptionError, match="has for itself alone"):
        learn_all(pair, TextSource.from_strings("the licence grants"), lm, name="own")
    for settings in (SearchSettings(gate="default"), SearchSettings(skip=0.5)):
        with pytest.raises(OptionError, match="several are all searched"):
            open_memory(pair, settings)
    place = mixture_files(pair[0], "odd")
    for sources in (("knn", "knn:2"), ("knn:1", "knn"), ("text", "knn"), ("knn", "word"), ()):
        save_trained(place, learned.network, replace(learned.info, sources=sources))
        with pytest.raises(OptionError, match="`sources` is"):
            verify_mixture(pair[0], "odd")
    shutil.rmtree(place.folder)


def test_an_index_made_anew_is_refused_and_text_may_be_added(pair, learned, lm, tmp_path):
    copies = [Datastore.open(shutil.copytree(store.path, tmp_path / store.path.name)) for store in pair]
    text = tmp_path / "more.txt"
    text.write_text("a person who uses the software and merges copies")
    build(lm, str(text), copies[1].path, window=64, key_dtype="float32", quiet=True, append=True)
    build_index(copies[1].path, quiet=True)
    grown = [copies[0], Datastore.open(copies[1].path)]
    with pytest.warns(NearLMWarning, match=r"before .*manuals got .* tokens"):
        open_memory(grown, WITH).check_model(lm.fingerprint())
    build_index(copies[1].path, "IVF4,Flat", nprobe=2, quiet=True)
    with warnings.catch_warnings(), pytest.raises(OptionError, match="trained"):
        warnings.simplefilter("ignore")
        open_memory(grown, WITH)


def test_learning_needs_what_is_tuned_and_changes_no_other_store(pair, learned, lm, valid, tmp_path):
    copies = [Datastore.open(shutil.copytree(store.path, tmp_path / store.path.name)) for store in pair]
    before = {path: path.stat().st_mtime_ns for path in copies[1].path.rglob("*") if path.is_file()}
    again = learn_all(copies, valid, lm, name="both").mixture
    assert again.hash == learned.hash  # the same text, the same network
    after = {path: path.stat().st_mtime_ns for path in copies[1].path.rglob("*") if path.is_file()}
    assert after == before
    (copies[1].path / "index" / "default" / "settings.json").unlink()
    with pytest.raises(StoreError, match="no tuned T and k"), pytest.warns(NearLMWarning):
        learn_all(copies, valid, lm, name="both")
