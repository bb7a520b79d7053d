"""What sources and features are worth, against mixtures that are trained and evaluated as users do; after a kill."""

import itertools

import numpy as np
import pytest

from calls import build, build_index, evaluate, load_knnlm, tune
from nearlm.base import from_json, to_json
from nearlm.mixing import SOURCES, Mixture, feature_groups, mixture_examples, perplexity, split_rows, trace_text
from nearlm.mixing.mixture_training import Searched, train_mixture
from nearlm.optimizer import Bench
from nearlm.paper import mixture_ablation as ablating
from nearlm.paper.mixture_ablation import TEST, UNRELATED, VALID, ablate_mixture
from nearlm.search import Retriever, read_settings
from tiny import make_text

pytestmark = pytest.mark.usefixtures("quick")
ALL = ("knn", "ngram", "text")


@pytest.fixture(scope="module")
def quick():
    """Train and time no longer than one must."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearlm.mixing.mixture_training._EPOCHS", 3)
        patch.setattr("nearlm.optimizer.bench._SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    for part, count, first in (("train", 2, 0), ("valid", 11, 100), ("test", 2, 200), ("unrelated", 2, 300)):
        (folder / part).mkdir()
        for number in range(count):
            (folder / part / f"{number}.txt").write_text(make_text(60, seed=first + number))
    return folder


@pytest.fixture(scope="module")
def store(texts, model_folder, lm):
    made = build(str(model_folder), str(texts / "train"), texts / "store", window=64, quiet=True)
    build_index(made, "flat", quiet=True)
    tune(lm, Retriever(made), str(texts / "valid"))
    return made


@pytest.fixture(scope="module")
def benches(lm, store, texts):
    return {name: Bench(store, trace_text(lm, store, str(texts / name))) for name in (VALID, TEST, UNRELATED)}


@pytest.fixture(scope="module")
def found(quick, benches, store, tmp_path_factory):
    return ablate_mixture(benches, Retriever(store), tmp_path_factory.mktemp("notes"), seeds=1)


def test_every_set_of_sources_is_what_evaluation_says_of_it(found, lm, store, texts):
    sets = [chosen for count in (1, 2, 3) for chosen in itertools.combinations(ALL, count)]
    assert [row.sources for row in found.sources] == sets and found.whole.sources == ALL
    for row in found.sources[::3]:
        name = "-".join(row.sources)
        made = Mixture.train(store, str(texts / "valid"), lm, sources=",".join(row.sources), name=name, samples=0)
        assert row.perplexity.held_out == pytest.approx(made.info.searched, rel=1e-5)
        for text, value in ((TEST, row.perplexity.test), (UNRELATED, row.perplexity.unrelated)):
            evaluated = evaluate(load_knnlm(store, lm, mixture=name), str(texts / text))
            assert value == pytest.approx(evaluated.perplexity, rel=1e-4), row.sources
        assert row.microseconds > 0 and row.spread == 0
    alone = evaluate(load_knnlm(store, lm, mixture="none"), str(texts / "test"))
    assert found.nlm.test == found.constant.without_search == pytest.approx(alone.nlm_perplexity, rel=1e-5)
    assert found.constant.test == pytest.approx(alone.perplexity, rel=1e-5)
    assert found.sources[0].perplexity.without_search == pytest.approx(found.nlm.test)  # only the LM is left


def test_a_group_of_features_that_is_left_out_is_all_zeros(found, benches, store):
    assert [row.left_out for row in found.features] == list(feature_groups(ALL))
    split = split_rows(benches[VALID].documents, 0)
    infinigram = ablating.build_infinigram(store)
    for row in found.features[1:3]:
        examples = {}
        for name in (VALID, TEST):
            searched = Searched(benches[name].trace(Retriever(store)), read_settings(store, "default"))
            made = mixture_examples(benches[name].traced, ALL, infinigram, searched)
            made.features[:, feature_groups(ALL)[row.left_out]] = 0
            examples[name] = made
        network = train_mixture(examples[VALID], split, 0)
        assert row.perplexity.test == pytest.approx(perplexity(examples[TEST].log_mixture(network)), rel=1e-6)
        assert row.microseconds is None and row.perplexity != found.whole.perplexity
        assert found.worse(row) == pytest.approx(row.perplexity.test / found.whole.perplexity.test - 1)


def test_rows_are_means_over_seeds(benches, store, tmp_path, monkeypatch):
    monkeypatch.setattr(ablating, "_SETS", [ALL])
    monkeypatch.setattr(ablating, "_GROUPS", {})
    related = {name: bench for name, bench in benches.items() if name != UNRELATED}
    both = ablate_mixture(related, Retriever(store), tmp_path, seeds=2).whole
    real = ablating.train_mixture
    single = []
    for seed in (0, 1):
        monkeypatch.setattr(ablating, "train_mixture", lambda *given, seed=seed: real(*given[:2], seed))
        single.append(ablate_mixture(related, Retriever(store), tmp_path, seeds=1).whole.perplexity.test)
    assert both.perplexity.test == pytest.approx(np.mean(single)) and both.spread == pytest.approx(np.ptp(single))
    assert both.perplexity.unrelated is None


def test_what_is_told_of_it(found):
    assert list(found.without_source) == ["text so far", "∞-gram", "neighbours"]
    assert all(set(SOURCES) - set(row.sources) for row in found.without_source.values())
    told = found.table()
    for words in ("LM alone", "one λ", "neighbours, ∞-gram, text so far", "without largest probabilities"):
        assert words in told
    assert from_json(ablating.MixtureAblation, to_json(found), "found") == found


def test_rows_outlast_a_kill(benches, store, tmp_path, monkeypatch):
    real, trained = ablating.train_mixture, []

    def killed(examples, *given):
        if len(trained) == 4:
            raise KeyboardInterrupt
        trained.append(examples.sources)
        return real(examples, *given)

    monkeypatch.setattr(ablating, "train_mixture", killed)
    with pytest.raises(KeyboardInterrupt):
        ablate_mixture(benches, Retriever(store), tmp_path, seeds=1)
    monkeypatch.setattr(ablating, "train_mixture", lambda *given: trained.append(given[0].sources) or real(*given))
    found = ablate_mixture(benches, Retriever(store), tmp_path, seeds=1)
    assert trained == [row.sources for row in (*found.sources, *found.features)]
    assert not list(tmp_path.iterdir())
