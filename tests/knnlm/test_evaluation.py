"""Evaluation against a plain numpy kNN-LM, and against scoring and attaching."""

import numpy as np
import pytest
import torch
from transformers.convert_slow_tokenizer import bytes_to_unicode

from calls import attach, build, build_index, evaluate, load_knnlm
from nearlm.knnlm.evaluation import words_and_bytes
from nearlm.model.lm import LM
from nearlm.text import Framing, Reading, read_once
from tiny import make_llama, make_text, make_tokenizer

WINDOW = 48


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("evaluate")
    for number in range(3):
        (folder / f"train{number}.txt").write_text(make_text(250, seed=number))
    made = build(lm, str(folder), folder / "store", window=WINDOW, shard_records=500, quiet=True)
    build_index(made, "flat", name="flat", quiet=True)
    return made


@pytest.fixture(scope="module")
def test_text(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate-text") / "test.txt"
    path.write_text(make_text(120, seed=99))
    return path


def plain_knn_lm(model, tokenizer, text, store, lam, temperature, k, stride=WINDOW):
    """Score a text with a kNN-LM in a few lines: log p of each token, LM and mixture."""
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    keys, values = store.keys[:].astype(np.float64), store.values[:]
    log_lm, logp, begin, done = [], [], 0, 1
    while done < len(ids):
        seen = []
        hook = model.model.layers[-1].mlp.register_forward_pre_hook(lambda _, args, to=seen: to.append(args[0]))
        window = ids[begin : min(begin + WINDOW, len(ids) - 1)]
        with torch.no_grad():
            logs = model(torch.tensor([window])).logits[0].double().log_softmax(-1).numpy()
        hook.remove()
        for i in range(done - begin - 1, len(window)):
            target = ids[begin + i + 1]
            d = ((keys - seen[0][0, i].double().numpy()) ** 2).sum(1)
            near = np.argsort(d, kind="stable")[:k]
            mass = np.exp(-(d[near] - d[near][0]) / temperature)
            p_knn = mass[values[near] == target].sum() / mass.sum()
            log_lm.append(logs[i, target])
            logp.append(np.log(lam * p_knn + (1 - lam) * np.exp(logs[i, target])))
        done, begin = begin + len(window) + 1, begin + stride
    return np.array(log_lm), np.array(logp)


@pytest.mark.parametrize("stride", [WINDOW, 16])
def test_perplexity_equals_a_plain_numpy_implementation(lm, store, test_text, stride):
    knnlm = load_knnlm(store, lm, index="flat", lam=0.4, knn_temperature=5.0, k=64)
    result = evaluate(knnlm, str(test_text), stride=stride)
    log_lm, logp = plain_knn_lm(lm.model, lm.tokenizer, test_text.read_text(), store, 0.4, 5.0, 64, stride)
    assert result.tokens == len(logp)
    assert result.perplexity == pytest.approx(np.exp(-logp.mean()), rel=1e-4)
    assert result.nlm_perplexity == pytest.approx(np.exp(-log_lm.mean()), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(-logp.sum() / np.log(2) / len(test_text.read_bytes()), rel=1e-4)
    assert result.word_perplexity == pytest.approx(np.exp(-logp.sum() / len(test_text.read_text().split())), rel=1e-4)


def test_without_knn_it_is_the_lm_alone(lm, store, test_text):
    alone = evaluate(load_knnlm(store, lm, index="flat", knn=False), str(test_text))
    mixed = evaluate(load_knnlm(store, lm, index="flat", lam=0.0), str(test_text))
    assert alone.perplexity == alone.nlm_perplexity == pytest.approx(mixed.perplexity, rel=1e-6)
    assert alone.retrievals == 0 and mixed.retrievals == mixed.tokens


def test_score_attach_and_evaluate_agree(lm, store, test_text):
    knnlm = load_knnlm(store, lm, index="flat", lam=0.3, knn_temperature=4.0, k=100)
    scores = knnlm.score(test_text.read_text())
    ids = [lm.tokenizer.bos_token_id, *scores.tokens[: WINDOW - 1].tolist()]
    with attach(lm, knnlm.retriever, lam=0.3, knn_temperature=4.0, k=100) as model, torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    np.testing.assert_allclose(logits.exp().sum(-1), 1.0, rtol=1e-4)
    attached = logits[torch.arange(WINDOW - 1), torch.tensor(ids[1:])]
    np.testing.assert_allclose(attached, scores.logp[: WINDOW - 1], atol=1e-4)
    ended = evaluate(knnlm, str(test_text))
    total = -np.log(ended.perplexity) * ended.tokens
    assert len(scores.logp) == ended.tokens - 1  # evaluation also predicts the end of the document
    assert total <= scores.logp.sum() + 1e-4


def test_evaluation_writes_no_traces_into_the_cache(lm, store, test_text, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    for options in ({"knn": False}, {"index": "flat"}):
        assert evaluate(load_knnlm(store, lm, **options), str(test_text)).tokens > 0
    assert {path.name for path in tmp_path.glob("cache/*")} <= {"verified"}  # which files were found sound


def predicted_by_hand(tokenizer, texts, bos, pack):
    """Words and bytes that a byte-level tokenizer predicts: all but the first token's, if nothing is before it."""
    symbols = {symbol: byte for byte, symbol in bytes_to_unicode().items()}
    words, count = 0, 0
    for number, text in enumerate(texts):
        first = tokenizer.tokenize(text)[0]
        raw = bytes(symbols[symbol] for symbol in first)
        given = b"" if bos or (pack and number) else raw
        while given and text.encode()[: len(given)].decode(errors="ignore").encode() != given:
            given = given[:-1]  # of a character that the next token ends
        rest = text.encode()[len(given) :]
        words, count = words + len(rest.decode().split()), count + len(rest)
    return words, count


TEXTS = ["the licence grants", "東京 is free", "licence", " any person", "a\n\nb" * 40, "é"]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("stride", [8, 3])
@pytest.mark.parametrize("bos", [False, True])
def testwords_and_bytes_are_those_of_what_is_predicted(tmp_path, bos, stride, pack):
    tokenizer = make_tokenizer(adds_bos=bos)
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    reading = Reading(Framing.of(tokenizer, "eos"), 8, stride, pack)
    with read_once(str(tmp_path), tokenizer, reading) as text:
        assert len(set(text.windows.target_positions)) == len(text.targets)
        assert words_and_bytes(text, tokenizer) == predicted_by_hand(tokenizer, TEXTS, bos, pack)


def test_bits_per_byte_without_a_bos_are_those_of_the_bytes_predicted(tmp_path):
    tokenizer = make_tokenizer(adds_bos=False)
    lm = LM(make_llama(), tokenizer)
    (tmp_path / "train.txt").write_text(make_text(60))
    (tmp_path / "test.txt").write_text("licence grants")
    store = build(lm, str(tmp_path / "train.txt"), tmp_path / "store", window=WINDOW, quiet=True)
    found = evaluate(load_knnlm(store, lm, knn=False), str(tmp_path / "test.txt"))
    ids = [*tokenizer("licence grants")["input_ids"], tokenizer.eos_token_id]
    with torch.no_grad():
        logs = lm.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    bits = -sum(float(logs[i, ids[i + 1]]) for i in range(len(ids) - 1)) / np.log(2)
    rest = "licence grants".removeprefix(tokenizer.decode(ids[:1]))
    assert (found.bytes, found.words) == (len(rest), len(rest.split()))
    assert found.bits_per_byte == pytest.approx(bits / len(rest), rel=1e-5)


def test_a_memory_without_keys_is_evaluated_without_searches(bare, test_text):
    found = evaluate(bare, str(test_text))
    scored = bare.score(test_text.read_text())
    assert found.retrievals == 0 and found.retrievals_per_second is None and found.search.index is None
    assert found.nlm_perplexity > found.perplexity > 1 and "skip retrieval" not in repr(found)
    assert found.tokens == len(scored.tokens) + 1  # the separator
    left = found.tokens * np.log(found.perplexity) + scored.logp.sum()  # of that one token
    assert 0 < left < 30
