"""Which memory `fit` takes: the best that is fast enough, or the fastest that is good enough; and after an append."""

from types import SimpleNamespace

import numpy as np
import pytest

from calls import build, build_index, load_knnlm
from nearlm.mixing import learn_all
from nearlm.optimizer.fit_choice import TUNED_TOKENS, _pick, bring_up_to_date, say_tried
from nearlm.optimizer.fit_plan import WAYS
from nearlm.optimizer.optimization import Rule
from nearlm.optimizer.overhead import Measured
from nearlm.optimizer.points import Point, Setup
from nearlm.store.datastore import Datastore


def measured(label, perplexity, microseconds):
    return Measured(Point(label, Setup.without_search("x", 1), 1.0, perplexity, microseconds), np.zeros(3))


FOUND = [measured("good", 8.0, 50.0), measured("fast", 9.0, 10.0), measured("middle", 8.5, 20.0)]


@pytest.mark.parametrize(("limit", "label"), [(100, "good"), (30, "middle"), (10, "fast"), (1, "fast")])
def test_within_an_overhead_the_best_is_taken_or_else_the_fastest(limit, label):
    best, notes = _pick(None, FOUND, Rule(0.02, None), limit)
    assert best.point.label == label and bool(notes) == (limit == 1)


@pytest.mark.parametrize(
    ("tokens", "said"), [(0, "nothing"), (TUNED_TOKENS - 1, "one λ"), (TUNED_TOKENS, f"{WAYS[0].count - 1} ways")]
)
def test_what_will_be_tried_depends_on_what_there_is_to_tune_on(tokens, said):
    assert say_tried(tokens, WAYS[0]).startswith(said)


@pytest.mark.parametrize(("budget", "label", "said"), [(1.1, "fast", 0), (0.6, "middle", 0), (0.01, "good", 1)])
def test_within_a_budget_the_fastest_is_taken_or_else_the_best(tmp_path, budget, label, said):
    layout = SimpleNamespace(index=lambda name: SimpleNamespace(folder=tmp_path / name))
    trials = SimpleNamespace(
        vanilla=lambda: SimpleNamespace(perplexity=8.0), margin=lambda logp: 0.05, store=SimpleNamespace(layout=layout)
    )
    best, notes = _pick(trials, FOUND, Rule(None, budget), 0.0)
    assert best.point.label == label and len(notes) == said


def test_mixture_and_gate_work_on_after_an_append(lm, texts, tmp_path):
    build(lm, str(texts / "train.txt"), tmp_path / "store", window=64, quiet=True)
    build_index(tmp_path / "store", quiet=True)
    learned = learn_all(tmp_path / "store", str(texts / "valid"), lm)
    build(lm, str(texts / "valid"), tmp_path / "store", append=True, quiet=True)
    store = Datastore.open(tmp_path / "store")
    bring_up_to_date(store, SimpleNamespace(say=lambda line: None, bar=None, quiet=True) and _quiet())
    knnlm = load_knnlm(store, lm, mixture="default", gate="none")
    assert knnlm.memory.mixture.hash == learned.mixture.hash
    assert knnlm.retriever.info.records == len(store)
    assert load_knnlm(store, lm, gate="default", skip=0.5).gate is not None


def _quiet():
    from nearlm.base import QUIET

    return QUIET
