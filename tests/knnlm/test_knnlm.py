"""Generation with a memory against the equation, token by token; explanations and refusals."""

import weakref

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from calls import knnlm_of
from nearlm.base.errors import OptionError
from nearlm.knnlm.scoring import Scorer
from nearlm.mixing import Memory
from tiny import make_text

PROMPTS = ["the licence grants", "any person who uses copies of", "free"]


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


@pytest.mark.parametrize("overlap", [False, True])
def test_scoring_a_long_text_lets_the_neighbours_of_each_batch_go(knnlm, monkeypatch, overlap):
    monkeypatch.setattr(Scorer, "_overlaps", overlap)
    real, found, alive = Memory.search, [], []

    def search(self, queries):
        near = real(self, queries)
        alive.append(sum(reference() is not None for reference in found))
        found.extend(weakref.ref(array) for array in (near.distances, near.ids, near.tokens))
        return near

    monkeypatch.setattr(Memory, "search", search)
    monkeypatch.setattr(Scorer.score, "__defaults__", (128,))
    scores = knnlm.score(make_text(3000, seed=2))
    assert len(alive) > 20 and max(alive) <= 3, "arrays of the batch before, at most"
    assert not any(reference() for reference in found) and len(scores.logp) > 3000


def test_nonsense_settings_are_refused(knnlm):
    for options in ({"lam": 1.5}, {"lam": -0.1}, {"lam": 0.5, "knn_temperature": 0.0}, {"lam": 0.5, "k": 0}):
        with pytest.raises(OptionError):
            knnlm_of(knnlm.lm, knnlm.store, knnlm.retriever, **options)
    with pytest.raises(OptionError, match="chat template"):
        knnlm.generate("hello", chat=True, max_new_tokens=2)
