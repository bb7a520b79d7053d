"""Tuning from a trace: the same as trying every setting, searched once, kept with the index."""

import json

import numpy as np
import pytest

from calls import build, build_index, evaluate, load_knnlm, tune
from conftest import make_text
from nearlm.base import to_json
from nearlm.base.errors import OptionError
from nearlm.mixing import tuning
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.traces import trace_lm, trace_search, traced_text
from nearlm.mixing.tuning import LAMBDAS, PAPER_LAMBDAS, tune_traces
from nearlm.search.retriever import Retriever


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("tune")
    for number in range(3):
        (folder / f"train{number}.txt").write_text(make_text(300, seed=number))
    made = build(lm, str(folder), folder / "store", window=64, quiet=True)
    build_index(made, "IVF16,PQ8x4", nprobe=8, quiet=True)
    return made


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune-text") / "valid.txt"
    path.write_text(make_text(150, seed=50))
    return str(path)


def traced(lm, store, valid, k=128, **options):
    reading = store.reading()
    text = traced_text(valid, lm.tokenizer, reading)
    return trace_search(trace_lm(lm, text, reading), Retriever(store, **options), k)


def test_a_trace_says_what_evaluation_says(lm, store, valid):
    trace = traced(lm, store, valid)
    mixed = mix(np.asarray(trace.lm.logp, np.float64), trace.log_p_knn(4.0, 50), 0.35)
    evaluated = evaluate(load_knnlm(store, lm, lam=0.35, temperature=4.0, k=50), valid)
    assert perplexity(mixed) == pytest.approx(evaluated.perplexity, rel=1e-5)
    assert perplexity(trace.lm.logp) == pytest.approx(evaluated.nlm_perplexity, rel=1e-5)


def test_the_best_setting_is_the_best_of_all_that_were_tried(lm, store, valid, monkeypatch):
    monkeypatch.setattr(tuning, "TEMPERATURES", (1.0, 2.0, 4.0))  # few enough to try them all
    monkeypatch.setattr(tuning, "KS", (16,))
    trace = traced(lm, store, valid)
    found = tune_traces([trace])
    log_lm = np.asarray(trace.lm.logp, np.float64)
    tried = {
        (perplexity(mix(log_lm, trace.log_p_knn(t, k), lam)), k, t, lam)
        for k in (16, 128)
        for t in (1.0, 2.0, 4.0)
        for lam in LAMBDAS
    }
    assert (found.best.perplexity, found.best.k, found.best.temperature, found.best.lam) == min(tried)
    paper = min((perplexity(mix(log_lm, trace.log_p_knn(1.0), lam)), lam) for lam in PAPER_LAMBDAS)
    assert (found.paper.perplexity, found.paper.lam, found.paper.k) == (*paper, 128)
    log_knn = trace.log_p_knn(found.best.temperature, found.best.k)
    assert found.knn_wins == pytest.approx(np.mean(log_knn >= log_lm))
    assert found.oracle_perplexity == pytest.approx(perplexity(np.maximum(log_knn, log_lm)))
    assert tuple(round(x, 2) for x in np.arange(0.1, 0.91, 0.05)) == PAPER_LAMBDAS


def test_settings_are_kept_with_the_index_and_used_by_default(lm, store, valid):
    found = tune(lm, Retriever(store), valid, k=128)
    kept = json.loads((store.path / "index" / "default" / "settings.json").read_text())
    assert (kept["lam"], kept["temperature"], kept["k"]) == (found.best.lam, found.best.temperature, found.best.k)
    default = load_knnlm(store, lm)
    assert found.best.given == {**default.memory.settings.given, "k": found.best.k}
    assert evaluate(default, valid).perplexity == pytest.approx(found.best.perplexity, rel=1e-5)
    assert load_knnlm(store, lm, lam=0.11).memory.lam == 0.11
    assert "perplexity" in found.table() and to_json(found)["best"]["k"] == found.best.k


def test_the_lm_and_the_search_run_once(lm, store, valid, monkeypatch):
    first = traced(lm, store, valid)
    monkeypatch.setattr(type(lm), "score", lambda *_, **__: pytest.fail("the LM ran again"))
    again = traced(lm, store, valid)
    np.testing.assert_array_equal(first.ids, again.ids)
    monkeypatch.setattr(Retriever, "search", lambda *_, **__: pytest.fail("the index was searched again"))
    traced(lm, store, valid)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        traced(lm, store, valid, nprobe=3)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        traced(lm, store, valid, distances="store")


def test_a_trace_goes_on_after_a_kill(lm, store, tmp_path, monkeypatch):
    (tmp_path / "v.txt").write_text(make_text(200, seed=77))
    from nearlm.base import jobs
    from nearlm.mixing import traces as trace

    monkeypatch.setattr(jobs, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(trace, "SCORE_BATCH_TOKENS", 64)
    real, calls = type(lm).score, []

    def score(self, batch, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, batch, **options)

    monkeypatch.setattr(type(lm), "score", score)
    with pytest.raises(KeyboardInterrupt):
        traced(lm, store, str(tmp_path / "v.txt"))
    interrupted = traced(lm, store, str(tmp_path / "v.txt"))
    batches = -(-len(interrupted.lm) // 64)
    assert len(calls) == batches + 1
    monkeypatch.setattr(type(lm), "score", real)
    monkeypatch.setattr(trace, "cache_dir", lambda: tmp_path / "other")
    whole = traced(lm, store, str(tmp_path / "v.txt"))
    np.testing.assert_array_equal(interrupted.lm.keys, whole.lm.keys)
    np.testing.assert_array_equal(interrupted.lm.logp, whole.lm.logp)


def test_a_smaller_k_is_never_cut_out_of_rescored_neighbours(lm, store, valid, monkeypatch):
    exact = traced(lm, store, valid, distances="store")
    with pytest.raises(OptionError, match="search again"):
        exact.log_p_knn(1.0, 64)
    monkeypatch.setattr(tuning, "KS", (32,))
    found = tune(lm, Retriever(store, distances="store"), valid, k=128)
    assert [point.k for point in found.by_k] == [32, 128]
    small = traced(lm, store, valid, k=32, distances="store")
    point = found.by_k[0]
    value = perplexity(mix(np.asarray(small.lm.logp, np.float64), small.log_p_knn(point.temperature), point.lam))
    assert value == pytest.approx(point.perplexity)


def test_old_traces_make_room_for_new_ones(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    first = traced(lm, store, valid)
    folders = lambda kind: sorted(path.parent.name for path in tmp_path.glob(f"traces/{kind}-*/trace.json"))  # noqa: E731
    searched = folders("search")
    expected = first.log_p_knn(2.0)
    traced(lm, store, valid, k=64)
    assert set(searched) < set(folders("search"))
    monkeypatch.setenv("NEARLM_TRACE_GB", "0.000001")
    del first
    traced(lm, store, valid, k=32)
    assert len(folders("search")) == 1 and folders("search") != searched
    np.testing.assert_array_equal(traced(lm, store, valid).log_p_knn(2.0), expected)
    monkeypatch.setenv("NEARLM_TRACE_GB", "plenty")
    with pytest.raises(OptionError, match="NEARLM_TRACE_GB"):
        traced(lm, store, valid, k=16)


def test_a_trace_with_an_array_gone_is_made_again(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    expected = traced(lm, store, valid).log_p_knn(2.0)
    for path in (*tmp_path.glob("traces/lm-*/keys.npy"), *tmp_path.glob("traces/search-*/ids.npy")):
        path.unlink()
    np.testing.assert_array_equal(traced(lm, store, valid).log_p_knn(2.0), expected)
