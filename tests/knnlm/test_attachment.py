"""A memory in a model's own forward pass: generation, losses, gradients, refusals."""

import copy
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gated import CLOSE, PROMPTS, by_hand, untrained

import nearlm
from calls import attach, build, build_index, load_knnlm
from nearlm import SearchSettings
from nearlm.base.errors import ModelError, OptionError
from nearlm.mixing.gate import Gate
from nearlm.mixing.network_files import save_trained
from nearlm.mixing.ngrams import build_ngrams
from nearlm.model.lm import LM
from tiny import make_llama, make_text


def greedy(lm, store, gate, ids, skip, steps):
    ids = list(ids)
    for _ in range(steps):
        ids.append(int(by_hand(lm, store, gate, ids, skip)[1][-1].argmax()))
        if ids[-1] == lm.tokenizer.eos_token_id:
            break
    return ids


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"prefill_chunk_size": 3}])
def test_greedy_generation_equals_recomputing_the_whole_context(double_lm, store, options):
    knnlm, gate = load_knnlm(store, double_lm, gate="counts", skip=0.3), Gate.load(store, "counts")
    for prompt in PROMPTS[:2]:
        start, new = knnlm.generate_ids([prompt], max_new_tokens=10, do_sample=False, **options)[0]
        assert start + new == greedy(double_lm, store, gate, start, 0.3, 10)


def test_beams_with_and_without_a_cache_agree(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="learned", skip=0.4)
    options = {"max_new_tokens": 8, "num_beams": 4, "do_sample": False}
    assert knnlm.generate(PROMPTS, **options) == knnlm.generate(PROMPTS, use_cache=False, **options)


def test_a_batch_with_left_padding_gives_what_single_prompts_give(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.3)
    together = knnlm.generate(PROMPTS, max_new_tokens=8, do_sample=False)
    assert together == [knnlm.generate(prompt, max_new_tokens=8, do_sample=False) for prompt in PROMPTS]


def test_attach_refuses_a_temperature_that_the_gate_was_not_trained_with(double_lm, store):
    settings = SearchSettings(gate="learned", knn_temperature=1.0)
    with pytest.raises(OptionError, match="knn_temperature=3"):
        nearlm.attach(double_lm, store, settings)
    assert "forward" not in vars(double_lm.model)


def test_gradients_flow_through_an_attached_model(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="learned", skip=0.4)
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model:
        model(ids, labels=ids).loss.backward()
    assert double_lm.model.lm_head.weight.grad.abs().sum() > 0
    double_lm.model.zero_grad(set_to_none=True)


def test_attach_recomputes_the_loss_and_always_unhooks(knnlm):
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]])
    options = {"lam": 0.5, "knn_temperature": 3.0, "k": 32}
    with attach(knnlm.lm, knnlm.retriever, **options) as model:
        output = model(ids, labels=ids)
        as_tuple = model(ids, labels=ids, return_dict=False)
        with pytest.raises(ModelError, match="already"), attach(knnlm.lm, knnlm.retriever, **options):
            pass
    expected = -output.logits[0, :-1][torch.arange(ids.shape[1] - 1), ids[0, 1:]].mean()
    assert output.loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert as_tuple[0].item() == pytest.approx(output.loss.item())
    with pytest.raises(ZeroDivisionError), attach(knnlm.lm, knnlm.retriever, **options):
        raise ZeroDivisionError
    assert "forward" not in vars(knnlm.lm.model)


@pytest.mark.parametrize("wrong", [{"lam": 1.5}, {"lam": 0.5, "knn_temperature": 0.0}, {"lam": 0.5, "k": 0}])
def test_attach_refuses_what_makes_no_mixture(knnlm, wrong):
    with pytest.raises(OptionError, match="expected"), attach(knnlm.lm, knnlm.retriever, **wrong):
        pass
    assert "forward" not in vars(knnlm.lm.model)


def test_attach_refuses_a_model_that_did_not_make_the_store(knnlm):
    with pytest.raises(ModelError, match="another architecture"):
        nearlm.attach(make_llama(hidden_size=16), knnlm.store)
    with pytest.raises(ModelError, match="has other weights"):  # another fine-tune of the same architecture
        nearlm.attach(make_llama(seed=4).double(), knnlm.store)
    with pytest.raises(OptionError, match="`model` is a dict"):
        nearlm.attach({}, knnlm.store)


def test_any_transformers_model_takes_a_store_by_its_path_with_what_was_tuned(double_lm, store, monkeypatch):
    model = make_llama(seed=3).double()
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with torch.no_grad():
        alone = model(ids).logits
        monkeypatch.chdir(store.path.parent)
        with nearlm.attach(model, "store") as attached:
            assert attached is model
            inside = model(ids).logits
        assert torch.equal(model(ids).logits, alone)
        with attach(double_lm, load_knnlm(store, double_lm).retriever, lam=0.4, knn_temperature=3.0, k=32) as expected:
            torch.testing.assert_close(inside, expected(ids).logits)
        lasting = nearlm.attach(model, store, SearchSettings(lam=0.9))
        assert lasting.model is model and not torch.allclose(model(ids).logits, inside)
        lasting.detach()
        lasting.detach()  # has no effect
        assert torch.equal(model(ids).logits, alone) and "forward" not in vars(model)


