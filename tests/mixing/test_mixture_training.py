"""Training a mixture: examples from a trace against the equations, what is learned, and tokens that skip retrieval."""

from dataclasses import replace

import numpy as np
import pytest
from examples import DOCUMENTS, trace_for

from nearlm.mixing import mixture_training
from nearlm.mixing.equations import log_p_knn, perplexity
from nearlm.mixing.gate_training import split_rows
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.mixture_features import KNN, NGRAM, TEXT, columns_with, experts_of, width_of
from nearlm.mixing.mixture_training import (
    MixtureExamples,
    Samples,
    Searched,
    cross_fit,
    halves,
    join_samples,
    judge_mixture,
    mixture_examples,
    train_mixture,
)
from nearlm.store import Tuned

ALL = (KNN, NGRAM, TEXT)


def made_up(count=6000, seed=0):
    """Tokens of which the ∞-gram or the neighbours know, as their features tell."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, width_of(ALL))).astype(np.float32)
    places = experts_of(ALL)
    p = np.full((count, 8), 1e-6)
    p[:, 0] = rng.uniform(0.02, 0.3, count)
    p[features[:, columns_with(KNN, ALL)[0]] > 0.5, places[KNN]] = 0.8
    p[features[:, 24] > 1, places[NGRAM]] = 0.9
    return MixtureExamples(ALL, features, np.log(p).astype(np.float32), np.ones((count, 8), np.bool_))


def test_a_network_learns_whom_to_trust_and_does_without_a_search():
    examples = made_up()
    split = split_rows(DOCUMENTS, 0)
    network = train_mixture(examples, split, 0)
    held = examples[split.held]
    lm = perplexity(held.log_p[:, 0].astype(float))
    searched, skipped = perplexity(held.log_mixture(network)), perplexity(held.without_search().log_mixture(network))
    assert searched < 0.75 * skipped and skipped < 0.95 * lm
    again = train_mixture(examples, split, 0)
    np.testing.assert_array_equal(
        again.log_weights(held.features, held.there), network.log_weights(held.features, held.there)
    )


def test_without_a_search_just_what_needs_it_is_gone():
    examples = made_up(50)
    skipped = examples.without_search(np.array([3, 7]))
    for row in range(50):
        same = row not in (3, 7)
        assert np.array_equal(skipped.features[row], examples.features[row]) == same
        assert skipped.there[row].sum() == (8 if same else 3)
    assert (skipped.features[3][columns_with(KNN, ALL)] == 0).all()
    assert (examples.features[3] != 0).all()  # not changed itself


def test_features_that_are_left_out_are_not_learned_from():
    examples = made_up()
    split = split_rows(DOCUMENTS, 0)
    left_out = columns_with(KNN, ALL)
    blank = examples.without_features(left_out)
    network = train_mixture(blank, split, 0)
    with_all = examples.log_mixture(train_mixture(examples, split, 0))
    assert perplexity(blank.log_mixture(network)[split.held]) > 1.05 * perplexity(with_all[split.held])
    assert (blank.features[:, left_out] == 0).all() and (examples.features != 0).all()  # not changed itself
    kept = np.setdiff1d(np.arange(width_of(ALL)), left_out)
    np.testing.assert_array_equal(blank.features[:, kept], examples.features[:, kept])


@pytest.fixture(scope="module")
def trace(lm, store, valid):
    return trace_for(lm, store, valid)


def test_examples_are_what_the_equations_say(trace, store):
    settings = Tuned(k=32, knn_temperature=3.0)
    examples = mixture_examples(trace.lm, ALL, build_infinigram(store), Searched(trace, settings))
    assert examples.features.shape == (len(trace.lm), width_of(ALL))
    near = trace.neighbors(slice(None), 32)
    targets = trace.lm.text.targets
    for expert, factor in zip(range(1, 6), (4, 2, 1, 0.5, 0.25), strict=True):
        expected = log_p_knn(near.distances, near.tokens, targets, 3.0 * factor)
        np.testing.assert_allclose(np.exp(examples.log_p[:, expert]), np.exp(expected), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(examples.log_p[:, 0], trace.lm.logp)
    assert examples.there[:, :6].all()


def test_a_verdict_compares_with_the_tuned_constant(trace, store):
    tuned = Tuned(k=32, knn_temperature=3.0, lam=0.3, index="default")
    examples = mixture_examples(trace.lm, (KNN,), None, Searched(trace, tuned))
    split = split_rows(trace.lm.text.documents, 0)
    network = train_mixture(examples, split, 0)
    verdict = judge_mixture(network, examples, split, trace.log_p(tuned))
    constant = trace.log_p(tuned)[split.held]
    assert verdict.constant == pytest.approx(perplexity(constant))
    assert verdict.gain == pytest.approx(np.mean(examples[split.held].log_mixture(network) - constant))
    assert verdict.skipped == pytest.approx(verdict.nlm)  # without neighbours only the LM is left
    assert verdict.held_tokens == len(split.held) < 500 and not verdict.better  # too few to tell


def test_halves_are_of_whole_documents_and_each_is_predicted_by_the_other():
    documents = np.repeat(np.arange(6), [50, 10, 10, 10, 10, 10])
    (one, other), (again, first) = halves(documents)
    assert len(one) == len(other) == 50 and set(documents[one]) & set(documents[other]) == set()
    np.testing.assert_array_equal(one, first)
    np.testing.assert_array_equal(other, again)
    alone = halves(np.zeros(9, np.int64))
    assert len(alone[0][0]) == 4 and len(alone[0][1]) == 5
    examples = made_up()
    searched, skipped = cross_fit(examples, DOCUMENTS)
    train, rest = halves(DOCUMENTS)[0]
    renumbered = np.unique(DOCUMENTS[train], return_inverse=True)[1]
    network = train_mixture(examples[train], split_rows(renumbered, 0), 0)
    np.testing.assert_allclose(searched[rest], examples[rest].log_mixture(network))
    np.testing.assert_allclose(skipped[rest], examples[rest].without_search().log_mixture(network))


def strangers(count=3000, seed=1):
    """Text on which the memory sounds as sure as on any, but is always wrong."""
    examples = made_up(count, seed)
    features = examples.features.copy()
    features[:, 0] += 4  # something else tells: the LM's own statistics
    log_p = np.full_like(examples.log_p, np.log(1e-6))
    log_p[:, 0] = np.log(0.3)
    return Samples(replace(examples, features=features, log_p=log_p), np.arange(count) // 60)


def test_what_the_lm_wrote_teaches_when_not_to_trust_the_memory():
    examples, own, unseen = made_up(), strangers(), strangers(seed=2).examples
    split = split_rows(DOCUMENTS, 0)
    naive = train_mixture(examples, split, 0)
    careful = train_mixture(*join_samples(examples, split, own, 0), 0)
    alone = perplexity(unseen.log_p[:, 0].astype(float))
    assert perplexity(unseen.log_mixture(naive)) > 1.3 * alone
    assert perplexity(unseen.log_mixture(careful)) < 1.05 * alone
    held = examples[split.held]
    assert perplexity(held.log_mixture(careful)) < 1.02 * perplexity(held.log_mixture(naive))


def test_samples_stand_behind_a_text_and_a_tenth_of_them_is_held_out():
    examples, own = made_up(), strangers(600)
    split = split_rows(DOCUMENTS, 0)
    joined, both = join_samples(examples, split, own, 0)
    assert len(joined) == len(examples) + 600
    np.testing.assert_array_equal(joined.log_p[len(examples) :], own.examples.log_p)
    np.testing.assert_array_equal(both.held[: len(split.held)], split.held)
    assert 30 <= len(both.held) - len(split.held) <= 90
    np.testing.assert_array_equal(np.sort(np.concatenate([both.train, both.held])), np.arange(len(joined)))
    assert not set(both.documents[: len(split.held)]) & set(both.documents[len(split.held) :])
    assert join_samples(examples, split, None, 0) == (examples, split)


def test_each_half_of_a_text_learns_from_its_own_half_of_what_the_lm_wrote(monkeypatch):
    learned = []
    train = mixture_training.train_mixture

    def watched(examples, split, seed):
        learned.append(examples.log_p)
        return train(examples, split, seed)

    monkeypatch.setattr(mixture_training, "train_mixture", watched)
    examples, own = made_up(600), strangers(600)
    cross_fit(examples, DOCUMENTS[:600], samples=own)
    for (rows, _), log_p in zip(halves(own.documents), learned, strict=True):
        np.testing.assert_array_equal(log_p[-len(rows) :], own.examples.log_p[rows])
    assert sum(map(len, learned)) == 1200
