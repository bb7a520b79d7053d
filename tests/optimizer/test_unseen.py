"""Bits per byte and perplexity with standard errors, against their definitions."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nearlm.knnlm import ScoredText
from nearlm.optimizer.unseen import Unseen


def scored(documents: int = 12, each: int = 50, gain: float = 0.3, seed: int = 0):
    rng = np.random.default_rng(seed)
    log_lm = -rng.exponential(2.0, documents * each)
    logp = log_lm + gain + rng.normal(0, 0.5, len(log_lm))
    text = SimpleNamespace(documents=np.repeat(np.arange(documents), each))
    found = SimpleNamespace(tokens=len(logp), bytes=4 * len(logp), microseconds=40.0, lm_share=0.5, seconds=2.4)
    return text, ScoredText(found, logp, log_lm)


def test_numbers_follow_their_definitions():
    text, one = scored()
    unseen = Unseen.of(text, one)
    assert unseen.memory.perplexity == pytest.approx(math.exp(-one.logp.mean()))
    assert unseen.alone.bits_per_byte == pytest.approx(-one.log_lm.sum() / math.log(2) / unseen.bytes)
    assert unseen.saved == pytest.approx(1 - unseen.memory.bits_per_byte / unseen.alone.bits_per_byte)
    means = one.logp.reshape(12, 50).mean(1)
    assert unseen.memory.perplexity_error / unseen.memory.perplexity == pytest.approx(means.std() / math.sqrt(12))
    assert unseen.lm_microseconds == pytest.approx(2000) and unseen.overhead == pytest.approx(0.02)
    assert unseen.documents == 12 and unseen.helps


def test_the_error_of_what_is_saved_is_that_of_many_samples():
    found = [Unseen.of(*scored(seed=seed)) for seed in range(200)]
    spread = np.std([one.saved for one in found])
    assert np.mean([one.saved_error for one in found]) == pytest.approx(spread, rel=0.25)


def test_a_verdict_needs_two_standard_errors():
    unseen = Unseen.of(*scored())
    assert replace(unseen, saved=-unseen.saved).helps is False
    assert replace(unseen, saved_error=unseen.saved).helps is None
    assert "chance" in "".join(replace(unseen, saved_error=unseen.saved).lines())


def test_one_document_is_not_several():
    assert "12 unseen documents (" in Unseen.of(*scored()).lines()[0]
    assert "1 unseen document (" in Unseen.of(*scored(documents=1)).lines()[0]