def test_detaching_twice_leaves_a_later_attachment_alone(double_lm, store):
    first = nearlm.attach(double_lm, store)
    first.detach()
    with nearlm.attach(double_lm, store) as model:
        first.detach()
        assert "forward" in vars(model)
    assert "forward" not in vars(double_lm.model)


@pytest.mark.parametrize("gate", [None, "counts"])
@pytest.mark.parametrize("assistant", ["lookup", "model"])
def test_assisted_decoding_gives_the_greedy_output_of_the_mixture(double_lm, store, gate, assistant):
    knnlm = load_knnlm(store, double_lm, gate=gate) if gate else load_knnlm(store, double_lm, lam=0.5)
    drafter = make_llama(seed=9, num_hidden_layers=1).double()
    drafts = {"lookup": {"prompt_lookup_num_tokens": 3}, "model": {"assistant_model": drafter}}[assistant]
    for prompt in PROMPTS:
        plain = knnlm.generate_ids([prompt], max_new_tokens=20, do_sample=False)
        assert knnlm.generate_ids([prompt], max_new_tokens=20, do_sample=False, **drafts) == plain


@pytest.fixture(scope="module")
def last_hidden(tmp_path_factory, tokenizer):
    """A kNN-LM whose keys are the input of the head, with a gate that looks at the tokens before."""
    folder = tmp_path_factory.mktemp("last-hidden")
    (folder / "text.txt").write_text(make_text(250, seed=5))
    lm = LM(make_llama(seed=3).double(), tokenizer, key_tap="last_hidden", name="double")
    options = {"window": 64, "key_dtype": "float32", "key_tap": "last_hidden"}
    store = build(lm, str(folder / "text.txt"), folder / "store", quiet=True, **options)
    build_index(store, "flat", quiet=True)
    build_ngrams(store)
    save_trained(store.layout.gate("counts"), *untrained(store, lm, "learned", ("freq", "fert")))
    return load_knnlm(store, lm, gate="counts", skip=0.4)


KEPT = [[0, 3], [3, 0], [-1], [2, 2, 1]]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kept", [1, 2, *KEPT, "all backwards"])
@pytest.mark.parametrize("tap", ["ffn", "last_hidden"])
def test_any_positions_are_kept_wherever_the_keys_come_from(double_lm, store, last_hidden, tap, kept, gated):
    knnlm = last_hidden if tap == "last_hidden" else load_knnlm(store, double_lm, gate="counts", skip=0.4)
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]]).repeat(2, 1)
    ids[1, 2:] = ids[1, 2:].flip(0)
    if kept == "all backwards":
        kept = list(reversed(range(ids.shape[1])))
    options = {"gate": knnlm.gate} if gated else {"lam": 0.5, "knn_temperature": 3.0, "k": 32}
    with attach(knnlm.lm, knnlm.retriever, **options) as model, torch.no_grad():
        whole = model(ids).logits
        few = model(ids, logits_to_keep=kept if isinstance(kept, int) else torch.tensor(kept)).logits
    expected = whole[:, -kept:] if isinstance(kept, int) else whole[:, kept]
    torch.testing.assert_close(few, expected, **CLOSE)  # float32 distances


def test_attach_follows_logits_to_keep(knnlm):
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with attach(knnlm.lm, knnlm.retriever, lam=0.5, knn_temperature=3.0, k=32) as model, torch.no_grad():
        whole = model(ids).logits
        torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
        picked = torch.tensor([0, 3])
        torch.testing.assert_close(model(ids, logits_to_keep=picked).logits, whole[:, picked])


@pytest.mark.parametrize("key_tap", ["ffn", "last_hidden"])
def test_a_text_is_scored_alike_while_a_memory_is_attached(tmp_path, tokenizer, key_tap):
    lm = LM(make_llama(seed=3).double(), tokenizer, name="double", key_tap=key_tap)
    (tmp_path / "text.txt").write_text(make_text(200, seed=5))
    store = build(
        lm, str(tmp_path / "text.txt"), tmp_path / "store", window=32, key_dtype="float32", key_tap=key_tap, quiet=True
    )
    build_index(store, "flat", quiet=True)
    knnlm = load_knnlm(store, lm, lam=0.5)
    outside = knnlm.score(make_text(50))
    with nearlm.attach(lm, store, SearchSettings(lam=0.9)) as model:
        inside = knnlm.score(make_text(50))
        another = load_knnlm(store, model, lam=0.5).score(make_text(50))
    for found in (inside, another):
        assert (found.log_lm == outside.log_lm).all()
        assert (found.logp == outside.logp).all()


