"""Adaptive retrieval in use: evaluation, scoring, attaching, generating, and what the adaptor sees of the past."""

import copy
import inspect

import numpy as np
import pytest
import torch

from calls import attach, build, build_index, evaluate, knnlm_of, load_knnlm
from conftest import make_llama, make_text
from nearlm.base import files
from nearlm.base.errors import ModelError, OptionError
from nearlm.mixing import adapting
from nearlm.mixing.adapting import AdaptorInfo, HeldOut, TrainingInfo
from nearlm.mixing.adaptor import Adaptor, Gate, save_adaptor
from nearlm.mixing.adaptor_network import AdaptorNetwork, Inputs, scalar_columns
from nearlm.mixing.adaptor_training import thresholds_of
from nearlm.mixing.ngrams import NGrams, build_ngrams, last_tokens
from nearlm.model.lm import LM
from nearlm.search.retriever import Retriever
from nearlm.store import SearchSettings

WINDOW = 48
PROMPTS = ["the licence grants", "any person who uses copies of the software", "free"]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
SETTINGS = {"k": 32, "temperature": 3.0, "nprobe": None, "distances": "index"}


@pytest.fixture(scope="module")
def double_lm(tokenizer):
    """A float64 model, so that rounding cannot hide anything."""
    return LM(make_llama(seed=3).double(), tokenizer, name="double")


@pytest.fixture(scope="module")
def store(tmp_path_factory, double_lm):
    folder = tmp_path_factory.mktemp("adaptive")
    for number in range(2):
        (folder / f"train{number}.txt").write_text(make_text(250, seed=number))
    made = build(double_lm, str(folder), folder / "store", window=WINDOW, key_dtype="float32", quiet=True)
    build_index(made, "flat", quiet=True)
    files.write_stamped(made.path / "index" / "default" / "settings.json", {**SETTINGS, "lam": 0.4})
    build_ngrams(made)
    for name, weight, features in (
        ("learned", "learned", ("keys", "conf", "ent", "freq", "fert")),
        ("counts", "learned", ("freq", "fert")),
        ("constant", "constant", ("keys", "conf", "ent", "fert")),
    ):
        save_adaptor(made.layout.adaptor(name), *untrained(made, double_lm, weight, features))
    return made


def untrained(store, lm, weight, features):
    """An adaptor whose random λ depends strongly on its features, with thresholds from the store's own contexts."""
    torch.manual_seed(5)
    network, shape = AdaptorNetwork(Inputs(store.dim, features)), Inputs(store.dim, features)
    rng, places = np.random.default_rng(0), np.arange(0, len(store), 3)
    counts = NGrams.open(store).look_up(last_tokens(store.tokens[:], store.document_bounds, store.origin.take(places)))
    scalars = scalar_columns(shape, len(places), rng.uniform(size=len(places)), rng.uniform(size=len(places)), counts)
    keys = store.keys.take(places)
    network.fit(torch.from_numpy(keys), torch.from_numpy(scalars))
    with torch.no_grad():
        for part in network.mlp:
            if isinstance(part, torch.nn.Linear):
                part.weight.mul_(3)
    log_lam = network.log_weights(keys, scalars)[:, 0]
    held_out = HeldOut(900, "documents", 12.0, 10.0, 0.1, 0.01, [9.0] * 101, [0.0] * 101, [9.0] * 101)
    info = AdaptorInfo(
        format=adapting.FORMAT,
        shape=shape,
        store=store.checksum,
        search=adapting.search_hash(Retriever(store)),
        model=lm.fingerprint(),
        text="",
        settings=SearchSettings(index="default", **SETTINGS),
        training=TrainingInfo("likelihood", 0, 5e-4, 128, 1, 5, 0.05, 9000),
        tried={},
        files={},
        weight=weight,
        lam=0.4,
        thresholds=thresholds_of(log_lam)[1:-1].tolist(),
        held_out=held_out,
    )
    return network, info


