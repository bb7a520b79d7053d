"""How a token is chosen."""

import numpy as np
import pytest
import torch

from nearlm.serve.sampling import Sampling, alternatives, choose

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)


def drawn(sampling, count=4000):
    generator = sampling.generator(0)
    found = [choose(P.log(), sampling, generator) for _ in range(count)]
    return np.bincount(found, minlength=4) / count


def test_temperature_zero_takes_the_likeliest():
    assert choose(P.log(), Sampling(0.0), None) == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_distribution_at_a_temperature(temperature):
    expected = P ** (1 / temperature)
    assert np.allclose(drawn(Sampling(temperature, seed=1)), expected / expected.sum(), atol=0.03)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.51, 2), (0.79, 2), (0.9, 3), (1.0, 4), (1e-9, 1)])
def test_top_p_keeps_the_likeliest_that_reach_it(top_p, kept):
    expected = np.where(np.arange(4) < kept, P.numpy(), 0)
    assert np.allclose(drawn(Sampling(1.0, top_p, seed=3)), expected / expected.sum(), atol=0.03)


def test_top_p_of_nothing_takes_the_likeliest():
    assert drawn(Sampling(1.0, 0.0), 50).tolist() == [1, 0, 0, 0]


def test_a_seed_repeats_and_choices_have_their_own_randomness():
    def first(choice):
        generator = Sampling(seed=5).generator(choice)
        return [choose(P.log(), Sampling(seed=5), generator) for _ in range(20)]

    assert first(0) == first(0)
    assert first(0) != first(1)


def test_alternatives_are_the_likeliest():
    found = alternatives(torch.stack([P.log(), P.flip(0).log()]), 2)
    assert [each.ids for each in found] == [[0, 1], [3, 2]]
    assert np.allclose(found[0].logps, np.log([0.5, 0.3]))
    assert len(alternatives(P.log()[None], 9)[0].ids) == 4
