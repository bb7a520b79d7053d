"""From a validation text to a gate: the verdict on what was held out, warnings, going on after a kill."""

import numpy as np
import pytest
from examples import DOCUMENTS, QUICK, Heard, made_up_examples

from nearlm.base.errors import StoreError
from nearlm.mixing import gate_learning
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate import Gate
from nearlm.mixing.gate_network import (
    PAPER_FEATURES,
    GateNetwork,
    Inputs,
)
from nearlm.mixing.gate_training import (
    Split,
    Training,
    split_rows,
    standard_error,
    thresholds_of,
    train_network,
)
from nearlm.mixing.trained import trace_for, tuned_settings
from nearlm.search.retriever import Retriever
from tiny import make_text


def test_the_curve_goes_from_the_mixture_to_the_lm():
    examples = made_up_examples()
    scores = examples.keys[:, 0].astype(np.float64)
    pruned = [
        mix(examples.log_lm, examples.log_knn, np.where(scores >= cut, 0.4, 0.0)) for cut in thresholds_of(scores)
    ]
    found = [perplexity(logp) for logp in pruned]
    mixed = mix(examples.log_lm, examples.log_knn, 0.4)
    assert found[0] == perplexity(mixed) and found[-1] == perplexity(examples.log_lm)
    kept = np.argsort(scores)[len(scores) // 2 :]
    half = examples.log_lm.copy()
    half[kept] = mixed[kept]
    assert found[50] == pytest.approx(perplexity(half), rel=1e-12)


def test_the_errors_of_the_curve_are_those_of_its_differences():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    network = train_network(Inputs(12, PAPER_FEATURES), examples, split, 0.05, QUICK).network
    found = gate_learning.judge(network, examples, split, "likelihood", 0.4)
    held, held_out = examples[split.held], found.held_out
    difference = held.log_lm - mix(held.log_lm, held.log_knn, found.lam)
    assert held_out.errors[-1] == pytest.approx(standard_error(difference, DOCUMENTS[split.held]), rel=1e-12)
    assert held_out.gain_error > 0 and held_out.errors[0] == pytest.approx(held_out.gain_error, rel=1e-9)


def test_learned_weights_are_used_only_if_they_are_better():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    shape = Inputs(12, PAPER_FEATURES)
    good = gate_learning.judge(
        train_network(shape, examples, split, 0.05, QUICK).network, examples, split, "likelihood", 0.4
    )
    assert good.weight == "learned" and good.held_out.curve[0] < good.held_out.constant
    assert gate_learning.judge(GateNetwork(shape), examples, split, "likelihood", 0.4).weight == "constant"
    classified = train_network(shape, examples, split, 0.05, Training("classify", epochs=3, batch=64)).network
    found = gate_learning.judge(classified, examples, split, "classify", 0.4)
    assert found.weight == "constant" and found.held_out.curve[50] < 0.97 * found.held_out.random[50]
    assert found.held_out.curve[0] == pytest.approx(found.held_out.constant)


def test_a_gain_on_few_held_out_tokens_is_not_trusted():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    network = train_network(Inputs(12, PAPER_FEATURES), examples, split, 0.05, QUICK).network
    few = Split(split.train, split.held[:499], split.documents[:499], "documents")
    found = gate_learning.judge(network, examples, few, "likelihood", 0.123)
    assert found.weight == "constant" and found.lam == 0.123
    assert gate_learning.judge(network, examples, split, "likelihood", 0.123).lam != 0.123


def test_the_share_skipped_on_the_held_out_part_is_what_was_asked_for(lm, tuned_store, valid_folder, gate):
    from nearlm.mixing.traces import cache_text

    reading = tuned_store.reading()
    text = cache_text(valid_folder, lm.tokenizer, reading)
    trace = trace_for(lm, Retriever(tuned_store, nprobe=8), text, reading, gate.settings, Heard())
    held = split_rows(text.documents, 0).held
    known = trace.lm.known()[held]
    for skip in (0.05, 0.333, 0.5, 0.95):
        lam = gate.at(skip).weights(trace.lm.keys[held], known)
        assert np.mean(lam == 0) == pytest.approx(skip, abs=0.01)


def test_a_tiny_text_warns_and_the_weight_stays_constant(lm, tuned_store, tmp_path):
    (tmp_path / "tiny.txt").write_text(make_text(60, seed=3))
    heard = Heard()
    made = Gate.train(tuned_store, str(tmp_path / "tiny.txt"), lm, name="tiny", training=QUICK, reporter=heard)
    said = "\n".join(heard.lines)
    assert "few to learn from" in said and "two blocks" in said
    assert not made.learned and "λ stays as tuned" in said
    assert made.lam == tuned_settings(tuned_store, "default").lam and made.at("auto", 100).skip == 0
    held = made.info.held_out
    assert held.curve[0] == pytest.approx(held.constant, rel=1e-12)


def test_auto_tries_the_papers_coefficients_and_goes_on_after_a_kill(lm, tuned_store, valid_folder, monkeypatch):
    real, tried = gate_learning.train_network, []

    def killed(shape, examples, split, a, *rest):
        tried.append(a)
        if len(tried) == 4:
            raise KeyboardInterrupt
        return real(shape, examples, split, a, *rest)

    options = {"name": "auto", "training": Training(l1="auto", epochs=1)}
    monkeypatch.setattr(gate_learning, "train_network", killed)
    with pytest.raises(KeyboardInterrupt):
        Gate.train(tuned_store, valid_folder, lm, **options)
    with pytest.raises(StoreError, match="no gate"):
        Gate.load(tuned_store, "auto")
    made = Gate.train(tuned_store, valid_folder, lm, **options)
    assert tried == [0.01, 0.05, 0.1, 0.2, 0.2, 0.5, 1.0]
    found = made.info.tried
    assert made.info.training.l1 == float(min(found, key=found.get)) and len(found) == 6
    monkeypatch.setattr(gate_learning, "train_network", real)
    whole = Gate.train(tuned_store, valid_folder, lm, **{**options, "name": "whole"})
    assert whole.info.files == made.info.files
