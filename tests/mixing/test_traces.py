"""Traces: what evaluation says, computed once, resumed after a kill, making room."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from examples import trace_for

from calls import evaluate, load_knnlm, tune
from nearlm.base import QUIET, Job, OptionError, Reporter, files
from nearlm.mixing import traces, tuning
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.traces import cache_text, trace_lm, trace_search, traces_in
from nearlm.model.lm import LM
from nearlm.search.retriever import Retriever
from tiny import make_llama, make_text


def test_a_trace_says_what_evaluation_says(lm, store, valid):
    trace = trace_for(lm, store, valid)
    mixed = mix(np.asarray(trace.lm.logp, np.float64), trace.log_p_knn(4.0, 50), 0.35)
    evaluated = evaluate(load_knnlm(store, lm, lam=0.35, knn_temperature=4.0, k=50), valid)
    assert perplexity(mixed) == pytest.approx(evaluated.perplexity, rel=1e-5)
    assert perplexity(trace.lm.logp) == pytest.approx(evaluated.nlm_perplexity, rel=1e-5)


def test_the_lm_and_the_search_run_once(lm, store, valid, monkeypatch):
    first = trace_for(lm, store, valid)
    monkeypatch.setattr(type(lm), "score", lambda *_, **__: pytest.fail("the LM ran again"))
    again = trace_for(lm, store, valid)
    np.testing.assert_array_equal(first.ids, again.ids)
    monkeypatch.setattr(Retriever, "search", lambda *_, **__: pytest.fail("the index was searched again"))
    trace_for(lm, store, valid)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        trace_for(lm, store, valid, nprobe=3)
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        trace_for(lm, store, valid, distances="store")


def test_models_that_differ_only_in_the_head_have_traces_of_their_own(lm, store, valid):
    first = trace_for(lm, store, valid)
    other = LM(make_llama(), lm.tokenizer)
    assert np.array_equal(other.probe(), lm.probe()) and other.fingerprint() == lm.fingerprint()
    assert trace_for(other, store, valid).lm.key == first.lm.key
    with torch.no_grad():
        other.model.lm_head.weight.mul_(2)
    assert np.array_equal(other.probe(), lm.probe())
    second = trace_for(other, store, valid)
    evaluated = evaluate(load_knnlm(store, other, lam=0.0), valid)
    assert perplexity(second.lm.logp) == pytest.approx(evaluated.nlm_perplexity, rel=1e-5)
    assert perplexity(second.lm.logp) != pytest.approx(perplexity(first.lm.logp), rel=1e-3)


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
        trace_for(lm, store, str(tmp_path / "v.txt"))
    interrupted = trace_for(lm, store, str(tmp_path / "v.txt"))
    batches = -(-len(interrupted.lm) // 64)
    assert len(calls) == batches + 1
    monkeypatch.setattr(type(lm), "score", real)
    monkeypatch.setattr(trace, "cache_dir", lambda: tmp_path / "other")
    whole = trace_for(lm, store, str(tmp_path / "v.txt"))
    np.testing.assert_array_equal(interrupted.lm.keys, whole.lm.keys)
    np.testing.assert_array_equal(interrupted.lm.logp, whole.lm.logp)


def test_a_smaller_k_is_never_cut_out_of_rescored_neighbours(lm, store, valid, monkeypatch):
    exact = trace_for(lm, store, valid, distances="store")
    with pytest.raises(OptionError, match="search again"):
        exact.log_p_knn(1.0, 64)
    monkeypatch.setattr(tuning, "KS", (32,))
    found = tune(lm, Retriever(store, distances="store"), valid, k=128)
    assert [point.k for point in found.by_k] == [32, 128]
    small = trace_for(lm, store, valid, k=32, distances="store")
    point = found.by_k[0]
    value = perplexity(mix(np.asarray(small.lm.logp, np.float64), small.log_p_knn(point.knn_temperature), point.lam))
    assert value == pytest.approx(point.perplexity)


def test_old_traces_make_room_for_new_ones(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    first = trace_for(lm, store, valid)
    folders = lambda kind: sorted(path.parent.name for path in tmp_path.glob(f"traces/{kind}-*/trace.json"))  # noqa: E731
    searched = folders("search")
    expected = first.log_p_knn(2.0)
    trace_for(lm, store, valid, k=64)
    assert set(searched) < set(folders("search"))
    monkeypatch.setenv("NEARLM_TRACE_GB", "0.000001")
    del first
    trace_for(lm, store, valid, k=32)
    assert len(folders("search")) == 1 and folders("search") != searched
    np.testing.assert_array_equal(trace_for(lm, store, valid).log_p_knn(2.0), expected)
    monkeypatch.setenv("NEARLM_TRACE_GB", "plenty")
    with pytest.raises(OptionError, match="NEARLM_TRACE_GB"):
        trace_for(lm, store, valid, k=16)


def test_old_texts_make_room_too_but_not_the_one_that_is_read(lm, store, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    reading = store.reading()

    def kept(kind):
        return {path.name for path in tmp_path.glob(f"traces/{kind}-*")}

    def read(number):
        (tmp_path / f"{number}.txt").write_text(make_text(150, seed=60 + number))
        before = kept("text")
        text = cache_text(str(tmp_path / f"{number}.txt"), lm.tokenizer, reading)
        return text, *(kept("text") - before)

    (first, oldest), (_, newer) = read(1), read(2)
    trace_lm(lm, first, reading)
    os.utime(tmp_path / "traces" / oldest, (1, 1))
    third, mine = read(3)
    there = sum(path.stat().st_size for path in tmp_path.glob("traces/*/*") if path.is_file())
    wanted = sum(128 + third.windows.records * 4 * width for width in (lm.dim, 1, 1, 1))
    monkeypatch.setenv("NEARLM_TRACE_GB", str((there + wanted - 1) / 1e9))
    traced = trace_lm(lm, third, reading)
    assert kept("text") == {newer, mine} and len(kept("lm")) == 2
    monkeypatch.setenv("NEARLM_TRACE_GB", "0.000001")
    again = trace_search(traced, Retriever(store), 16)
    assert kept("text") == {mine} and not kept("lm")
    assert len(again.log_p_knn()) == len(third.targets)


def test_a_trace_with_an_array_gone_is_made_again(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    expected = trace_for(lm, store, valid).log_p_knn(2.0)
    for path in (*tmp_path.glob("traces/lm-*/keys.npy"), *tmp_path.glob("traces/search-*/ids.npy")):
        path.unlink()
    np.testing.assert_array_equal(trace_for(lm, store, valid).log_p_knn(2.0), expected)


class Listener(Reporter):
    """Waits to hear that somebody waits."""

    def __init__(self):
        super().__init__(quiet=True)
        self.heard = threading.Event()

    def say(self, line: str) -> None:
        if "waiting" in line:
            self.heard.set()


def test_who_needs_a_trace_that_is_being_made_waits_for_it(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    reading = store.reading()
    text = cache_text(valid, lm.tokenizer, reading)
    retriever = Retriever(store)

    def trace(reporter: Reporter) -> traces.Trace:
        return trace_search(trace_lm(lm, text, reading, reporter), retriever, 9, reporter)

    first = trace(QUIET)
    for folder in sorted(tmp_path.glob("traces/[ls]*-*")):
        with ThreadPoolExecutor(1) as thread:
            listener = Listener()
            with files.lock(folder):
                second = thread.submit(trace, listener)
                assert listener.heard.wait(60) or second.result()
            np.testing.assert_array_equal(second.result().ids, first.ids)


def test_what_a_kill_at_the_very_end_left_is_removed(lm, store, valid, monkeypatch, tmp_path):
    monkeypatch.setattr(traces, "cache_dir", lambda: tmp_path)
    trace_for(lm, store, valid)
    left = [Job(folder, "trace") for folder in tmp_path.glob("traces/[ls]*-*")]
    for job in left:
        job.begin({})
    trace_for(lm, store, valid)
    assert left and not any(job.folder.exists() for job in left)


@pytest.mark.parametrize("array", ["lm-*/logp.npy", "lm-*/keys.npy", "search-*/ids.npy", "search-*/distances.npy"])
def test_a_damaged_trace_is_made_again_and_said_so(lm, store, valid, monkeypatch, tmp_path, capsys, array):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    expected = trace_for(lm, store, valid).log_p_knn(2.0)
    (path,) = tmp_path.glob(f"traces/{array}")
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes(40))
    text = cache_text(str(valid), lm.tokenizer, store.reading())
    traced = trace_lm(lm, text, store.reading(), Reporter())
    made = trace_search(traced, Retriever(store), 128, Reporter())
    np.testing.assert_array_equal(made.log_p_knn(2.0), expected)
    assert path.read_bytes() == data
    assert f"{path.name} is damaged (its checksum differs); computing that trace again" in capsys.readouterr().err


def test_traces_may_be_kept_elsewhere(lm, store, valid, tmp_path):
    elsewhere = tmp_path / "mine"
    with traces_in(elsewhere):
        found = trace_lm(lm, cache_text(valid, lm.tokenizer, store.reading()), store.reading())
    assert {path.name.partition("-")[0] for path in elsewhere.iterdir() if path.name != "reading"} == {"lm", "text"}
    assert len(found) and traces.trace_folder() != elsewhere
    with pytest.raises(KeyError), traces_in(elsewhere):
        raise KeyError
    assert traces.trace_folder() != elsewhere
