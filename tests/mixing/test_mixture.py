"""A mixture on disk: kept whole, refused where it does not fit, used without being named where it is better."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing.gate import Gate
from nearlm.mixing.memory import Memory
from nearlm.mixing.mixture import Mixture, mixture_files, verify_mixture
from nearlm.mixing.network_files import save_trained
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings


@pytest.fixture(scope="module")
def mixture(lm, tuned_store, valid_folder):
    return Mixture.train(tuned_store, valid_folder, lm)


def test_a_mixture_is_kept_whole(lm, tuned_store, mixture, valid_folder):
    again = Mixture.load(tuned_store)
    width = mixture.network.mean.shape[0]
    features = np.random.default_rng(0).normal(size=(9, width)).astype(np.float32)
    there = np.ones((9, 8), np.bool_)
    np.testing.assert_array_equal(
        again.network.log_weights(features, there), mixture.network.log_weights(features, there)
    )
    assert again.hash == mixture.hash and again.bytes > mixture.infinigram.bytes
    assert "held-out perplexity" in mixture.table() and tuned_store.mixtures == ["default"]
    assert str(tuned_store.path) not in mixture_files(tuned_store, "default").description.read_text()


def test_what_does_not_fit_is_refused(lm, tuned_store, mixture):
    fits = Retriever(tuned_store, nprobe=8)
    mixture.check(fits, SearchSettings(knn_temperature=3.0, k=32), lm.fingerprint())
    cases = [
        ((Retriever(tuned_store, "flat"), 3.0, 32), "the mixture was trained for index 'default'"),
        ((Retriever(tuned_store, nprobe=4), 3.0, 32), "nprobe=8, here it is 4"),
        ((fits, 1.0, 32), "knn_temperature=3.0, here it is 1.0"),
        ((fits, 3.0, 64), "k=32, here it is 64"),
    ]
    for (retriever, temperature, k), message in cases:
        with pytest.raises(OptionError, match=message):
            mixture.check(retriever, SearchSettings(knn_temperature=temperature, k=k), lm.fingerprint())
    with pytest.raises(OptionError, match="another model"):
        mixture.check(fits, mixture.info.settings, "0" * 64)
    with pytest.raises(OptionError, match="stands for no mixture"):
        mixture_files(tuned_store, "none")
    with pytest.raises(StoreError, match="no mixture 'other'"):
        Mixture.load(tuned_store, "other")


def test_a_damaged_foreign_or_stale_mixture_is_refused(tuned_store, mixture):
    place = mixture_files(tuned_store, "copy")
    save_trained(place, mixture.network, mixture.info)
    Mixture.load(tuned_store, "copy")
    for state in (None, replace(mixture.info.state, lineage="0" * 64), replace(mixture.info.state, segments=2)):
        save_trained(place, mixture.network, replace(mixture.info, store="0" * 64, state=state))
        with pytest.raises(StoreError, match="another state"):
            Mixture.load(tuned_store, "copy")
    save_trained(place, mixture.network, replace(mixture.info, sources=("knn",)))
    with pytest.raises(StoreError, match="not as nearlm writes it"):
        Mixture.load(tuned_store, "copy")
    save_trained(place, mixture.network, replace(mixture.info, format=99))
    with pytest.raises(StoreError, match="format 99"):
        Mixture.load(tuned_store, "copy")
    save_trained(place, mixture.network, mixture.info)
    data = bytearray(place.weights.read_bytes())
    data[-1] ^= 1
    place.weights.write_bytes(data)
    with pytest.raises(StoreError, match="copy"):
        verify_mixture(tuned_store, "copy")
    shutil.rmtree(place.folder)


def test_it_is_used_unless_something_else_is_asked_for(tuned_store, mixture):
    place = mixture_files(tuned_store, "default")
    for better in (True, False):
        save_trained(place, mixture.network, replace(mixture.info, better=better))
        assert (Memory.open(tuned_store).mixture is not None) == better
    save_trained(place, mixture.network, replace(mixture.info, better=True))
    assert Memory.open(tuned_store, SearchSettings(lam=0.2)).constant
    assert Memory.open(tuned_store, SearchSettings(mixture="none")).constant
    assert Memory.open(tuned_store, SearchSettings(index="flat", lam=0.3, knn_temperature=2.0)).constant
    with pytest.raises(OptionError, match="leave out `lam`, or `mixture`"):
        Memory.open(tuned_store, SearchSettings(lam=0.2, mixture="default"))
    save_trained(place, mixture.network, mixture.info)


def test_a_gate_works_with_its_mixture_alone(lm, tuned_store, mixture, valid_folder):
    from examples import QUICK

    training = replace(QUICK, features="conf,ent,suffix")
    Gate.train(tuned_store, valid_folder, lm, training, mixture="default")
    memory = Memory.open(tuned_store, SearchSettings(gate="default", skip=0.5))
    assert memory.mixture is not None and memory.gate is not None and not memory.gate.learned
    memory.check_model(lm.fingerprint())
    alone = Memory.open(tuned_store, SearchSettings(gate="default", skip=0.5, mixture="none"))
    with pytest.raises(OptionError, match="a mixture that is not this one"):
        alone.check_model(lm.fingerprint())
    Gate.train(tuned_store, valid_folder, lm, training, name="plain")
    plain = Memory.open(tuned_store, SearchSettings(gate="plain", mixture="default"))
    with pytest.raises(OptionError, match="trained for no mixture"):
        plain.check_model(lm.fingerprint())
    assert memory.table_bytes < memory.gate.bytes + memory.mixture.bytes  # the suffix array counts once