@pytest.fixture(scope="module")
def test_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adaptive-text")
    for number in range(3):
        (folder / f"test{number}.txt").write_text(make_text(70, seed=90 + number))
    return folder


@pytest.fixture
def searches(monkeypatch):
    """The number of queries of every search."""
    counted, real = [], Retriever.search

    def search(self, queries, k=None, **options):
        counted.append(len(queries))
        return real(self, queries, k, **options)

    monkeypatch.setattr(Retriever, "search", search)
    return counted


def test_a_constant_adaptor_that_skips_nothing_is_plain_knn_lm(double_lm, store, test_text):
    plain = evaluate(load_knnlm(store, double_lm), str(test_text))
    gated = evaluate(load_knnlm(store, double_lm, adaptor="constant", skip=0), str(test_text))
    assert gated.perplexity == pytest.approx(plain.perplexity, rel=1e-9)
    assert plain.perplexity != pytest.approx(plain.nlm_perplexity, rel=1e-3)
    assert (gated.skipped, gated.retrievals, gated.search.adaptor) == (0.0, gated.tokens, "constant")


def test_an_adaptor_that_skips_all_is_the_lm_and_searches_nothing(double_lm, store, test_text, searches):
    alone = evaluate(load_knnlm(store, double_lm, knn=False), str(test_text))
    for name in ("learned", "constant"):
        gated = evaluate(load_knnlm(store, double_lm, adaptor=name, skip=1.0), str(test_text))
        assert gated.perplexity == gated.nlm_perplexity == alone.perplexity
        assert (gated.skipped, gated.retrievals, gated.retrievals_per_second) == (1.0, 0, None)
    knnlm = load_knnlm(store, double_lm, adaptor="learned", skip=1.0)
    plain = knnlm_of(double_lm, store, None)
    assert knnlm.generate(PROMPTS, max_new_tokens=5, do_sample=False) == plain.generate(
        PROMPTS, max_new_tokens=5, do_sample=False
    )
    assert np.array_equal(knnlm.score("the licence").logp, plain.score("the licence").logp)
    assert not searches


def by_hand(lm, store, adaptor, ids, skip):
    """λ and log p of every next token of a sequence from one full forward pass and the equations."""
    seen = []
    hook = lm.tap.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        log_lm = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
    hook.remove()
    queries, p_lm = seen[0][0].numpy(), np.exp(log_lm)
    contexts = last_tokens(np.asarray(ids), np.array([0, len(ids) + 1]), np.arange(1, len(ids) + 1))
    log_lam = adaptor.log_weights(queries, p_lm.max(1), -(p_lm * log_lm).sum(1), contexts)[:, 0]
    lam = np.where(log_lam >= adaptor.threshold(skip), np.exp(log_lam), 0.0)
    keys, values = store.keys[:].astype(np.float64), store.values[:]
    p = p_lm.copy()
    for row, query in enumerate(queries):
        if lam[row]:
            d = ((keys - query) ** 2).sum(1)
            near = np.argsort(d, kind="stable")[: SETTINGS["k"]]
            mass = np.exp(-(d[near] - d[near][0]) / SETTINGS["temperature"])
            p[row] *= 1 - lam[row]
            np.add.at(p[row], values[near], lam[row] * mass / mass.sum())
    return lam, np.log(p)


