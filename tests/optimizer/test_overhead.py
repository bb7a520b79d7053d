"""The best memory within an overhead: chosen among all that was measured, ready to use, and never worse in silence."""

import json

import pytest

from calls import evaluate, load_knnlm
from nearlm.base import from_json, to_json
from nearlm.base.errors import OptionError, StoreError
from nearlm.optimizer import overhead as choosing
from nearlm.optimizer.optimization import optimize
from nearlm.optimizer.points import Choice
from nearlm.store import Datastore

pytestmark = pytest.mark.usefixtures("quick_timing")


@pytest.fixture
def few(monkeypatch, small):
    """Try fewer things."""
    monkeypatch.setattr(choosing, "NPROBES", (8,))
    monkeypatch.setattr(choosing, "KS", (64,))
    monkeypatch.setattr(choosing, "KEEPS", (0.7,))
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 5)


def test_the_best_within_the_limit_is_made_and_used_without_flags(store, lm, texts, tmp_path, few):
    valid, out = str(texts / "valid"), tmp_path / "best"
    choice = optimize(store, valid, out, lm, overhead=1e6)
    chosen = choice.winner
    assert choice.limit > max(one.microseconds for one in choice.points)
    assert chosen.perplexity == min(one.perplexity for one in (choice.vanilla, *choice.points))
    labels = " | ".join(one.label for one in choice.points)
    assert "no search" in labels and "one λ" in labels and "skip 40%" in labels and "keep 70%" in labels
    assert len(Datastore.open(out)) == chosen.setup.records and not out.with_name("best.optimize").exists()
    ready = load_knnlm(out, lm)
    search = chosen.setup.search
    assert (ready.memory.mixture is not None) == (search.mixture == "default")
    assert (ready.gate is not None) == (search.gate is not None)
    assert evaluate(ready, valid).perplexity < 1.2 * chosen.perplexity
    assert optimize(store, valid, out, lm, overhead=1e6) == choice
    assert from_json(Choice, json.loads(json.dumps(to_json(choice))), "") == choice
    assert "standard errors" in choice.paragraph and f"{chosen.perplexity:.3f}" in choice.paragraph
    with pytest.raises(StoreError, match="another store, model, text or rule"):
        optimize(store, valid, out, lm)


def test_a_tiny_overhead_leaves_the_least_time_and_says_so(store, lm, texts, tmp_path, few):
    choice = optimize(store, str(texts / "valid"), tmp_path / "fast", lm, overhead=1e-9)
    every = [choice.vanilla, *choice.points]
    assert choice.winner.microseconds == min(one.microseconds for one in every)
    assert "Nothing that was measured takes at most" in choice.paragraph
    made = load_knnlm(tmp_path / "fast", lm)
    assert (made.retriever is None) == (choice.winner.label == "no search")
    made.score("the licence grants rights")


def test_a_killed_run_measures_nothing_twice(store, lm, texts, tmp_path, few, monkeypatch):
    valid, out = str(texts / "valid"), tmp_path / "best"

    def killed(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(choosing.Mixture, "train", killed)
        patched.setattr(choosing.Gate, "train", killed)
        optimize(store, valid, out, lm, overhead=1e6)
    monkeypatch.setattr(choosing, "_searched", lambda *given: pytest.fail("measured again"))
    choice = optimize(store, valid, out, lm, overhead=1e6)
    assert len(Datastore.open(out)) == choice.winner.setup.records


def test_rules_that_make_no_sense_are_refused(store, lm, texts, tmp_path):
    for wrong in ({"overhead": 0}, {"overhead": float("nan")}, {"overhead": 0.1, "budget": 0.1}):
        with pytest.raises(OptionError, match="overhead"):
            optimize(store, str(texts / "valid"), tmp_path / "no", lm, **wrong)
