"""The adaptor's network, losses, thresholds and training, against the paper's equations."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from calls import build, build_index
from conftest import make_text
from nearlm.base import files
from nearlm.base.errors import OptionError, StoreError
from nearlm.mixing import adapting
from nearlm.mixing.adaptor import Adaptor, adaptor_files, save_adaptor
from nearlm.mixing.adaptor_network import (
    FEATURES,
    PAPER_FEATURES,
    AdaptorNetwork,
    Inputs,
    classification_loss,
    mixture_loss,
    parse_features,
    scalar_columns,
)
from nearlm.mixing.adaptor_training import (
    SHARES,
    Examples,
    Split,
    Training,
    best_constant,
    half_perplexity,
    split_rows,
    standard_error,
    thresholds_of,
    train_network,
)
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.ngrams import Counts
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings

QUICK = Training(epochs=3, batch=64)


def made_up_examples(count=6000, seed=0, dim=12):
    """Tokens whose first key says whether the memory knows them."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, dim)).astype(np.float32)
    knows = keys[:, 0] + 0.3 * rng.normal(size=count) > 0.3
    log_lm = np.log(rng.uniform(0.02, 0.5, count))
    log_knn = np.where(knows, np.log(rng.uniform(0.5, 1.0, count)), -np.inf)
    return Examples(keys, rng.normal(size=(count, 6)).astype(np.float32), log_lm, log_knn)


DOCUMENTS = np.repeat(np.arange(60), 100)


def test_the_network_is_the_papers():
    network = AdaptorNetwork(Inputs(24, PAPER_FEATURES, "none"))
    shapes = [tuple(layer.weight.shape) for layer in network.mlp if isinstance(layer, torch.nn.Linear)]
    assert shapes == [(128, 48)] + [(128, 128)] * 4 + [(2, 128)]
    each = {
        name: [tuple(p.weight.shape) for p in part if hasattr(p, "weight")] for name, part in network.scalar.items()
    }
    assert each == {"conf": [(8, 1), (8, 8)], "ent": [(8, 1), (8, 8)], "fert": [(8, 4), (8, 8)]}
    dropouts = [layer.p for layer in network.mlp if isinstance(layer, torch.nn.Dropout)]
    assert dropouts == [0.2] * 5 and isinstance(network.mlp[-1], torch.nn.LogSoftmax)
    keys, scalars = np.random.default_rng(0).normal(size=(5, 24)), np.ones((5, 6), np.float32)
    weights = network.log_weights(keys, scalars, batch=2)
    np.testing.assert_allclose(np.exp(weights).sum(1), 1, rtol=1e-6)
    x = np.concatenate([keys] + [by_hand(part, scalars[:, a:b]) for part, a, b in zip_scalars(network)], axis=1)
    np.testing.assert_allclose(log_softmax(by_hand(network.mlp[:-1], x)), weights, rtol=1e-4)


def zip_scalars(network):
    return [(network.scalar["conf"], 0, 1), (network.scalar["ent"], 1, 2), (network.scalar["fert"], 2, 6)]


def by_hand(layers, x):
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    for number, layer in enumerate(linear):
        x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        x = x if number == len(linear) - 1 else np.maximum(x, 0)
    return x


def log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


@pytest.mark.parametrize("features", [("keys",), ("conf",), ("freq", "fert"), FEATURES])
def test_every_feature_can_be_left_out(features):
    shape, rng = Inputs(16, features), np.random.default_rng(0)
    counts = Counts(rng.integers(0, 9, (7, 4)), rng.integers(0, 9, (7, 4)))
    conf, ent = rng.uniform(size=7), rng.uniform(size=7)
    scalars = scalar_columns(shape, 7, conf, ent, counts)
    columns = {"conf": conf[:, None], "ent": ent[:, None], "freq": np.log1p(counts[0]), "fert": np.log1p(counts[1])}
    wanted = [columns[name] for name in ("conf", "ent", "freq", "fert") if name in features]
    np.testing.assert_allclose(scalars, np.concatenate([np.empty((7, 0)), *wanted], axis=1), rtol=1e-6)
    network, keys = AdaptorNetwork(shape), rng.normal(size=(7, 16)).astype(np.float32)
    before = network.log_weights(keys, scalars)
    changed = network.log_weights(keys + 1, scalars)
    assert before.shape == (7, 2) and np.allclose(before, changed) == ("keys" not in features)