@pytest.mark.parametrize("name", ["learned", "counts"])
def test_scores_and_attached_logits_equal_the_equations(double_lm, store, name, searches):
    adaptor, skip = Adaptor.load(store, name), 0.4
    knnlm = load_knnlm(store, double_lm, adaptor=name, skip=skip)
    scores = knnlm.score(make_text(25, seed=8))
    ids = [0, *scores.tokens.tolist()][:WINDOW]
    lam, logp = by_hand(double_lm, store, adaptor, ids, skip)
    lam, rows = lam[:-1], np.arange(len(ids) - 1)
    assert 0.1 < np.mean(lam == 0) < 0.9 and np.std(lam[lam > 0]) > 0.01
    np.testing.assert_allclose(scores.lam[: len(rows)], lam, rtol=1e-4)
    np.testing.assert_allclose(scores.logp[: len(rows)], logp[rows, ids[1:]], rtol=1e-4)
    np.testing.assert_array_equal(scores.asked[: len(rows)], lam > 0)
    searches.clear()
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model, torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
        picked = model(torch.tensor([ids]), logits_to_keep=torch.tensor([2, 5])).logits[0]
    np.testing.assert_allclose(whole, logp, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(picked, logp[[2, 5]], rtol=1e-4, atol=1e-6)
    assert searches[0] <= np.sum(lam > 0) + 1


def test_only_tokens_that_ask_are_searched_and_a_window_does_not_hide_the_past(double_lm, store, test_text, searches):
    knnlm = load_knnlm(store, double_lm, adaptor="counts", skip=0.4)
    found = evaluate(knnlm, str(test_text))
    assert found.retrievals == sum(searches) and found.skipped == pytest.approx(1 - sum(searches) / found.tokens)
    strided = evaluate(knnlm, str(test_text), stride=16)  # λ depends on tokens only, so not on the windows
    assert strided.retrievals == found.retrievals
    assert found.adaptor_microseconds > 0 and 0 <= found.adaptor_share < 1 and found.search.lam is None


def test_explaining_shows_no_neighbours_for_tokens_that_did_not_ask(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="counts", skip=0.5)
    ids = [0, *double_lm.tokenizer(make_text(20, seed=4))["input_ids"]]
    told = list(knnlm.explain(ids))
    asked = np.concatenate([batch.scores.asked for batch in knnlm._scored(np.asarray(ids, np.int32))])
    assert [bool(one.nearest) for one in told] == asked.tolist() and 0 < asked.sum() < len(told)
    silent = load_knnlm(store, double_lm, adaptor="counts", skip=1)
    assert not any(one.nearest for one in silent.explain(ids))


def greedy(lm, store, adaptor, ids, skip, steps):
    ids = list(ids)
    for _ in range(steps):
        ids.append(int(by_hand(lm, store, adaptor, ids, skip)[1][-1].argmax()))
        if ids[-1] == lm.tokenizer.eos_token_id:
            break
    return ids


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"prefill_chunk_size": 3}])
def test_greedy_generation_equals_recomputing_the_whole_context(double_lm, store, options):
    knnlm, adaptor = load_knnlm(store, double_lm, adaptor="counts", skip=0.3), Adaptor.load(store, "counts")
    for prompt in PROMPTS[:2]:
        start, new = knnlm.generate_ids([prompt], max_new_tokens=10, do_sample=False, **options)[0]
        assert start + new == greedy(double_lm, store, adaptor, start, 0.3, 10)


@pytest.fixture
def watched(monkeypatch, double_lm):
    """What the adaptor was told of the past, and the whole sequences that `generate` had in hand at that moment."""
    told, whole, real = [], [], Gate.weights
    prepare = double_lm.model.prepare_inputs_for_generation

    def weights(self, keys, conf, ent, contexts):
        told.append(contexts)
        return real(self, keys, conf, ent, contexts)

    def prepared(input_ids, *args, **kwargs):
        mask = kwargs["attention_mask"]
        whole.append(torch.where(mask.bool(), input_ids, -1).numpy())
        return prepare(input_ids, *args, **kwargs)

    prepared.__signature__ = inspect.signature(prepare)
    monkeypatch.setattr(Gate, "weights", weights)
    monkeypatch.setattr(double_lm.model, "prepare_inputs_for_generation", prepared, raising=False)
    return told, whole


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "num_beams": 4},
        {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": False, "num_beams": 3, "use_cache": False},
        {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
        {"do_sample": False, "num_beams": 3, "cache_implementation": "static", "disable_compile": True},
    ],
)
def test_the_adaptor_sees_the_last_tokens_of_every_row(double_lm, store, watched, options):
    told, whole = watched
    torch.manual_seed(0)
    knnlm = load_knnlm(store, double_lm, adaptor="counts", skip=0.3)
    knnlm.generate(PROMPTS, max_new_tokens=8, **options)
    assert len(told) == len(whole) > 4
    for contexts, sequences in zip(told, whole, strict=True):
        expected = np.pad(sequences, ((0, 0), (4, 0)), constant_values=-1)[:, -4:]
        rows = contexts.reshape(len(sequences), -1, 4)
        np.testing.assert_array_equal(rows[:, -1], expected)


