"""Tuning from a trace: the same as trying every setting, kept with the index."""

import json

import numpy as np
import pytest
from examples import trace_for

from calls import evaluate, load_knnlm, tune
from nearlm.base import to_json
from nearlm.mixing import tuning
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.tuning import LAMBDAS, PAPER_LAMBDAS, tune_traces
from nearlm.search.retriever import Retriever


def test_the_best_setting_is_the_best_of_all_that_were_tried(lm, store, valid, monkeypatch):
    monkeypatch.setattr(tuning, "TEMPERATURES", (1.0, 2.0, 4.0))  # few enough to try them all
    monkeypatch.setattr(tuning, "KS", (16,))
    trace = trace_for(lm, store, valid)
    found = tune_traces([trace])
    log_lm = np.asarray(trace.lm.logp, np.float64)
    tried = {
        (perplexity(mix(log_lm, trace.log_p_knn(t, k), lam)), k, t, lam)
        for k in (16, 128)
        for t in (1.0, 2.0, 4.0)
        for lam in LAMBDAS
    }
    assert (found.best.perplexity, found.best.k, found.best.knn_temperature, found.best.lam) == min(tried)
    paper = min((perplexity(mix(log_lm, trace.log_p_knn(1.0), lam)), lam) for lam in PAPER_LAMBDAS)
    assert (found.paper.perplexity, found.paper.lam, found.paper.k) == (*paper, 128)
    log_knn = trace.log_p_knn(found.best.knn_temperature, found.best.k)
    assert found.knn_wins == pytest.approx(np.mean(log_knn >= log_lm))
    assert found.oracle_perplexity == pytest.approx(perplexity(np.maximum(log_knn, log_lm)))
    assert tuple(round(x, 2) for x in np.arange(0.1, 0.91, 0.05)) == PAPER_LAMBDAS


def test_settings_are_kept_with_the_index_and_used_by_default(lm, store, valid):
    found = tune(lm, Retriever(store), valid, k=128)
    kept = json.loads((store.path / "index" / "default" / "settings.json").read_text())
    assert (kept["lam"], kept["knn_temperature"], kept["k"]) == (
        found.best.lam,
        found.best.knn_temperature,
        found.best.k,
    )
    default = load_knnlm(store, lm)
    assert found.best.values == {**default.memory.settings.values, "k": found.best.k}
    assert evaluate(default, valid).perplexity == pytest.approx(found.best.perplexity, rel=1e-5)
    assert load_knnlm(store, lm, lam=0.11).memory.lam == 0.11
    assert "perplexity" in found.table() and to_json(found)["best"]["k"] == found.best.k