def test_threads_that_generate_and_score_get_what_one_alone_gets(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.3)
    options = {"max_new_tokens": 6, "do_sample": False}
    written = [knnlm.generate(prompt, **options) for prompt in PROMPTS]
    scored = [knnlm.score(make_text(30, seed)).logp.tolist() for seed in range(3)]
    with ThreadPoolExecutor(4) as threads:
        writing = [threads.submit(knnlm.generate, prompt, **options) for prompt in PROMPTS * 4]
        scoring = [threads.submit(knnlm.score, make_text(30, seed)) for seed in (0, 1, 2) * 4]
        assert [one.result() for one in writing] == written * 4
        assert [one.result().logp.tolist() for one in scoring] == scored * 4
    assert "forward" not in vars(double_lm.model)


def test_an_attached_model_is_refused_a_second_memory_and_can_still_be_evaluated(double_lm, store, test_text):
    alone = nearlm.evaluate(store, test_text, double_lm)
    model = double_lm.model
    with nearlm.attach(model, store):
        with pytest.raises(ModelError, match="has a memory attached already; detach that one first"):
            nearlm.attach(model, store)
        assert nearlm.evaluate(store, test_text, model).perplexity == alone.perplexity


def test_attach_leaves_the_training_mode_and_copies_alone(double_lm, store):
    model = make_llama(seed=3).double().train()
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1], add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        plain = model(ids).logits
        with nearlm.attach(model, store):
            assert model.training
            twin = copy.deepcopy(model)
            assert not torch.allclose(model(ids).logits, plain)
            assert torch.equal(twin(ids).logits, plain)  # the copy has no memory
    assert model.training and "input_ids" in inspect.signature(twin.forward).parameters


def test_labels_may_stand_at_their_place(knnlm):
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]])
    names = list(inspect.signature(knnlm.lm.model.forward).parameters)
    before = [None] * (names.index("labels") - 1)
    with attach(knnlm.lm, knnlm.retriever, lam=0.5, knn_temperature=3.0, k=32) as model, torch.no_grad():
        named = model(ids, labels=ids).loss
        assert model(ids, *before, ids).loss == named
        assert model(ids, labels=ids, num_items_in_batch=2 * ids.numel()).loss < named


def test_a_model_may_call_its_further_arguments_as_it_likes(double_lm, store):
    model = make_llama(seed=3).double()

    class Other(type(model)):
        def forward(self, input_ids=None, labels=None, **loss_kwargs):
            return super().forward(input_ids=input_ids, labels=labels, **loss_kwargs)

    other = copy.deepcopy(model)
    other.__class__ = Other
    ids = torch.tensor([[1, 1, 0, *double_lm.tokenizer(PROMPTS[1], add_special_tokens=False)["input_ids"]]])
    mask = torch.tensor([[0, 0] + [1] * (ids.shape[1] - 2)])
    with torch.no_grad(), nearlm.attach(model, store), nearlm.attach(other, store):
        expected = model(ids, attention_mask=mask).logits
        assert torch.equal(other(ids, attention_mask=mask).logits, expected)
        assert not torch.allclose(expected[:, -1], model(ids).logits[:, -1])  # the mask arrives


MIXED = [{"mixture": "mixed"}, {"gate": "mixed", "skip": 0.5}]


@pytest.mark.parametrize("settings", MIXED)
def test_a_mixture_gives_the_same_when_it_scores_and_when_it_is_attached(double_lm, mixed, settings):
    knnlm = load_knnlm(mixed, double_lm, **settings)
    text = make_text(30, seed=91)
    ids = torch.tensor([[*mixed.manifest.bos, *double_lm.tokenizer(text)["input_ids"]]])[:, :40]
    scores = knnlm.score(double_lm.tokenizer.decode(ids[0, len(mixed.manifest.bos) :]))
    with nearlm.attach(double_lm, mixed, SearchSettings(**settings)) as model, torch.no_grad():
        whole = model(ids).logits[0]
    torch.testing.assert_close(whole.exp().sum(-1), torch.ones(len(whole), dtype=whole.dtype), rtol=1e-5, atol=0)
    found = whole[:-1].gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(found, torch.from_numpy(scores.logp[: len(found)]), rtol=1e-5, atol=1e-5)
    assert (scores.lam > 0).any() and (scores.logp != scores.log_lm).any()
    assert 0 < scores.retrieved.mean() < 1 or "skip" not in settings


@pytest.mark.parametrize("settings", MIXED)
def test_a_mixture_writes_the_same_with_a_cache_beams_and_padding(double_lm, mixed, settings):
    knnlm = load_knnlm(mixed, double_lm, **settings)
    for options in ({}, {"num_beams": 3}):
        how = {"max_new_tokens": 8, "do_sample": False, **options}
        together = knnlm.generate(PROMPTS, **how)
        assert together == knnlm.generate(PROMPTS, use_cache=False, **how)
        assert together == [knnlm.generate(prompt, **how) for prompt in PROMPTS]


def test_gradients_flow_through_a_mixture(double_lm, mixed):
    ids = torch.tensor([[0, *double_lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with nearlm.attach(double_lm, mixed, SearchSettings(mixture="mixed")) as model:
        model(ids, labels=ids).loss.backward()
    assert all(torch.isfinite(one.grad).all() for one in double_lm.model.parameters() if one.grad is not None)
    double_lm.model.zero_grad()
