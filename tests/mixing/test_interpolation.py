"""λ p_kNN + (1 - λ) p_LM of contexts of which some retrieved, against numpy."""

import numpy as np
import torch

from nearlm.mixing.interpolation import Interpolation
from nearlm.search import Neighbors


def test_targets_and_the_vocabulary_agree_with_the_equation():
    rng = np.random.default_rng(0)
    retrieved = np.array([True, False, True, True])
    near = Neighbors(rng.uniform(0, 5, (3, 4)), rng.integers(0, 6, (3, 4)).astype(np.int32), None, None)
    near.tokens[2] = -1  # found nothing: p_LM
    lam = np.array([0.3, 0.0, 0.9, 0.5])
    said = Interpolation(near, retrieved, lam, 2.0)
    log_lm = torch.tensor(rng.normal(size=(4, 6))).log_softmax(-1)
    p = np.exp(log_lm.numpy())
    for row, place in ((0, 0), (2, 1)):
        mass = np.exp(-near.distances[place] / 2.0)
        knn = np.bincount(near.tokens[place], mass, 6) / mass.sum()
        p[row] = lam[row] * knn + (1 - lam[row]) * p[row]
    np.testing.assert_allclose(np.exp(said.log_p_vocabulary(log_lm).numpy()), p, rtol=1e-9)
    for token in range(6):
        model = log_lm[:, token].numpy()
        log_knn = said.log_knn(np.full(4, token, np.int32))
        np.testing.assert_allclose(np.exp(said.log_p(model, log_knn)), p[:, token], rtol=1e-9)
        assert log_knn[1] == -np.inf


def test_without_any_search_it_is_the_lm_to_the_bit():
    said = Interpolation(None, np.zeros(2, bool), np.zeros(2), 1.0)
    log_lm = np.log([0.3, 0.7])
    assert said.log_p(log_lm, said.log_knn(np.zeros(2, np.int32))) is log_lm
    whole = torch.randn(2, 5)
    assert said.log_p_vocabulary(whole) is whole
