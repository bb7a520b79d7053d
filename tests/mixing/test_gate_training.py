"""Training: thresholds, what is held out, errors, and what is found."""

import numpy as np
import pytest
from examples import DOCUMENTS, QUICK, made_up_examples

from nearlm.base.errors import OptionError
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate_network import (
    PAPER_FEATURES,
    Inputs,
)
from nearlm.mixing.gate_training import (
    SHARES,
    Training,
    best_constant,
    half_perplexity,
    split_rows,
    standard_error,
    thresholds_of,
    train_network,
)


def test_thresholds_remove_the_share_that_was_asked_for():
    scores = np.random.default_rng(0).normal(size=3001)
    cuts = thresholds_of(scores)
    for share, cut in zip(SHARES, cuts, strict=True):
        assert np.mean(scores < cut) == pytest.approx(share, abs=0.001)
    assert (scores >= cuts[0]).all() and not (scores >= cuts[-1]).any()


def test_whole_documents_are_held_out_or_blocks_of_a_text_with_few():
    split = split_rows(DOCUMENTS, 0)
    assert split.unit == "documents" and 0.075 <= len(split.held) / 6000 <= 0.125
    assert not set(DOCUMENTS[split.train]) & set(DOCUMENTS[split.held])
    few = split_rows(np.repeat([0, 1], [500, 700]), 0)
    assert few.unit == "blocks" and 0.09 <= len(few.held) / 1200 <= 0.11
    assert np.sum(np.diff(few.held) > 1) == 1  # two blocks
    for one in (split, few):
        np.testing.assert_array_equal(
            np.sort(np.concatenate([one.train, one.held])), np.arange(len(one.train) + len(one.held))
        )
    assert split_rows(DOCUMENTS, 1).held.tolist() != split.held.tolist()
    with pytest.raises(OptionError, match="too few"):
        split_rows(np.zeros(1, np.int64), 0)


def test_an_error_is_that_of_documents_not_of_tokens():
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(40), rng.integers(1, 60, 40))
    values = rng.normal(size=40)[documents] + 0.1 * rng.normal(size=len(documents))
    away = values - values.mean()
    sums = [away[documents == one].sum() for one in range(40)]
    found = standard_error(values, documents)
    assert found == pytest.approx(np.sqrt(np.square(sums).sum()) / len(values), rel=1e-12)
    assert found > 3 * values.std() / np.sqrt(len(values))
    alone = standard_error(values, np.arange(len(values)))
    assert alone == pytest.approx(values.std() / np.sqrt(len(values)), rel=1e-12)
    blocks = np.arange(len(values)) * 10 // len(values)
    assert standard_error(values, np.zeros(len(values), int)) == standard_error(values, blocks)


def test_training_finds_what_there_is_to_find_and_the_seed_decides():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    shape = Inputs(12, PAPER_FEATURES)
    trained = train_network(shape, examples, split, 0.05, QUICK)
    test = made_up_examples(seed=7)
    lam = np.exp(trained.network.log_weights(test.keys, test.scalars)[:, 0])
    constant = best_constant(test.log_lm, test.log_knn)
    assert perplexity(mix(test.log_lm, test.log_knn, lam)) < 0.9 * perplexity(mix(test.log_lm, test.log_knn, constant))
    asked = lam >= np.median(lam)
    assert np.isinf(test.log_knn[~asked]).mean() > 0.9
    again = train_network(shape, examples, split, 0.05, QUICK)
    other = train_network(shape, examples, split, 0.05, Training(epochs=3, batch=64, seed=1))
    same = [again.network.log_weights(test.keys, test.scalars), other.network.log_weights(test.keys, test.scalars)]
    assert np.array_equal(np.exp(same[0][:, 0]), lam) and not np.array_equal(np.exp(same[1][:, 0]), lam)


def test_a_larger_coefficient_makes_smaller_weights():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    means = []
    for a in (0.0, 1.0):
        network = train_network(Inputs(12, PAPER_FEATURES), examples, split, a, QUICK).network
        means.append(np.exp(network.log_weights(examples.keys, examples.scalars)[:, 0]).mean())
    assert means[1] < 0.8 * means[0]


def test_the_checkpoint_is_chosen_where_the_lower_half_does_not_ask():
    examples, scores = made_up_examples(), np.random.default_rng(3).normal(size=6000)
    p_lm, p_knn, lam = np.exp(examples.log_lm), np.exp(examples.log_knn), 0.3
    p = p_lm.copy()
    kept = np.argsort(scores)[3000:]
    p[kept] = (lam * p_knn + (1 - lam) * p_lm)[kept]
    found = half_perplexity(examples.log_lm, examples.log_knn, lam, scores)
    assert found == pytest.approx(np.exp(-np.log(p).mean()), rel=1e-12)