def test_beams_with_and_without_a_cache_agree(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="learned", skip=0.4)
    options = {"max_new_tokens": 8, "num_beams": 4, "do_sample": False}
    assert knnlm.generate(PROMPTS, **options) == knnlm.generate(PROMPTS, use_cache=False, **options)


def test_a_batch_with_left_padding_gives_what_single_prompts_give(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="counts", skip=0.3)
    together = knnlm.generate(PROMPTS, max_new_tokens=8, do_sample=False)
    assert together == [knnlm.generate(prompt, max_new_tokens=8, do_sample=False) for prompt in PROMPTS]


def test_a_loop_of_ones_own_with_a_cache_sees_the_whole_past(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="learned", skip=0.3)
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1])["input_ids"]]]).repeat(2, 1)
    ids[1, -2] = 17
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model, torch.no_grad():
        whole = model(ids).logits
        cache = model(ids[:, :3], use_cache=True).past_key_values
        fork = copy.deepcopy(cache)
        parts = [model(ids[:, i : i + 2], past_key_values=cache).logits for i in range(3, ids.shape[1], 2)]
        torch.testing.assert_close(torch.cat(parts, 1), whole[:, 3:], **CLOSE)
        cache.crop(-2)
        torch.testing.assert_close(model(ids[:, -2:], past_key_values=cache).logits, whole[:, -2:], **CLOSE)
        cache.reorder_cache(torch.tensor([1, 1]))
        after = model(ids[[1, 1], -1:], past_key_values=cache).logits
        torch.testing.assert_close(after, model(torch.cat([ids, ids[:, -1:]], 1)[[1, 1]]).logits[:, -1:], **CLOSE)
        torch.testing.assert_close(model(ids[:, 3:], past_key_values=fork).logits, whole[:, 3:], **CLOSE)


def test_a_past_that_nobody_saw_is_refused(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="counts", skip=0.3)
    ids = torch.tensor([[0, 5, 6, 7]])
    with torch.no_grad():
        cache = double_lm.model(ids, use_cache=True).past_key_values
        embedded = double_lm.model.get_input_embeddings()(ids)
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model, torch.no_grad():
        with pytest.raises(ModelError, match="4 tokens"):
            model(ids, past_key_values=cache)
        with pytest.raises(ModelError, match="inputs_embeds"):
            model(inputs_embeds=embedded)


def test_attach_refuses_a_temperature_that_the_gate_was_not_trained_with(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="learned")
    with (
        pytest.raises(OptionError, match="temperature=3"),
        attach(double_lm, knnlm.retriever, gate=knnlm.gate, temperature=1.0),
    ):
        pass


def test_gradients_flow_through_an_attached_model(double_lm, store):
    knnlm = load_knnlm(store, double_lm, adaptor="learned", skip=0.4)
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model:
        model(ids, labels=ids).loss.backward()
    assert double_lm.model.lm_head.weight.grad.abs().sum() > 0
    double_lm.model.zero_grad(set_to_none=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": 0.5}, "--adaptor"),
        ({"budget": 0.5}, "--adaptor"),
        ({"adaptor": "learned", "lam": 0.2}, "--lam"),
        ({"adaptor": "learned", "knn": False}, "--no-knn"),
        ({"adaptor": "learned", "temperature": 9.0}, "temperature=3.0"),
        ({"adaptor": "learned", "k": 5}, "k=32"),
        ({"adaptor": "learned", "distances": "store"}, "distances"),
        ({"adaptor": "learned", "skip": 2}, "0 to 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(double_lm, store, options, message):
    with pytest.raises(OptionError, match=message):
        load_knnlm(store, double_lm, **options)
