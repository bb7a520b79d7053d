"""What passes take is measured once for each model and memory, and kept; the numbers themselves are no test."""

import json

import numpy as np
import pytest

from nearlm.base import files
from nearlm.knnlm import pass_costs as module
from nearlm.knnlm.pass_costs import PassCosts, describe, pass_costs
from nearlm.model.lm import LM
from tiny import make_llama


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))


@pytest.fixture
def measured(monkeypatch):
    """How often was measured; once is enough, and only a little."""
    counted, real = [], module.measure
    monkeypatch.setattr(module, "_ENOUGH", 0.0)

    def measure(*arguments):
        counted.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(module, "measure", measure)
    return counted


def test_costs_between_and_beyond_those_measured_rise():
    costs = PassCosts((1, 2, 4, 8), (5.0, 4.0, 7.0, 9.0))
    assert costs.by_tokens(4).tolist() == [5.0, 5.0, 6.0, 7.0]
    assert costs.by_tokens(20).tolist()[4:] == [7.5, 8.0, 8.5, 9.0], "no further than was measured"


def test_a_model_is_measured_once(knnlm, measured, tmp_path):
    first = pass_costs(knnlm.lm, knnlm.memory)
    assert first == pass_costs(knnlm.lm, knnlm.memory) and len(measured) == 1
    assert first.sizes[0] == 1 and np.isfinite(first.seconds).all() and min(first.seconds) > 0
    pass_costs(knnlm.lm, None)
    assert len(measured) == 2, "without the memory a pass takes less"
    batches = pass_costs(knnlm.lm, None, rows=3)
    assert len(measured) == 3 and batches.sizes[-1] > first.sizes[-1], "batches have passes over more tokens"
    assert len(list((tmp_path / "passes").glob("*.json"))) == 3


def test_another_dtype_or_kind_of_layer_is_measured_anew(tokenizer):
    model = make_llama()
    plain = describe(LM(model, tokenizer), None)
    assert plain == describe(LM(make_llama(seed=1), tokenizer), None)
    assert plain != describe(LM(make_llama().double(), tokenizer), None)
    model.lm_head.__class__ = type("Packed", (type(model.lm_head),), {})
    assert plain != describe(LM(model, tokenizer), None)


def test_what_cannot_be_read_or_kept_is_measured_again(knnlm, measured, tmp_path, monkeypatch):
    pass_costs(knnlm.lm, None)
    kept = next((tmp_path / "passes").glob("*.json"))
    kept.write_text(json.dumps({"sizes": "x"}))
    pass_costs(knnlm.lm, None)
    assert len(measured) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NEARLM_CACHE", str(blocked))
    assert pass_costs(knnlm.lm, None).sizes and len(measured) == 3


NAN = float("nan")


@pytest.mark.parametrize(
    "wrong", [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1,), (NAN,)), ((1,), (-1.0,)), ((0,), (1.0,))]
)
def test_what_was_kept_and_cannot_be_is_measured_again(knnlm, measured, tmp_path, wrong):
    pass_costs(knnlm.lm, None)
    (path,) = (tmp_path / "passes").glob("*.json")
    files.write_stamped(path, {"sizes": list(wrong[0]), "seconds": list(wrong[1])})
    assert len(pass_costs(knnlm.lm, None).by_tokens(6)) == 6 and len(measured) == 2
