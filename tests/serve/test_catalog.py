"""Stores by name, and memories as requests want them."""

import shutil

import httpx
import numpy as np
import pytest
from live import run_server

import nearlm
from calls import build, load_knnlm
from nearlm.base import ModelError, OptionError, files
from nearlm.model.lm import LM
from nearlm.search import build_index
from nearlm.serve.catalog import Catalog
from nearlm.serve.errors import APIError
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.store import SearchSettings
from tiny import make_llama, make_text


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


def test_a_running_server_takes_up_what_is_added_and_forgotten(served_lm, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"doc{number}.txt").write_text(make_text(60, seed=number))
    made = build(served_lm, str(folder), tmp_path / "live", window=64, key_dtype="float32", quiet=True)
    build_index(made, "flat")
    files.write_stamped(made.layout.index("default").settings, {"lam": 0.9, "knn_temperature": 1.0, "k": 8})
    (tmp_path / "more.txt").write_text(make_text(60, seed=7))
    running = run_server([made.path], served_lm)
    try:
        with httpx.Client(base_url=running.url, timeout=60) as http:
            text = (folder / "doc1.txt").read_text()
            first = state(http, text)
            nearlm.add(made.path, str(tmp_path / "more.txt"), served_lm)
            added = state(http, text)
            nearlm.forget(made.path, source="*doc1.txt")
            forgot = state(http, text)
            nearlm.compact(made.path)
            compacted = state(http, text)
    finally:
        running.stop()
    assert [len(seen[0]) for seen in (first, added, forgot, compacted)] == [3, 4, 3, 3]
    assert not any("doc1" in name for name in forgot[0]) and added[0][-1].endswith("more.txt")
    assert added[1] == pytest.approx(first[1], abs=0.2)
    assert forgot[1] < first[1] - 0.5 and compacted[1] == pytest.approx(forgot[1], abs=1e-6)
    assert not any("doc1" in document for document in forgot[2]) and any("doc1" in document for document in first[2])


def state(http, text):
    """Return the documents that a server shows, its mean log p of a text, and the documents that it explains it by."""
    listed = http.get("/v1/nearlm/stores/live/documents").json()["documents"]
    asked = {"model": "live", "text": text[:200], "nearlm": {"explain": True, "neighbors": 4}}
    said = http.post("/v1/nearlm/score", json=asked).json()
    held = {near["document"] for token in said["tokens"] for near in token["neighbors"]}
    return [one["name"] for one in listed], -float(np.log(said["perplexity"])), held


def test_several_stores_at_once_share_what_is_open(stores, served_lm, tmp_path):
    shutil.copytree(stores[0].path, tmp_path / "twin")
    catalog = opened([*stores, tmp_path / "twin"], served_lm)
    assert catalog.names[-1] == "mem+bare+twin"
    chosen = catalog.choose("mem+twin")
    assert chosen.memory and chosen.served is catalog.choose("mem+twin").served
    parts = chosen.served.memory.each
    assert [one.retriever for one in parts] == [catalog.stores[name].memory.retriever for name in ("mem", "twin")]
    assert [shown.name for shown in chosen.served.shown] == ["mem", "twin"]
    for name in ("mem+no", "mem+", "+", "mem+bare:off"):
        with pytest.raises(APIError, match="expected one of"):
            catalog.choose(name)
    with pytest.raises(APIError, match="named twice"):
        catalog.choose("mem+mem")
    with pytest.raises(APIError, match="their own settings"):
        chosen.served.memory_for(SearchSettings(lam=0.5))
