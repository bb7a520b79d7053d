"""Generation under the mixture: transformers' own generate() must see log p_mix, whatever it does with it."""

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from calls import attach, build, build_index, knnlm_of, load_knnlm
from conftest import make_llama, make_text
from nearlm.base.errors import ModelError, OptionError
from nearlm.model.lm import LM

PROMPTS = ["the licence grants", "any person who uses copies of", "free"]


@pytest.fixture(scope="module")
def knnlm(tmp_path_factory, tokenizer):
    """A float64 model with a memory of some text, so that ties and rounding cannot hide anything."""
    folder = tmp_path_factory.mktemp("knnlm")
    (folder / "text.txt").write_text(make_text(400, seed=5))
    lm = LM(make_llama(seed=3).double(), tokenizer, name="double")
    store = build(lm, str(folder / "text.txt"), folder / "store", window=64, key_dtype="float32", quiet=True)
    build_index(store, "flat", quiet=True)
    return load_knnlm(store, lm, lam=0.5, temperature=3.0, k=32)


def greedy_oracle(knnlm, ids, steps, processor=None):
    """Decode greedily, one full forward pass a step, from the equation."""
    keys, values = knnlm.store.keys[:].astype(np.float64), knnlm.store.values[:]
    ids = list(ids)
    for _ in range(steps):
        seen = []
        hook = knnlm.lm.tap.module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))  # noqa: B023
        with torch.no_grad():
            log_lm = knnlm.lm.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        hook.remove()
        d = ((keys - seen[0][0, -1].numpy()) ** 2).sum(1)
        near = np.argsort(d, kind="stable")[:32]
        mass = np.exp(-(d[near] - d[near][0]) / 3.0)
        p = 0.5 * log_lm.exp().numpy()
        np.add.at(p, values[near], 0.5 * mass / mass.sum())
        logits = torch.from_numpy(np.log(p))[None]
        if processor:
            logits = processor(torch.tensor([ids]), logits)
        ids.append(int(logits.argmax()))
        if ids[-1] == knnlm.lm.tokenizer.eos_token_id:
            break
    return ids


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_generation_equals_the_equation_with_and_without_cache(knnlm, use_cache):
    for prompt in PROMPTS:
        start, new = knnlm.generate_ids([prompt], max_new_tokens=12, do_sample=False, use_cache=use_cache)[0]
        assert start + new == greedy_oracle(knnlm, start, 12)


def test_a_batch_with_left_padding_gives_what_single_prompts_give(knnlm):
    together = knnlm.generate(PROMPTS, max_new_tokens=10, do_sample=False)
    assert together == [knnlm.generate(prompt, max_new_tokens=10, do_sample=False) for prompt in PROMPTS]


def test_a_logits_processor_works_on_the_mixture(knnlm):
    start, new = knnlm.generate_ids([PROMPTS[0]], max_new_tokens=12, do_sample=False, repetition_penalty=1.7)[0]
    assert start + new == greedy_oracle(knnlm, start, 12, RepetitionPenaltyLogitsProcessor(1.7))


def test_memory_changes_what_is_generated_and_is_gone_afterwards(knnlm):
    model = knnlm.lm.model
    plain = knnlm_of(knnlm.lm, knnlm.store, None, lam=0.0)
    alone = [plain.generate(prompt, max_new_tokens=8, do_sample=False) for prompt in PROMPTS]
    assert alone != [knnlm.generate(prompt, max_new_tokens=8, do_sample=False) for prompt in PROMPTS]
    assert alone == [plain.generate(prompt, max_new_tokens=8, do_sample=False) for prompt in PROMPTS]
    assert "forward" not in vars(model) and not knnlm.lm.tap.module._forward_pre_hooks


def test_beams_samples_and_several_sequences_run(knnlm):
    assert knnlm.generate(PROMPTS[0], max_new_tokens=6, num_beams=3, do_sample=False)
    torch.manual_seed(0)
    first = knnlm.generate(PROMPTS[0], max_new_tokens=6, do_sample=True, top_k=5)
    torch.manual_seed(0)
    assert first == knnlm.generate(PROMPTS[0], max_new_tokens=6, do_sample=True, top_k=5)
    rows = knnlm.generate_ids(PROMPTS[:2], max_new_tokens=4, num_return_sequences=2, num_beams=2, do_sample=False)
    assert [start for start, _ in rows] == [rows[0][0]] * 2 + [rows[2][0]] * 2


def test_assisted_and_prompt_lookup_decoding_are_refused(knnlm):
    for option in ({"assistant_model": knnlm.lm.model}, {"prompt_lookup_num_tokens": 3}):
        with pytest.raises(OptionError, match="not supported"):
            knnlm.generate("the", max_new_tokens=2, **option)


def test_attach_recomputes_the_loss_and_always_unhooks(knnlm):
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]])
    options = {"lam": 0.5, "temperature": 3.0, "k": 32}
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


@pytest.mark.parametrize("wrong", [{"lam": 1.5}, {"lam": 0.5, "temperature": 0.0}, {"lam": 0.5, "k": 0}])
def test_attach_refuses_what_makes_no_mixture(knnlm, wrong):
    with pytest.raises(OptionError, match="expected"), attach(knnlm.lm, knnlm.retriever, **wrong):
        pass
    assert "forward" not in vars(knnlm.lm.model)


def test_attach_refuses_a_model_that_did_not_make_the_store(knnlm):
    other = LM(make_llama(hidden_size=16), knnlm.lm.tokenizer)
    with pytest.raises(ModelError, match="another architecture"), attach(other, knnlm.retriever, lam=0.5):
        pass


def test_attach_follows_logits_to_keep(knnlm):
    ids = torch.tensor([[0, *knnlm.lm.tokenizer(PROMPTS[1])["input_ids"]]])
    with attach(knnlm.lm, knnlm.retriever, lam=0.5, temperature=3.0, k=32) as model, torch.no_grad():
        whole = model(ids).logits
        torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
        picked = torch.tensor([0, 3])
        torch.testing.assert_close(model(ids, logits_to_keep=picked).logits, whole[:, picked])


def test_explain_tells_what_memory_and_model_thought(knnlm):
    text = "the licence grants rights"
    scores = knnlm.score(text)
    ids = [0, *scores.tokens.tolist()]
    told = list(knnlm.explain(ids, nearest=2))
    assert [one.token for one in told] == [knnlm.lm.tokenizer.decode([token]) for token in scores.tokens]
    for one, log_lm, log_knn, logp in zip(told, scores.log_lm, scores.log_knn, scores.logp, strict=True):
        assert one.p_lm == pytest.approx(np.exp(log_lm)) and one.p_knn == pytest.approx(np.exp(log_knn))
        assert one.p == pytest.approx(0.5 * one.p_knn + 0.5 * one.p_lm) == pytest.approx(np.exp(logp))
        assert len(one.nearest) == 2 and one.nearest[0][1].document == "text.txt"
    assert [one.token for one in knnlm.explain(ids, first=2)] == [one.token for one in told][1:]


def test_nonsense_settings_are_refused(knnlm):
    for options in ({"lam": 1.5}, {"lam": -0.1}, {"lam": 0.5, "temperature": 0.0}, {"lam": 0.5, "k": 0}):
        with pytest.raises(OptionError):
            knnlm_of(knnlm.lm, knnlm.store, knnlm.retriever, **options)
    with pytest.raises(OptionError, match="chat template"):
        knnlm.generate("hello", chat=True, max_new_tokens=2)
