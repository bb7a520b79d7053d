"""The gate's network and losses, against the paper's equations."""

import numpy as np
import pytest
import torch

from nearlm.base.errors import OptionError
from nearlm.mixing.gate_network import (
    FEATURES,
    PAPER_FEATURES,
    GateNetwork,
    Inputs,
    classification_loss,
    mixture_loss,
    parse_features,
    scalar_columns,
)
from nearlm.mixing.gate_training import (
    Training,
)
from nearlm.mixing.ngrams import Counts


def test_the_network_is_the_papers():
    network = GateNetwork(Inputs(24, PAPER_FEATURES, "none"))
    shapes = [tuple(layer.weight.shape) for layer in network.mlp if isinstance(layer, torch.nn.Linear)]
    assert shapes == [(128, 48)] + [(128, 128)] * 4 + [(2, 128)]
    each = {
        name: [tuple(p.weight.shape) for p in part if hasattr(p, "weight")] for name, part in network.scalar.items()
    }
    assert each == {"conf": [(8, 1), (8, 8)], "ent": [(8, 1), (8, 8)], "fert": [(8, 4), (8, 8)]}
    dropouts = [layer.p for layer in network.mlp if isinstance(layer, torch.nn.Dropout)]
    assert dropouts == [0.2] * 5 and isinstance(network.mlp[-1], torch.nn.LogSoftmax)
    keys, scalars = np.random.default_rng(0).normal(size=(5, 24)), np.ones((5, 6), np.float32)
    weights = network.log_weights(keys, scalars, batch=2)
    np.testing.assert_allclose(np.exp(weights).sum(1), 1, rtol=1e-6)
    x = np.concatenate([keys] + [by_hand(part, scalars[:, a:b]) for part, a, b in zip_scalars(network)], axis=1)
    np.testing.assert_allclose(log_softmax(by_hand(network.mlp[:-1], x)), weights, rtol=1e-4)


def zip_scalars(network):
    return [(network.scalar["conf"], 0, 1), (network.scalar["ent"], 1, 2), (network.scalar["fert"], 2, 6)]


def by_hand(layers, x):
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    for number, layer in enumerate(linear):
        x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        x = x if number == len(linear) - 1 else np.maximum(x, 0)
    return x


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("features", [("keys",), ("conf",), ("freq", "fert"), FEATURES])
def test_every_feature_can_be_left_out(features):
    shape, rng = Inputs(16, features), np.random.default_rng(0)
    counts = Counts(rng.integers(0, 9, (7, 4)), rng.integers(0, 9, (7, 4)))
    conf, ent, suffix = rng.uniform(size=7), rng.uniform(size=7), rng.uniform(size=(7, 4))
    scalars = scalar_columns(shape, 7, conf, ent, counts, suffix)
    columns = {"conf": conf[:, None], "ent": ent[:, None], "freq": np.log1p(counts[0]), "fert": np.log1p(counts[1])}
    columns["suffix"] = suffix
    wanted = [column for name, column in columns.items() if name in features]
    np.testing.assert_allclose(scalars, np.concatenate([np.empty((7, 0)), *wanted], axis=1), rtol=1e-6)
    network, keys = GateNetwork(shape), rng.normal(size=(7, 16)).astype(np.float32)
    before = network.log_weights(keys, scalars)
    changed = network.log_weights(keys + 1, scalars)
    assert before.shape == (7, 2) and np.allclose(before, changed) == ("keys" not in features)


def test_standardising_takes_away_shift_and_scale():
    rng = np.random.default_rng(0)
    keys, scalars = rng.normal(3, 50, (500, 8)).astype(np.float32), rng.normal(-9, 0.01, (500, 6)).astype(np.float32)
    scalars[:, 2] = 4.0  # a feature that never changes
    for standardise in ("all", "scalars", "none"):
        network = GateNetwork(Inputs(8, PAPER_FEATURES, standardise))
        network.fit(torch.from_numpy(keys), torch.from_numpy(scalars))
        seen = ((torch.from_numpy(keys) - network.key_mean) * network.key_scale).numpy()
        others = ((torch.from_numpy(scalars) - network.mean) * network.scale).numpy()
        assert np.allclose(seen.std(0), 1, atol=1e-2) == (standardise == "all")
        assert np.allclose(others.std(0)[3:], 1, atol=1e-2) == (standardise != "none")
        assert np.isfinite(others).all()


@pytest.mark.parametrize("a", [0.0, 0.05, 1.0])
def test_loss_and_gradient_equal_the_formula_in_float64(a):
    rng = np.random.default_rng(1)
    z = torch.from_numpy(rng.normal(size=(50, 2))).requires_grad_()
    p_knn, p_lm = rng.uniform(size=50), rng.uniform(0.001, 1, 50)
    p_knn[:10] = 0
    with np.errstate(divide="ignore"):
        loss = mixture_loss(z.log_softmax(-1), torch.from_numpy(np.log(p_knn)), torch.from_numpy(np.log(p_lm)), a)
    loss.backward()
    lam = 1 / (1 + np.exp(z.detach().numpy() @ [-1, 1]))
    p = lam * p_knn + (1 - lam) * p_lm
    assert loss.item() == pytest.approx(-np.log(p).mean() + a * lam.mean(), rel=1e-12)
    slope = (a - (p_knn - p_lm) / p) * lam * (1 - lam) / 50
    np.testing.assert_allclose(z.grad.numpy(), np.stack([slope, -slope], 1), rtol=1e-9, atol=1e-15)


def test_classification_asks_whether_the_memory_is_at_least_as_good():
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    log_knn, log_lm = torch.tensor([-1.0, -torch.inf, -2.0]), torch.tensor([-2.0, -2.0, -2.0])
    p = np.exp(2) / (np.exp(2) + 1), np.e / (np.e + 1), 0.5
    found = classification_loss(z.log_softmax(-1), log_knn, log_lm, 0.0)
    assert found.item() == pytest.approx(-np.log(p).mean(), rel=1e-9)


def test_features_stand_in_a_fixed_order():
    assert parse_features("fert, conf,keys") == ("keys", "conf", "fert") and parse_features("all") == FEATURES


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_features("keys,nonsense"),
        lambda: parse_features("keys,keys"),
        lambda: parse_features(""),
        lambda: Training("guess"),
        lambda: Inputs(4, PAPER_FEATURES, "some"),
        lambda: Training(l1="-1"),
        lambda: Training(l1="many"),
        lambda: Training(l1="nan"),
    ],
)
def test_nonsense_options_are_refused(make):
    with pytest.raises(OptionError, match="expected"):
        make()
