"""Weights of several memories that nobody trained together: those of a single one, shared λ, and the merge of p_kNN."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing.advice import log_p_of, log_sum, there_of
from nearlm.mixing.candidates import from_neighbors
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.mixture_features import Known, Proposal, experts_of, features_of, width_of
from nearlm.mixing.mixture_network import MixtureNetwork, network_of
from nearlm.mixing.odds import Alone, Odds
from nearlm.mixing.usual import USUAL_SOURCES, UsualWeights
from nearlm.search import Neighbors

ALL = ("knn", "ngram", "text")
PAIR = ("knn", "ngram", "knn:1", "ngram:1", "text")


def network(sources):
    experts = 1 + sum(place.stop - place.start for place in experts_of(sources).values())
    return MixtureNetwork(width_of(sources), experts).eval()


def features_for(sources, rows=20, seed=0):
    rng = np.random.default_rng(seed)
    experts = 1 + sum(place.stop - place.start for place in experts_of(sources).values())
    features = np.abs(rng.normal(size=(rows, width_of(sources)))).astype(np.float32)
    there = np.ones((rows, experts), np.bool_)
    for place in experts_of(sources).values():
        there[:, place] = rng.random((rows, 1)) < 0.7
    return features, there


def test_a_single_memory_has_its_own_weights():
    own = network(ALL)
    features, there = features_for(ALL)
    np.testing.assert_allclose(
        np.exp(Odds((Alone(ALL, own),)).log_weights(features, there)), np.exp(own.log_weights(features, there)), 1e-6
    )


def test_odds_are_those_that_each_memory_gives():
    one, other = network(ALL), network(ALL)
    odds = Odds((Alone(ALL, one), Alone(ALL, other)))
    assert odds.sources == PAIR
    features, there = features_for(PAIR)
    weights = np.exp(odds.log_weights(features, there))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-9)
    assert (weights[~there] == 0).all()
    expected = np.zeros(there.shape)
    expected[:, 0] = 1
    places = (([0, *range(1, 7), 13], "knn", "ngram"), ([0, *range(7, 13), 13], "knn:1", "ngram:1"))
    for net, (experts, knn, ngram) in zip((one, other), places, strict=True):
        begin = {"knn": 3, "ngram": 21, "knn:1": 27, "ngram:1": 45, "text": 51}
        pairs = [(a, b) for a in PAIR for b in PAIR if a != b]
        names = (knn, ngram, "text")
        columns = [0, 1, 2, *range(begin[knn], begin[knn] + 18), *range(begin[ngram], begin[ngram] + 6), *range(51, 57)]
        columns += [57 + pairs.index((a, b)) for a in names for b in names if a != b]
        alone = np.exp(net.log_weights(features[:, columns], np.ascontiguousarray(there[:, experts])))
        expected[:, experts[1:]] += alone[:, 1:] / alone[:, :1]
    expected[:, 13] /= 2
    np.testing.assert_allclose(weights, expected / expected.sum(1, keepdims=True), rtol=1e-5, atol=1e-12)


def test_a_network_begins_with_the_odds():
    own = ("knn", "ngram")
    alone = [network(own), network(own)]
    for number, net in enumerate(alone):
        net.mean += 0.3 * number
        net.scale *= 0.5 + 0.2 * number
    odds = Odds(tuple(Alone(own, net) for net in alone))
    features, there = features_for(odds.sources)
    begun = network_of(odds.sources).eval()
    begun.fit(torch.from_numpy(features))
    begun.scale *= 0.5  # nothing is clipped
    odds.begin(begun)
    np.testing.assert_allclose(begun.log_weights(features, there), odds.log_weights(features, there), 1e-4, 1e-4)
    with_text = Odds((Alone(ALL, network(ALL)), Alone(ALL, network(ALL))))
    begun = network_of(PAIR).eval()
    with_text.begin(begun)
    features, there = features_for(PAIR)
    there[:, -1] = False  # whose odds are a mean, here of their logs
    np.testing.assert_allclose(begun.log_weights(features, there), with_text.log_weights(features, there), 1e-4, 1e-4)


def test_without_a_network_for_each_memory_nothing_is_begun():
    odds = Odds((Alone(("knn",), network(("knn",))), Alone(("knn",), None, 0.3)))
    fresh = network_of(odds.sources)
    before = [parameter.clone() for parameter in fresh.parameters()]
    odds.begin(fresh)
    assert all(torch.equal(*pair) for pair in zip(before, fresh.parameters(), strict=True))


def test_a_memory_without_keys_takes_part():
    odds = Odds((Alone(USUAL_SOURCES, UsualWeights()), Alone(("knn",), None, 0.3)))
    assert odds.sources == ("ngram", "knn:1", "text")
    features, there = features_for(odds.sources)
    there[:5] = False
    there[:, 0] = True
    weights = np.exp(odds.log_weights(features, there))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-9)
    assert (weights[:5, 0] == 1).all()


def found_near(rng, rows, k):
    near = Neighbors(
        rng.uniform(0, 30, (rows, k)).astype(np.float32), rng.integers(0, 6, (rows, k)).astype(np.int32), None, None
    )
    near.tokens[0] = -1
    near.distances[0] = np.inf
    return near


@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
@given(seed=st.integers(0, 10_000))
def test_memories_of_one_lambda_are_merged_before_p_knn(lam, seed):
    rng = np.random.default_rng(seed)
    temperature = rng.uniform(1, 10)
    nears = [found_near(rng, 4, 5), found_near(rng, 4, 7)]
    odds = Odds((Alone(("knn",), None, lam), Alone(("knn",), None, lam)))
    everywhere = np.arange(4)
    proposals = {
        name: Proposal(everywhere, from_neighbors(near, temperature))
        for name, near in zip(odds.sources, nears, strict=True)
    }
    known = Known.of(None, Contexts.none(4), 4)
    targets = rng.integers(0, 6, 4).astype(np.int32)
    log_lm = np.log(rng.uniform(0.01, 1, 4))
    log_weights = odds.log_weights(features_of(odds.sources, known, proposals), there_of(odds.sources, proposals, 4))
    p = np.exp(log_sum(log_weights + log_p_of(odds.sources, proposals, log_lm, targets)))
    distances = np.concatenate([near.distances for near in nears], 1).astype(np.float64)
    tokens = np.concatenate([near.tokens for near in nears], 1)
    nearest = distances.min(1, where=tokens >= 0, initial=1e9)
    mass = np.exp(-(distances - nearest[:, None]) / temperature) * (tokens >= 0)
    merged = (mass * (tokens == targets[:, None])).sum(1) / np.maximum(mass.sum(1), 1e-30)
    share = np.where((tokens >= 0).any(1), min(lam, 1 - 1e-9), 0.0)  # where nothing was found p is the LM's
    np.testing.assert_allclose(p, share * merged + (1 - share) * np.exp(log_lm), rtol=2e-4, atol=1e-7)
