"""The tokens that only a cache knows of: seen by the gate in every kind of generation."""

import copy
import inspect

import numpy as np
import pytest
import torch
from gated import CLOSE, PROMPTS

from calls import attach, load_knnlm
from nearlm.base.errors import ModelError
from nearlm.mixing.gate import Gate


@pytest.fixture
def watched(monkeypatch, double_lm):
    """What the gate was told of the past, and the whole sequences that `generate` had in hand at that moment."""
    told, whole, real = [], [], Gate.weights
    prepare = double_lm.model.prepare_inputs_for_generation

    def weights(self, keys, known, proposals=None):
        told.append(known.contexts.last(4))
        return real(self, keys, known, proposals)

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
def test_the_gate_sees_the_last_tokens_of_every_row(double_lm, store, watched, options):
    told, whole = watched
    torch.manual_seed(0)
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.3)
    knnlm.generate(PROMPTS, max_new_tokens=8, draft=False, **options)
    assert len(told) == len(whole) > 4
    for contexts, sequences in zip(told, whole, strict=True):
        expected = np.pad(sequences, ((0, 0), (4, 0)), constant_values=-1)[:, -4:]
        rows = contexts.reshape(len(sequences), -1, 4)
        np.testing.assert_array_equal(rows[:, -1], expected)


def test_a_loop_of_ones_own_with_a_cache_sees_the_whole_past(double_lm, store):
    knnlm = load_knnlm(store, double_lm, gate="learned", skip=0.3)
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
    knnlm = load_knnlm(store, double_lm, gate="counts", skip=0.3)
    ids = torch.tensor([[0, 5, 6, 7]])
    with torch.no_grad():
        cache = double_lm.model(ids, use_cache=True).past_key_values
        embedded = double_lm.model.get_input_embeddings()(ids)
    with attach(double_lm, knnlm.retriever, gate=knnlm.gate) as model, torch.no_grad():
        with pytest.raises(ModelError, match="4 tokens"):
            model(ids, past_key_values=cache)
        with pytest.raises(ModelError, match="inputs_embeds"):
            model(inputs_embeds=embedded)