def test_standardising_takes_away_shift_and_scale():
    rng = np.random.default_rng(0)
    keys, scalars = rng.normal(3, 50, (500, 8)).astype(np.float32), rng.normal(-9, 0.01, (500, 6)).astype(np.float32)
    scalars[:, 2] = 4.0  # a feature that never changes
    for standardise in ("all", "scalars", "none"):
        network = AdaptorNetwork(Inputs(8, PAPER_FEATURES, standardise))
        network.fit(torch.from_numpy(keys), torch.from_numpy(scalars))
        seen = ((torch.from_numpy(keys) - network.key_mean) * network.key_scale).numpy()
        others = ((torch.from_numpy(scalars) - network.mean) * network.scale).numpy()
        assert np.allclose(seen.std(0), 1, atol=1e-2) == (standardise == "all")
        assert np.allclose(others.std(0)[3:], 1, atol=1e-2) == (standardise != "none")
        assert np.isfinite(others).all()


@pytest.mark.parametrize("a", [0.0, 0.05, 1.0])
def test_loss_and_gradient_equal_the_formula_in_float64(a):
    rng = np.random.default_rng(1)
    z = torch.from_numpy(rng.normal(size=(50, 2))).requires_grad_()
    p_knn, p_lm = rng.uniform(size=50), rng.uniform(0.001, 1, 50)
    p_knn[:10] = 0
    with np.errstate(divide="ignore"):
        loss = mixture_loss(z.log_softmax(-1), torch.from_numpy(np.log(p_knn)), torch.from_numpy(np.log(p_lm)), a)
    loss.backward()
    lam = 1 / (1 + np.exp(z.detach().numpy() @ [-1, 1]))
    p = lam * p_knn + (1 - lam) * p_lm
    assert loss.item() == pytest.approx(-np.log(p).mean() + a * lam.mean(), rel=1e-12)
    slope = (a - (p_knn - p_lm) / p) * lam * (1 - lam) / 50
    np.testing.assert_allclose(z.grad.numpy(), np.stack([slope, -slope], 1), rtol=1e-9, atol=1e-15)


def test_classification_asks_whether_the_memory_is_at_least_as_good():
    z = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.5]], dtype=torch.float64)
    log_knn, log_lm = torch.tensor([-1.0, -torch.inf, -2.0]), torch.tensor([-2.0, -2.0, -2.0])
    p = np.exp(2) / (np.exp(2) + 1), np.e / (np.e + 1), 0.5
    found = classification_loss(z.log_softmax(-1), log_knn, log_lm, 0.0)
    assert found.item() == pytest.approx(-np.log(p).mean(), rel=1e-9)


def test_thresholds_remove_the_share_that_was_asked_for():
    scores = np.random.default_rng(0).normal(size=3001)
    cuts = thresholds_of(scores)
    for share, cut in zip(SHARES, cuts, strict=True):
        assert np.mean(scores < cut) == pytest.approx(share, abs=0.001)
    assert (scores >= cuts[0]).all() and not (scores >= cuts[-1]).any()


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


def test_the_errors_of_the_curve_are_those_of_its_differences():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    network = train_network(Inputs(12, PAPER_FEATURES), examples, split, 0.05, QUICK).network
    found = adapting.judge(network, examples, split, "likelihood", 0.4)
    held, held_out = examples[split.held], found.held_out
    difference = held.log_lm - mix(held.log_lm, held.log_knn, found.lam)
    assert held_out.errors[-1] == pytest.approx(standard_error(difference, DOCUMENTS[split.held]), rel=1e-12)
    assert held_out.gain_error > 0 and held_out.errors[0] == pytest.approx(held_out.gain_error, rel=1e-9)


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


def test_learned_weights_are_used_only_if_they_are_better():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    shape = Inputs(12, PAPER_FEATURES)
    good = adapting.judge(
        train_network(shape, examples, split, 0.05, QUICK).network, examples, split, "likelihood", 0.4
    )
    assert good.weight == "learned" and good.held_out.curve[0] < good.held_out.constant
    assert adapting.judge(AdaptorNetwork(shape), examples, split, "likelihood", 0.4).weight == "constant"
    classified = train_network(shape, examples, split, 0.05, Training("classify", epochs=3, batch=64)).network
    found = adapting.judge(classified, examples, split, "classify", 0.4)
    assert found.weight == "constant" and found.held_out.curve[50] < 0.97 * found.held_out.random[50]
    assert found.held_out.curve[0] == pytest.approx(found.held_out.constant)


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("adaptor")
    for number in range(4):
        (folder / f"train{number}.txt").write_text(make_text(200, seed=number))
    made = build(lm, str(folder), folder / "store", window=64, quiet=True)
    build_index(made, "IVF16,Flat", nprobe=8, quiet=True)
    build_index(made, "flat", name="flat", quiet=True)
    settings = {"k": 32, "temperature": 3.0, "lam": 0.3, "nprobe": 8, "distances": "index"}
    files.write_stamped(made.path / "index" / "default" / "settings.json", settings)
    return made


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptor-text")
    for number in range(12):
        (folder / f"valid{number}.txt").write_text(make_text(50 + number, seed=100 + number))
    return str(folder)


