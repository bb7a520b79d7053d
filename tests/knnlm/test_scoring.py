"""Scoring with a gate: plain kNN-LM, the LM alone, the equations, and only those searched that ask."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gated import PROMPTS, WINDOW, by_hand

from calls import attach, evaluate, knnlm_of, load_knnlm
from nearlm.base.errors import OptionError
from nearlm.knnlm import scoring
from nearlm.knnlm.scoring import Scorer, Timer
from nearlm.mixing import memory as memory_module
from nearlm.mixing.gate import Gate
from nearlm.text.windows import plan_windows
from tiny import make_text


def test_a_constant_gate_that_skips_nothing_is_plain_knn_lm(double_lm, store, test_text):
    plain = evaluate(load_knnlm(store, double_lm), str(test_text))
    gated = evaluate(load_knnlm(store, double_lm, gate="constant", skip=0), str(test_text))
    assert gated.perplexity == pytest.approx(plain.perplexity, rel=1e-9)
    assert plain.perplexity != pytest.approx(plain.nlm_perplexity, rel=1e-3)
    assert (gated.skipped, gated.retrievals, gated.search.gate) == (0.0, gated.tokens, "constant")


def test_a_gate_that_skips_all_is_the_lm_and_searches_nothing(double_lm, store, test_text, searches):
    alone = evaluate(load_knnlm(store, double_lm, knn=False), str(test_text))
    for name in ("learned", "constant"):
        gated = evaluate(load_knnlm(store, double_lm, gate=name, skip=1.0), str(test_text))
        assert gated.perplexity == gated.nlm_perplexity == alone.perplexity
        assert (gated.skipped, gated.retrievals, gated.retrievals_per_second) == (1.0, 0, None)
    knnlm = load_knnlm(store, double_lm, gate="learned", skip=1.0)
    plain = knnlm_of(double_lm, store, None)
    assert knnlm.generate(PROMPTS, max_new_tokens=5, do_sample=False) == plain.generate(
        PROMPTS, max_new_tokens=5, do_sample=False
    )
    assert np.array_equal(knnlm.score("the licence").logp, plain.score("the licence").logp)
    assert not searches


@pytest.mark.parametrize("name", ["learned", "counts"])
def test_scores_and_attached_logits_equal_the_equations(double_lm, store, name, searches):
    gate, skip = Gate.load(store, name), 0.4
    knnlm = load_knnlm(store, double_lm, gate=name, skip=skip)
    scores = knnlm.score(make_text(25, seed=8))
    ids = [0, *scores.tokens.tolist()][:WINDOW]
    lam, logp = by_hand(double_lm, store, gate, ids, skip)
    lam, rows = lam[:-1], np.arange(len(ids) - 1)
    assert 0.1 < np.mean(lam == 0) < 0.9 and np.std(lam[lam > 0]) > 0.01
    np.testing.assert_allclose(scores.lam[: len(rows)], lam, rtol=1e-4)
    np.testing.assert_allclose(scores.logp[: len(rows)], logp[rows, ids[1:]], rtol=1e-4)
    np.testing.assert_array_equal(scores.retrieved[: len(rows)], lam > 0)
    searches.clear()
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model, torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
        picked = model(torch.tensor([ids]), logits_to_keep=torch.tensor([2, 5])).logits[0]
    np.testing.assert_allclose(whole, logp, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(picked, logp[[2, 5]], rtol=1e-4, atol=1e-6)
    assert searches[0] <= np.sum(lam > 0) + 1


def test_only_tokens_that_ask_are_searched_and_a_window_does_not_hide_the_past(double_lm, store, test_text, searches):
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.4)
    found = evaluate(knnlm, str(test_text))
    assert found.retrievals == sum(searches) and found.skipped == pytest.approx(1 - sum(searches) / found.tokens)
    strided = evaluate(knnlm, str(test_text), stride=16)  # λ depends on tokens only, so not on the windows
    assert strided.retrievals == found.retrievals
    assert found.gate_microseconds > 0 and 0 <= found.gate_share < 1 and found.search.lam is None


@pytest.mark.parametrize("gate", [None, "counts"])
def test_a_search_that_overlaps_the_lm_gives_the_same_and_its_time_is_added_in_one_thread(
    double_lm, store, monkeypatch, gate
):
    class Watched(Timer):
        def __setattr__(self, name, value):
            threads.add(threading.get_ident())
            super().__setattr__(name, value)

    class Clock(threading.local):
        """A second passes, in each thread by itself, whenever it is read."""

        now = 0

        def read(self):
            self.now += 1
            return self.now

    clock, threads = Clock(), set()
    for module in (scoring, memory_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock.read))
    knnlm = load_knnlm(store, double_lm, gate=gate, skip=gate and 0.4)
    ids = np.asarray([0, *double_lm.tokenizer(make_text(200, seed=4))["input_ids"]], np.int32)
    bounds = np.array([0, len(ids)])
    windows = plan_windows(bounds, WINDOW, WINDOW)
    found = {}
    for overlap in (False, True):
        scorer = Scorer(double_lm, knnlm.memory, Watched(), overlap=overlap)
        batches = list(scorer.score(ids, bounds, windows, WINDOW))
        assert len(batches) == len(windows) > 5
        timer = scorer.timer
        assert (timer.lm, timer.search, timer.gate) == (len(windows),) * 3
        assert timer.mixing == 3 * len(windows)  # to ask, to weigh, to mix
        found[overlap] = batches
    assert threads == {threading.get_ident()}
    for one, other in zip(found[False], found[True], strict=True):
        np.testing.assert_array_equal(one.positions, other.positions)
        np.testing.assert_array_equal(one.near.ids, other.near.ids)
        for name in ("tokens", "log_lm", "log_knn", "logp", "lam", "retrieved"):
            np.testing.assert_array_equal(getattr(one.scores, name), getattr(other.scores, name))


def test_explaining_shows_no_neighbours_for_tokens_that_did_not_ask(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.5)
    ids = [0, *double_lm.tokenizer(make_text(20, seed=4))["input_ids"]]
    told = list(knnlm.explain(ids))
    asked = np.concatenate([batch.scores.retrieved for batch in knnlm._score_batches(np.asarray(ids, np.int32))])
    assert [bool(one.nearest) for one in told] == asked.tolist() and 0 < asked.sum() < len(told)
    silent = load_knnlm(store, double_lm, gate="counts", skip=1)
    assert not any(one.nearest for one in silent.explain(ids))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": 0.5}, "`gate`"),
        ({"budget": 0.5}, "`gate`"),
        ({"gate": "learned", "lam": 0.2}, "`lam`"),
        ({"gate": "learned", "knn": False}, "`knn=False`"),
        ({"gate": "learned", "knn_temperature": 9.0}, "knn_temperature=3.0"),
        ({"gate": "learned", "k": 5}, "k=32"),
        ({"gate": "learned", "distances": "store"}, "distances"),
        ({"gate": "learned", "skip": 2}, "0 to 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(double_lm, store, options, message):
    with pytest.raises(OptionError, match=message):
        load_knnlm(store, double_lm, **options)


def test_several_batches_are_searched_at_once_with_the_same_result(double_lm, store, monkeypatch):
    knnlm = load_knnlm(store, double_lm)
    ids = np.asarray([0, *double_lm.tokenizer(make_text(200, seed=4))["input_ids"]], np.int32)
    bounds = np.array([0, len(ids)])
    windows = plan_windows(bounds, WINDOW, WINDOW)
    monkeypatch.setattr(scoring, "_SECONDS", 1000)
    found = {}
    for together in (1, 4):
        monkeypatch.setattr(scoring, "_TOGETHER", together)
        batches = list(Scorer(double_lm, knnlm.memory).score(ids, bounds, windows, WINDOW))
        assert len(batches) == -(-len(windows) // together)
        order = np.argsort(np.concatenate([batch.positions for batch in batches]))
        found[together] = np.concatenate([batch.scores.logp for batch in batches])[order]
    np.testing.assert_array_equal(found[1], found[4])
