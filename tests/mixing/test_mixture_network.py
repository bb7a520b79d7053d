"""The network of a mixture: its loss and gradient by hand in float64, and experts that are not there."""

import numpy as np
import torch

from nearlm.mixing.mixture_network import MixtureNetwork, mixture_loss


def test_loss_and_gradient_are_those_of_the_equation():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 3))
    p = rng.uniform(0, 1, (5, 3))
    p[2, 1] = 0  # an expert that gives the target nothing
    w = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.log((w * p).sum(1)).mean()
    gradient = -w * (p / (w * p).sum(1, keepdims=True) - 1) / len(p)  # of the softmax's scores
    free = torch.tensor(scores, requires_grad=True)
    loss = mixture_loss(free.log_softmax(-1), torch.tensor(p).log())
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(free.grad.numpy(), gradient, rtol=1e-9, atol=1e-15)


def test_weights_add_up_to_one_over_the_experts_that_are_there():
    torch.manual_seed(0)
    network = MixtureNetwork(4, 3)
    features = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    there = np.ones((50, 3), np.bool_)
    there[::2, 1:] = False
    there[1::4, 2] = False
    weights = np.exp(network.log_weights(features, there))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert (weights[~there] == 0).all() and (weights[there] > 0).all()
    np.testing.assert_array_equal(weights[::2, 0], 1)  # the LM alone


def test_features_beyond_all_that_was_seen_count_as_the_most_extreme():
    network = MixtureNetwork(2, 2)
    network.fit(torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)))
    there = np.ones((2, 2), np.bool_)
    far = network.log_weights(np.array([[10, 0], [1e6, 0]], np.float32), there)
    np.testing.assert_array_equal(far[0], far[1])


def test_frozen_weights_give_what_the_network_gives_whatever_the_batch():
    torch.manual_seed(0)
    network = MixtureNetwork(39, 8).eval()
    network.fit(3 * torch.randn(500, 39) + 1)
    features = np.random.default_rng(1).normal(1, 5, (60, 39)).astype(np.float32)
    there = np.random.default_rng(2).random((60, 8)) < 0.7
    there[:, 0] = True
    with torch.inference_mode():
        expected = network(torch.from_numpy(features), torch.from_numpy(there)).exp().numpy()
    found = network.frozen().log_weights(features, there)
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-5)
    for row in range(60):
        here = slice(row, row + 1)
        np.testing.assert_array_equal(network.log_weights(features[here], there[here]), found[here])
