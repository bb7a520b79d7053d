"""The mixture of experts sums to 1 over the vocabulary, for every combination of sources, and equals the equation."""

import itertools

import numpy as np
import pytest
import torch

from nearlm.mixing.advice import Advice, log_p_of, log_sum, there_of
from nearlm.mixing.candidates import from_infinigram, from_neighbors, from_text
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.mixture_features import KNN, NGRAM, SOURCES, TEXT, Proposal, experts_of
from nearlm.search import Neighbors

VOCABULARY = 12
ROWS = 6
COMBINATIONS = [one for size in (1, 2, 3) for one in itertools.combinations(SOURCES, size)]


def advice_of(sources, rng, retrieved):
    from test_candidates import FakeInfiniGram

    contexts = Contexts.of_text(rng.integers(0, 4, 30).astype(np.int32), np.array([0, 30]), np.arange(1, ROWS + 1) * 4)
    rows = np.flatnonzero(retrieved)
    near = Neighbors(
        rng.uniform(0, 9, (len(rows), 5)).astype(np.float32),
        rng.integers(-1, VOCABULARY, (len(rows), 5)).astype(np.int32),
        None,
        None,
    )
    near.tokens[:1] = -1  # a search that found nothing
    everything = {
        KNN: Proposal(rows, from_neighbors(near, 2.0)),
        NGRAM: Proposal(np.arange(ROWS), from_infinigram(FakeInfiniGram([0, 1, 2, 2, 11, 0]), contexts)),
        TEXT: Proposal(np.arange(ROWS), from_text(contexts)),
    }
    found = {name: everything[name] for name in sources}
    there = there_of(sources, found, ROWS)
    scores = np.where(there, rng.normal(size=there.shape), -np.inf)
    return Advice(sources, found, scores - log_sum(scores)[:, None], near, retrieved)


@pytest.mark.parametrize("sources", COMBINATIONS)
@pytest.mark.parametrize("searched", ["all", "some", "none"])
def test_every_combination_sums_to_one_and_targets_have_their_share(sources, searched):
    rng = np.random.default_rng(7)
    retrieved = {"all": np.ones(ROWS, bool), "some": np.arange(ROWS) % 2 == 0, "none": np.zeros(ROWS, bool)}[searched]
    advice = advice_of(sources, rng, retrieved)
    log_lm = torch.randn(ROWS, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_lm = log_lm.log_softmax(-1)
    whole = advice.log_p_vocabulary(log_lm).numpy()
    np.testing.assert_allclose(np.exp(whole).sum(1), 1, rtol=1e-6)
    for token in range(VOCABULARY):
        targets = np.full(ROWS, token, np.int32)
        model = log_lm[:, token].numpy()
        experts = advice.log_experts(model, targets)
        np.testing.assert_allclose(advice.log_p(experts), whole[:, token], rtol=1e-6, atol=1e-6)
        expected = (np.exp(advice.log_weights) * np.exp(experts)).sum(1)  # Σ_e w_e p_e
        np.testing.assert_allclose(np.exp(whole[:, token]), expected, rtol=1e-6)
        assert (experts[:, 0] == model).all()
    np.testing.assert_allclose(advice.lam, 1 - np.exp(advice.log_weights[:, 0]), atol=1e-12)


def test_p_knn_is_that_of_the_tuned_temperature():
    rng = np.random.default_rng(1)
    advice = advice_of((KNN, TEXT), rng, np.ones(ROWS, bool))
    targets = np.full(ROWS, 3, np.int32)
    experts = log_p_of((KNN, TEXT), advice.proposals, np.zeros(ROWS), targets)
    with np.errstate(divide="ignore"):
        expected = np.log(advice.proposals[KNN].candidates.p_of(targets)[:, 2].astype(float))
    np.testing.assert_array_equal(advice.log_knn(experts), expected)
    assert experts_of((KNN, TEXT))[TEXT] == slice(6, 7)
    assert (advice_of((TEXT,), rng, np.ones(ROWS, bool)).log_knn(experts[:, :2]) == -np.inf).all()
