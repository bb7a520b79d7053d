"""A store to optimize, at a size that takes no time."""

import pytest
from fits import write_texts

from calls import build
from nearlm.optimizer import continuations, trials
from nearlm.optimizer import optimization as optimizing
from nearlm.optimizer.fit_plan import Ways


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("optimize"), 304, 15)


@pytest.fixture(scope="module")
def store(texts, lm):
    return build(lm, str(texts / "train.txt"), texts / "store", window=64, quiet=True)


@pytest.fixture
def small(monkeypatch, quick_paper_index):
    """Try fewer and smaller things."""
    monkeypatch.setattr(optimizing, "SMALL_DIMS", (8, 4))
    monkeypatch.setattr(optimizing, "SMALL_KEEPS", (0.7, 0.001))
    monkeypatch.setattr(trials, "NEIGHBORS_TRIED", (1024, 64))
    monkeypatch.setattr(trials, "TRUSTED_TOKENS", 10)


@pytest.fixture
def few_ways(monkeypatch, quick_timing):
    """Let `fit` try one way to search, learn for two epochs, and write five tokens."""
    monkeypatch.setattr("nearlm.optimizer.fit_plan.WAYS", (Ways((8,), (64,)),))
    monkeypatch.setattr("nearlm.optimizer.overhead.SKIPPED", (0.5,))
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)
    monkeypatch.setattr("nearlm.optimizer.continuations._NEW_TOKENS", 5)
    monkeypatch.setitem(continuations.WRITING, "max_new_tokens", 5)