@pytest.fixture(scope="module")
def adaptor(lm, store, valid):
    return Adaptor.train(lm, store, valid, replace(QUICK, features="all"))


class Heard:
    """A reporter that remembers what was said."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)

    def bar(self, *_):
        from nearlm.base.progress import Reporter

        return Reporter(quiet=True).bar("", None, "")


def test_an_adaptor_is_kept_whole(lm, store, valid, adaptor):
    again = Adaptor.load(store)
    keys, ones = np.random.default_rng(0).normal(size=(9, 32)), np.ones(9)
    contexts = np.asarray(store.tokens[:36], np.int32).reshape(9, 4)
    np.testing.assert_array_equal(
        again.log_weights(keys, ones, ones, contexts), adaptor.log_weights(keys, ones, ones, contexts)
    )
    text = adaptor_files(store, "default").description.read_text()
    assert str(store.path) not in text and json.loads(text)["settings"]["temperature"] == 3.0
    assert "random" in adaptor.table() and not list(adaptor_files(store, "default").folder.glob("*.job"))


def test_the_share_skipped_on_the_held_out_part_is_what_was_asked_for(lm, store, valid, adaptor):
    from nearlm.mixing.traces import traced_text

    reading = store.reading()
    text = traced_text(valid, lm.tokenizer, reading)
    trace = adapting.traced(lm, Retriever(store, nprobe=8), text, reading, adaptor.settings, Heard())
    held = split_rows(text.documents, 0).held
    from nearlm.mixing.ngrams import last_tokens

    contexts = last_tokens(text.tokens, text.bounds, text.windows.target_positions)[held]
    for skip in (0.05, 0.333, 0.5, 0.95):
        lam = adaptor.gate(skip).weights(trace.lm.keys[held], trace.lm.conf[held], trace.lm.ent[held], contexts)
        assert np.mean(lam == 0) == pytest.approx(skip, abs=0.01)


def test_a_tiny_text_warns_and_the_weight_stays_constant(lm, store, tmp_path):
    (tmp_path / "tiny.txt").write_text(make_text(60, seed=3))
    heard = Heard()
    made = Adaptor.train(lm, store, str(tmp_path / "tiny.txt"), name="tiny", training=QUICK, reporter=heard)
    said = "\n".join(heard.lines)
    assert "few to learn from" in said and "two blocks" in said
    assert not made.learned and "λ stays as tuned" in said
    assert made.lam == adapting.tuned_settings(store, "default").lam and made.gate("auto", 100).skip == 0
    held = made.info.held_out
    assert held.curve[0] == pytest.approx(held.constant, rel=1e-12)


def test_the_checkpoint_is_chosen_where_the_lower_half_does_not_ask():
    examples, scores = made_up_examples(), np.random.default_rng(3).normal(size=6000)
    p_lm, p_knn, lam = np.exp(examples.log_lm), np.exp(examples.log_knn), 0.3
    p = p_lm.copy()
    kept = np.argsort(scores)[3000:]
    p[kept] = (lam * p_knn + (1 - lam) * p_lm)[kept]
    found = half_perplexity(examples.log_lm, examples.log_knn, lam, scores)
    assert found == pytest.approx(np.exp(-np.log(p).mean()), rel=1e-12)


def test_a_gain_on_few_held_out_tokens_is_not_trusted():
    examples, split = made_up_examples(), split_rows(DOCUMENTS, 0)
    network = train_network(Inputs(12, PAPER_FEATURES), examples, split, 0.05, QUICK).network
    few = Split(split.train, split.held[:499], split.documents[:499], "documents")
    found = adapting.judge(network, examples, few, "likelihood", 0.123)
    assert found.weight == "constant" and found.lam == 0.123
    assert adapting.judge(network, examples, split, "likelihood", 0.123).lam != 0.123


def test_auto_takes_the_largest_share_within_the_budget(adaptor, store):
    curve = (9.9 + 0.02 * np.arange(101)).tolist()
    held = replace(adaptor.info.held_out, tokens=500, constant=10.0, curve=curve, errors=[0.0] * 101)

    def judged(**changed):
        verdict = replace(adaptor.info, held_out=replace(held, **changed))
        return Adaptor(adaptor.network, verdict, adaptor.settings, adaptor.ngrams)

    one = judged()
    assert one.best_skip(0.105) == pytest.approx(0.1) and one.gate("auto").skip == pytest.approx(0.1)
    assert one.gate("auto", 0.0).skip == pytest.approx(0.05)
    assert one.gate("auto", 100).skip == 1.0
    unsure = judged(errors=[0.002] * 101)  # twice that of 10 is two more percent
    assert unsure.gate("auto", 0.105).skip == pytest.approx(0.08)
    assert judged(tokens=499).gate("auto", 100).skip == 0.0
    assert judged(curve=[20.0] * 101).gate("auto").skip == 0.0


def test_auto_tries_the_papers_coefficients_and_goes_on_after_a_kill(lm, store, valid, monkeypatch):
    real, tried = adapting.train_network, []

    def killed(shape, examples, split, a, *rest):
        tried.append(a)
        if len(tried) == 4:
            raise KeyboardInterrupt
        return real(shape, examples, split, a, *rest)

    options = {"name": "auto", "training": Training(a="auto", epochs=1)}
    monkeypatch.setattr(adapting, "train_network", killed)
    with pytest.raises(KeyboardInterrupt):
        Adaptor.train(lm, store, valid, **options)
    with pytest.raises(StoreError, match="no adaptor"):
        Adaptor.load(store, "auto")
    made = Adaptor.train(lm, store, valid, **options)
    assert tried == [0.01, 0.05, 0.1, 0.2, 0.2, 0.5, 1.0]
    found = made.info.tried
    assert made.info.training.a == float(min(found, key=found.get)) and len(found) == 6
    monkeypatch.setattr(adapting, "train_network", real)
    whole = Adaptor.train(lm, store, valid, **{**options, "name": "whole"})
    assert whole.info.files == made.info.files


def test_what_does_not_fit_is_refused(lm, store, adaptor):
    fits = Retriever(store, nprobe=8)
    adaptor.check(fits, SearchSettings(temperature=3.0, k=32), lm.fingerprint())
    cases = [
        ((Retriever(store, "flat"), 3.0, 32), "index 'default'"),
        ((Retriever(store, nprobe=4), 3.0, 32), "nprobe=8, here it is 4"),
        ((Retriever(store, nprobe=8, distances="store"), 3.0, 32), "distances=index, here it is store"),
        ((fits, 1.0, 32), "temperature=3.0, here it is 1.0"),
        ((fits, 3.0, 64), "k=32, here it is 64"),
    ]
    for (retriever, temperature, k), message in cases:
        with pytest.raises(OptionError, match=message):
            adaptor.check(retriever, SearchSettings(temperature=temperature, k=k), lm.fingerprint())
    with pytest.raises(OptionError, match="another model"):
        adaptor.check(fits, adaptor.settings, "0" * 64)
    changed = Adaptor(adaptor.network, replace(adaptor.info, search="other"), adaptor.settings, adaptor.ngrams)
    with pytest.raises(OptionError, match="earlier index"):
        changed.check(fits, adaptor.settings, lm.fingerprint())


def test_a_damaged_foreign_or_stale_adaptor_is_refused(lm, store, adaptor, tmp_path):
    place = adaptor_files(store, "copy")
    folder = place.folder
    save_adaptor(place, adaptor.network, adaptor.info)
    Adaptor.load(store, "copy")
    path = folder / "adaptor.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Adaptor.load(store, "copy")
    save_adaptor(place, adaptor.network, replace(adaptor.info, store="other"))
    with pytest.raises(StoreError, match="earlier state"):
        Adaptor.load(store, "copy")
    described = json.loads((folder / "adaptor.json").read_text())
    files.write_stamped(folder / "adaptor.json", {**described, "format": 99})
    with pytest.raises(StoreError, match="format 99"):
        Adaptor.load(store, "copy")
    with pytest.raises(StoreError, match="it has"):
        Adaptor.load(store, "missing")
    with pytest.raises(StoreError, match="nearlm tune"):
        Adaptor.train(lm, store, "nowhere", index="flat")


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_features("keys,nonsense"),
        lambda: parse_features("keys,keys"),
        lambda: parse_features(""),
        lambda: Training("guess"),
        lambda: Inputs(4, PAPER_FEATURES, "some"),
        lambda: Training(a="-1"),
        lambda: Training(a="many"),
        lambda: Training(a="nan"),
    ],
)
def test_nonsense_options_are_refused(make):
    with pytest.raises(OptionError, match="expected"):
        make()


def test_nonsense_shares_are_refused(adaptor):
    for skip, budget in ((1.5, None), (-0.1, None), ("some", None), (float("nan"), None), ("auto", -1.0), (0.5, 0.1)):
        with pytest.raises(OptionError):
            adaptor.gate(skip, budget)


def test_features_stand_in_a_fixed_order():
    assert parse_features("fert, conf,keys") == ("keys", "conf", "fert") and parse_features("all") == FEATURES
