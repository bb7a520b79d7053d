"""Generation with a memory against the equation, token by token; explanations and refusals."""

import weakref

import numpy as np
import pytest
import torch
from gated import WINDOW
from transformers import RepetitionPenaltyLogitsProcessor

import nearlm
from calls import build, build_index, knnlm_of
from nearlm.base.errors import ModelError, OptionError
from nearlm.knnlm import KNNLM, Attachment
from nearlm.knnlm.scoring import Scorer
from nearlm.mixing import Memory
from nearlm.model.lm import LM
from nearlm.store import Tuned, write_tuned
from tiny import make_llama, make_text, make_tokenizer

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


def test_several_texts_for_one_prompt_come_as_a_list(knnlm):
    options = {"max_new_tokens": 4, "num_return_sequences": 2, "num_beams": 2, "do_sample": False}
    assert len(knnlm.generate(["the"], **options)) == 2
    with pytest.raises(OptionError, match="list of one"):
        knnlm.generate("the", **options)
    with pytest.raises(OptionError, match="there is no prompt"):
        knnlm.generate([])


def test_generation_ends_at_a_stop_string(knnlm):
    whole = knnlm.generate(PROMPTS[0], max_new_tokens=12, do_sample=False)
    word = whole.split()[1]
    assert knnlm.generate(PROMPTS[0], max_new_tokens=12, do_sample=False, stop_strings=[word]).rstrip().endswith(word)


def test_another_fine_tune_of_the_stores_model_is_refused(knnlm, tmp_path):
    other = LM(make_llama(seed=4).double(), knnlm.lm.tokenizer)
    (tmp_path / "valid.txt").write_text("the licence grants rights")
    refused = pytest.raises(ModelError, match="has other weights")
    with refused:
        KNNLM(other, knnlm.store, knnlm.memory)
    with refused:
        nearlm.tune(knnlm.store, tmp_path / "valid.txt", other)
    with refused:
        nearlm.evaluate(knnlm.store, tmp_path / "valid.txt", other)
    write_tuned(knnlm.store.layout, Tuned(index="default", lam=0.5, knn_temperature=3.0, k=32))
    for train in (nearlm.Gate.train, nearlm.Mixture.train, nearlm.learn_all):
        with refused:
            train(knnlm.store, tmp_path / "valid.txt", other)


def test_a_model_with_another_tap_is_refused(knnlm):
    with pytest.raises(ModelError, match="set `key_tap`"):
        KNNLM(LM(knnlm.lm.model, knnlm.lm.tokenizer, key_tap="last_hidden"), knnlm.store, None)


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
    assert len(alive) > 10 and max(alive) <= 3, "arrays of the search before, at most"
    assert not any(reference() for reference in found) and len(scores.logp) > 3000


def test_nonsense_settings_are_refused(knnlm):
    for options in ({"lam": 1.5}, {"lam": -0.1}, {"lam": 0.5, "knn_temperature": 0.0}, {"lam": 0.5, "k": 0}):
        with pytest.raises(OptionError):
            knnlm_of(knnlm.lm, knnlm.store, knnlm.retriever, **options)
    with pytest.raises(OptionError, match="chat template"):
        knnlm.generate("hello", chat=True, max_new_tokens=2)


def test_a_prompt_begins_as_the_stores_documents_do(tmp_path):
    lm = LM(make_llama(seed=3).double(), make_tokenizer(adds_bos=False))
    (tmp_path / "text.txt").write_text(make_text(100, seed=5))
    plain = lm.tokenizer("the licence")["input_ids"]
    for bos, begin in ((None, []), (True, [0])):
        store = build(lm, str(tmp_path / "text.txt"), tmp_path / f"store-{bos}", window=64, quiet=True, bos=bos)
        build_index(store, "flat", quiet=True)
        knnlm = KNNLM.load(store, lm)
        assert knnlm.generate_ids(["the licence"], max_new_tokens=1, do_sample=False)[0][0] == [*begin, *plain]
        assert knnlm.score("the licence").tokens.tolist() == [*begin, *plain][1:]


def test_a_memory_without_keys_scores_explains_and_generates_alike(bare, tokenizer):
    """Score, explain, attach and generate all give the mixture that a few lines of Python give."""
    text = "the licence grants rights to any person who uses " + make_text(40, seed=5)
    scores = bare.score(text)
    assert bare.retriever is None and not scores.retrieved.any() and np.isneginf(scores.log_knn).all()
    ids = bare._document(text).tolist()
    explained = list(bare.explain(ids))
    for row, one in enumerate(explained):
        weighed = sum(weight * p for weight, p in one.sources.values()) + (1 - one.lam) * one.p_lm
        assert one.p == pytest.approx(weighed, rel=1e-6) and np.log(one.p) == pytest.approx(scores.logp[row], rel=1e-6)
    assert max(one.lam for one in explained) >= 0.75 and min(one.lam for one in explained) == 0
    assert any(one.suffix and one.suffix.length >= 16 for one in explained)
    short = ids[:WINDOW]
    with Attachment(bare.lm, bare.memory) as model, torch.no_grad():
        logits = model(torch.tensor([short])).logits[0]
    np.testing.assert_allclose(logits.exp().sum(-1), 1, rtol=1e-6)
    targets = torch.tensor(short[1:])
    np.testing.assert_allclose(logits[:-1].gather(1, targets[:, None])[:, 0], scores.logp[: len(targets)], rtol=1e-4)
    made = bare.generate("the licence grants", max_new_tokens=6, do_sample=False)
    read = bare._document("the licence grants").tolist()
    for _ in range(6):
        with Attachment(bare.lm, bare.memory) as model:
            read.append(int(model(torch.tensor([read])).logits[0, -1].argmax()))
    assert made == tokenizer.decode(read[-6:], skip_special_tokens=True)
    assert bare.generate("the licence grants", max_new_tokens=6, num_beams=2)
