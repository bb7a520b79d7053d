"""p_kNN and the mixture against float64 oracles written from the equations."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearlm.mixing.equations import Masses, add_mass, back_off, log_p_knn, mix, p_knn_masses, perplexity

VOCAB = 7


def oracle(distances, tokens, temperature, weights):
    """p_kNN(y) = Σ 1[v=y] s exp(-d/T) / Σ s exp(-d/T), in float64, one row at a time."""
    p = np.zeros((len(tokens), VOCAB))
    for i in range(len(tokens)):
        real = tokens[i] >= 0
        d = distances[i][real].astype(np.float64)
        mass = weights[i][real] * np.exp(-(d - (d.min() if len(d) else 0)) / temperature)
        for token, m in zip(tokens[i][real], mass, strict=True):
            p[i, token] += m / mass.sum()
    return p


def dense(found, rows, vocabulary):
    """Spread masses over rows of a vocabulary; no pair comes twice."""
    p = np.zeros((rows, vocabulary))
    known = found.tokens < vocabulary
    np.add.at(p, (found.rows[known], found.tokens[known]), found.mass[known])
    assert len(set(zip(found.rows.tolist(), found.tokens.tolist(), strict=True))) == len(found.mass)
    return p


@st.composite
def neighbours(draw):
    n, k = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 50.0, 5000.0]))  # 0: ties
    distances = np.sort((rng.random((n, k)) * scale).astype(np.float32), axis=1)
    tokens = rng.integers(-1, VOCAB, (n, k)).astype(np.int32)  # -1: fewer than k, perhaps none at all
    weights = rng.integers(1, 9, (n, k)).astype(np.int32)
    temperature = draw(st.sampled_from([0.1, 1.0, 3.0, 200.0]))
    return np.where(tokens < 0, np.float32(np.inf), distances), tokens, weights, temperature


@given(neighbours(), st.booleans())
def test_p_knn_of_targets_and_of_the_vocabulary_equal_the_equation(case, weighted):
    distances, tokens, weights, temperature = case
    p = oracle(distances, tokens, temperature, weights if weighted else np.ones_like(weights))
    given_weights = weights if weighted else None
    found = dense(p_knn_masses(distances, tokens, temperature, given_weights), len(tokens), VOCAB)
    np.testing.assert_allclose(found, p, rtol=1e-9, atol=1e-300)
    for target in range(VOCAB):
        targets = np.full(len(tokens), target, np.int32)
        log_knn = log_p_knn(distances, tokens, targets, temperature, given_weights)
        np.testing.assert_allclose(np.exp(log_knn), found[:, target], rtol=1e-9, atol=1e-300)


@given(neighbours(), st.sampled_from([0.0, 0.25, 0.9, 1.0]))
def test_the_mixture_sums_to_one_whatever_was_found(case, lam):
    distances, tokens, weights, temperature = case
    rng = np.random.default_rng(0)
    log_lm = np.log(rng.dirichlet(np.ones(VOCAB), len(tokens)))
    with np.errstate(divide="ignore"):
        log_knn = np.log(dense(p_knn_masses(distances, tokens, temperature, weights), len(tokens), VOCAB))
    mixed = np.stack(
        [mix(log_lm[:, v], back_off(log_knn[:, v], log_lm[:, v], tokens), lam) for v in range(VOCAB)], axis=1
    )
    np.testing.assert_allclose(np.exp(mixed).sum(1), 1.0, rtol=1e-9)


def test_the_mixture_equals_the_equation_and_its_ends():
    p_lm, p_knn = np.array([0.5, 0.2, 1e-30]), np.array([0.1, 0.0, 0.0])
    with np.errstate(divide="ignore"):
        log_lm, log_knn = np.log(p_lm), np.log(p_knn)
    np.testing.assert_allclose(np.exp(mix(log_lm, log_knn, 0.3)), 0.3 * p_knn + 0.7 * p_lm, rtol=1e-12)
    np.testing.assert_array_equal(mix(log_lm, log_knn, 0.0), log_lm)
    np.testing.assert_array_equal(mix(log_lm, log_knn, 1.0), log_knn)
    np.testing.assert_allclose(np.exp(mix(log_lm, log_knn, np.array([0.0, 0.5, 1.0]))), [0.5, 0.1, 0.0])


def test_a_weight_is_not_divided_by_the_temperature():
    distances, tokens = np.zeros((1, 2), np.float32), np.array([[0, 1]], np.int32)
    found = p_knn_masses(distances, tokens, 10.0, np.array([[3, 1]], np.int32))
    assert found.tokens.tolist() == [0, 1] and found.mass.tolist() == [0.75, 0.25]


def test_perplexity_is_the_exponential_of_the_mean():
    assert perplexity(np.log([0.5, 0.125])) == pytest.approx(4.0)


def test_a_token_that_the_model_does_not_know_is_left_out():
    distances = np.zeros((1, 3), np.float32)
    tokens = np.array([[0, 2**31 - 1, 4]], np.int32)
    found = p_knn_masses(distances, tokens)
    np.testing.assert_allclose(dense(found, 1, 4), [[1 / 3, 0, 0, 0]])
    nothing = torch.full((1, 4), -torch.inf)
    add_mass(nothing, found)
    np.testing.assert_allclose(nothing.exp(), [[1 / 3, 0, 0, 0]], rtol=1e-6)
    assert log_p_knn(distances, tokens, np.zeros(1, np.int32)) == pytest.approx(np.log(1 / 3))


@given(st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_mass_is_added_where_it_is_and_nothing_else_changes(seed, dtype):
    rng = np.random.default_rng(seed)
    log_p = torch.tensor(np.log(rng.dirichlet(np.ones(VOCAB), 3)), dtype=dtype)
    log_p[0, :3] = -torch.inf
    chosen = rng.choice(3 * VOCAB, 9, replace=False)
    mass = np.where(rng.random(9) < 0.3, 0, rng.random(9) ** 20)
    masses = Masses(chosen // VOCAB, (chosen % VOCAB).astype(np.int32), mass)
    expected = log_p.double().exp().numpy() + dense(masses, 3, VOCAB)
    rtol = 1e-12 if dtype == torch.float64 else 1e-5
    in_place = log_p.clone()
    add_mass(in_place, masses)
    np.testing.assert_allclose(in_place.double().exp(), expected, rtol=rtol, atol=0)
    free = log_p.clone().requires_grad_()
    learned = free + 0
    add_mass(learned, masses)  # as on a GPU, by torch
    np.testing.assert_allclose(learned.detach().double().exp(), expected, rtol=rtol, atol=0)
    same = torch.from_numpy(dense(masses, 3, VOCAB) == 0)
    assert torch.equal(in_place[same], log_p[same]) and torch.equal(learned[same], log_p[same])


def test_the_gradient_of_added_mass_is_the_lms_share():
    free = torch.tensor([[0.2, 0.8]], dtype=torch.float64).log().requires_grad_()
    mixed = free + 0
    add_mass(mixed, Masses(np.array([0]), np.array([1], np.int32), np.array([0.4])))
    mixed.sum().backward()
    np.testing.assert_allclose(free.grad, [[1, 0.8 / 1.2]], rtol=1e-12)
