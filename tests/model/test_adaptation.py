"""Adapting an LM: losses, the rate that is chosen, early stopping, resuming to the same weights, plans, adapters."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from nearlm.base.errors import MissingExtraError, ModelError, OptionError
from nearlm.model import ModelSpec
from nearlm.model.adaptation import (
    FULL,
    LORA,
    Adaptation,
    AdaptOptions,
    AdaptPace,
    AdaptPlan,
    check_adaptable,
    save_adapter,
)
from nearlm.model.lm import LM
from nearlm.text import Framing, Reading, TextSource, read_text
from tiny import make_llama, make_text, make_tokenizer

pytest.importorskip("peft")
PLAN = AdaptPlan(trial=2, steps=8, every=3, judged=4)
STRONG = AdaptOptions(rank=4, rates=(1e-3, 3e-2), batch=2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    tokenizer = make_tokenizer()
    reading = Reading(Framing.of(tokenizer, "eos"), 64, 64)

    def read(first, count):
        source = TextSource.from_strings(*(make_text(70, seed=first + number) for number in range(count)))
        return read_text(source, tokenizer, reading, tmp_path_factory.mktemp("text"))

    return read(0, 8), read(100, 3)


def weights(adaptation):
    return {name: weight.detach().clone() for name, weight in adaptation.weights.items()}


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_loss_is_that_of_every_target(texts):
    _, valid = texts
    model = make_llama()
    total = []
    for start, inputs in zip(valid.windows.start, valid.windows.inputs, strict=True):
        ids = torch.from_numpy(np.asarray(valid.tokens[start : start + inputs + 1], np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None, :-1]).logits[0]
        total += functional.cross_entropy(logits, ids[1:], reduction="none").tolist()
    adaptation = Adaptation(make_llama(), *texts)
    assert adaptation.judge(len(valid.windows)) == pytest.approx(np.mean(total), rel=1e-5)
    assert len(total) == len(valid.targets)


@pytest.mark.parametrize("options", [STRONG, AdaptOptions(rank=None, rates=(1e-4, 1e-2))], ids=["lora", "full"])
def test_the_best_rate_goes_on_and_the_best_weights_stay(texts, options):
    adaptation = Adaptation(make_llama(), *texts, options)
    found = adaptation.run(PLAN)
    assert found.rate == max(options.rates) == float(min(found.trials, key=found.trials.get))
    assert found.loss < min(found.trials.values()) < found.first_loss and found.steps <= PLAN.steps
    assert adaptation.judge(PLAN.judged) == pytest.approx(found.loss, rel=1e-5)
    assert found.tokens == sum(
        int(texts[0].windows.targets[adaptation._rows(step)].sum()) for step in range(found.steps)
    )


def test_weights_that_do_harm_are_not_taken(texts):
    """A rate far too high makes the held-out text worse: the model stays as it was, and the training ends early."""
    adaptation = Adaptation(make_llama(), *texts, AdaptOptions(rank=None, rates=(30.0,)))
    before = weights(adaptation)
    try:
        found = adaptation.run(AdaptPlan(trial=1, steps=40, every=1, judged=4))
    except ModelError as error:
        pytest.fail(f"expected no refusal: {error}")
    assert found.loss == found.first_loss and found.steps == 3
    assert same(weights(adaptation), before)


def test_a_killed_training_resumes_to_the_same_weights(texts, tmp_path, monkeypatch):
    whole = Adaptation(make_llama(), *texts, STRONG)
    want = whole.run(PLAN)
    for kill in (2, 4, 7, 9):  # in both trials, and in what follows
        calls = []
        step = Adaptation._step

        def killed(self, number, rate, calls=calls, kill=kill, step=step):
            calls.append(number)
            if len(calls) == kill:
                raise KeyboardInterrupt
            step(self, number, rate)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Adaptation, "_step", killed)
            Adaptation(make_llama(), *texts, STRONG).run(PLAN, tmp_path / str(kill))
        again = Adaptation(make_llama(), *texts, STRONG)
        assert again.run(PLAN, tmp_path / str(kill)) == want
        assert same(weights(again), weights(whole))


def test_measuring_leaves_the_weights_as_they_were(texts):
    adaptation = Adaptation(make_llama(), *texts, STRONG)
    before = weights(adaptation)
    pace = adaptation.measure()
    assert pace.step > 0 and pace.window > 0 and same(weights(adaptation), before)
    assert adaptation.run(PLAN) == Adaptation(make_llama(), *texts, STRONG).run(PLAN)


@pytest.mark.parametrize("seconds", [1.0, 120.0, 1920.0])
def test_a_plan_takes_the_time_and_hardly_more(seconds):
    pace = AdaptPace(step=4.0, window=1.0)
    plan = pace.plan(seconds, LORA, 50)
    trials = len(LORA.rates) - 1
    judgements = (len(LORA.rates) + 1 + -(-(plan.steps - plan.trial) // plan.every)) * plan.judged * pace.window
    taken = (plan.steps + trials * plan.trial) * pace.step + judgements
    if seconds > 60:
        assert 0.75 * seconds < taken < 1.02 * seconds
    assert plan.steps >= plan.trial >= 1 and plan.judged >= 1
    assert pace.plan(seconds, AdaptOptions(rates=(1e-3,)), 50).trial == 0


def test_every_window_is_trained_on_once_before_any_is_again(texts):
    adaptation = Adaptation(make_llama(), *texts, STRONG)
    count = len(texts[0].windows)
    rows = np.concatenate([adaptation._rows(step) for step in range(count)])
    assert sorted(rows[:count].tolist()) == sorted(rows[count : 2 * count].tolist()) == list(range(count))
    assert rows[:count].tolist() != rows[count : 2 * count].tolist()


def test_a_saved_adapter_gives_the_trained_model_and_names_no_folder(texts, model_folder, tmp_path):
    from nearlm.model.pretrained import load_pretrained

    spec = ModelSpec(str(model_folder))
    model, _ = load_pretrained(spec)
    adaptation = Adaptation(model, *texts, STRONG)
    adaptation.run(PLAN)
    save_adapter(adaptation.model, spec, tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert str(model_folder.parent) not in (tmp_path / "adapter" / "adapter_config.json").read_text()
    lm = LM.load(ModelSpec(str(model_folder), adapter=str(tmp_path / "adapter")))
    ids = torch.arange(2, 40)[None]
    with torch.no_grad():
        want = adaptation.model.eval()(input_ids=ids).logits
        torch.testing.assert_close(lm.model(input_ids=ids).logits, want, atol=1e-4, rtol=1e-4)
        assert (LM.load(spec).model(input_ids=ids).logits - want).abs().max() > 0.01


def test_nonsense_is_refused(monkeypatch, texts):
    for options in ({"rank": 0}, {"batch": 0}, {"rates": ()}, {"rates": (0.0,)}, {"rates": (float("nan"),)}):
        with pytest.raises(OptionError):
            AdaptOptions(**options)
    with pytest.raises(OptionError, match="`quantization='8bit'` cannot be trained on"):
        check_adaptable(ModelSpec("m", quantization="8bit"))
    check_adaptable(ModelSpec("m"))
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"nearlm\[peft\]"):
        check_adaptable(ModelSpec("m"))
    Adaptation(make_llama(), *texts, FULL)  # needs no peft
