"""Stores by name, and memories as requests want them."""

import shutil

import numpy as np
import pytest

from calls import load_knnlm
from nearlm.base import ModelError, OptionError
from nearlm.model.lm import LM
from nearlm.serve.catalog import Catalog
from nearlm.serve.errors import APIError
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.store import SearchSettings
from tiny import make_llama


def opened(stores, lm):
    return Catalog.open(stores, Limits(), Metrics(), lms=[lm])


def test_stores_of_one_model_share_an_engine_and_have_names_of_their_own(stores, served_lm, tmp_path):
    shutil.copytree(stores[0].path, tmp_path / "mem")
    catalog = opened([*stores, tmp_path / "mem"], served_lm)
    assert list(catalog.stores) == ["mem", "bare", "mem-2"]
    assert len(catalog.engines) == 1
    assert catalog.choose(None).served.name == "mem"
    assert not catalog.choose("mem-2:off").memory


def test_unknown_names_are_refused(stores, served_lm):
    catalog = opened(stores, served_lm)
    for name in ("no", "mem:on", "mem:off:off", "../mem"):
        with pytest.raises(APIError, match="expected one of"):
            catalog.choose(name)
    with pytest.raises(OptionError, match="no store"):
        Catalog.open([], Limits(), Metrics())


def test_a_model_is_loaded_once_and_checked(stores, served_lm, tmp_path, chatty):
    other = LM(make_llama(seed=9).double(), chatty, name="other")
    with pytest.raises((ModelError, Exception)):
        opened([stores[0]], other)


def test_a_request_has_its_own_settings_over_one_index(stores, served_lm):
    served = opened([stores[0]], served_lm).stores["mem"]
    own = served.memory_for(SearchSettings(lam=0.7, k=4))
    assert own is served.memory_for(SearchSettings(lam=0.7, k=4))
    assert own.retriever is served.memory.retriever
    assert (own.lam, own.settings.k, own.knn_temperature, own.constant) == (0.7, 4, 3.0, True)
    assert served.memory_for(SearchSettings()) is served.memory
    expected = load_knnlm(stores[0], served_lm, lam=0.7, k=4).memory
    query = np.asarray(stores[0].keys[3:4], np.float32)
    assert np.array_equal(expected.search(query).distances, own.search(query).distances)
    assert expected.settings == own.settings


def test_variants_are_not_kept_for_ever(stores, served_lm, monkeypatch):
    monkeypatch.setattr("nearlm.serve.catalog._MOST_VARIANTS", 3)
    served = opened([stores[0]], served_lm).stores["mem"]
    for number in range(1, 9):
        served.memory_for(SearchSettings(k=number))
    assert len(served._variants) == 3
