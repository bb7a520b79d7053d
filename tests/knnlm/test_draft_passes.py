"""Rows that had unlike numbers of drafted tokens accepted are read on as if each had been read alone."""

import numpy as np
import pytest
import torch
from transformers import DynamicCache, MambaConfig, MambaForCausalLM, MistralConfig, StaticCache

from nearlm.knnlm.draft_passes import Reader, can_crop, moved
from nearlm.knnlm.history import keep_history, move_history, read_history
from tiny import make_llama

PROMPTS = [[5, 9, 2, 7, 11], [4, 8], [3, 3, 6]]


@pytest.fixture(scope="module")
def model():
    return make_llama(seed=1).double()


def alone(model, ids):
    """The logits after every token of a sequence, by one plain pass."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def padded(rows):
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def test_each_row_gets_what_it_gets_alone_whatever_others_had_accepted(model):
    ids, mask = padded(PROMPTS)
    reader = Reader(model, DynamicCache(config=model.config), mask, {})
    rows = [list(row) for row in PROMPTS]
    texts = [ids[place : place + 1] for place in range(3)]
    drafts = [np.empty(0, np.int32)] * 3
    draw = np.random.default_rng(0)
    for step in range(6):
        with torch.no_grad():
            logits = reader.read(texts, drafts)
        for place, row in enumerate(rows):
            expected = alone(model, [*row, *drafts[place].tolist()])[len(row) - 1 :]
            assert torch.allclose(logits[place, : len(expected)], expected, atol=1e-9)
        kept = [int(draw.integers(1, len(draft) + 2)) for draft in drafts]
        left = [0, 1, 2] if step != 3 else [0, 2]  # a row ends
        reader.keep(left if len(rows) == 3 else [0, 1], [kept[place] for place in (left if len(rows) == 3 else [0, 1])])
        for place, row in enumerate(rows):
            row += [*drafts[place][: kept[place] - 1].tolist(), int(draw.integers(300))]
        if len(left) < len(rows) == 3:
            rows = [rows[place] for place in left]
        texts = [torch.tensor([row]) for row in rows]
        drafts = [draw.integers(0, 300, draw.integers(0, 5)).astype(np.int32) for _ in rows]


def test_a_single_row_needs_no_mask(model):
    reader = Reader(model, DynamicCache(config=model.config), None, {})
    row = list(PROMPTS[0])
    draft = np.array([8, 1, 2], np.int32)
    with torch.no_grad():
        reader.read([torch.tensor([row])], [draft])
        reader.keep([0], [2])
        row += [8, 30]
        logits = reader.read([torch.tensor([row])], [draft[:1]])
    assert torch.allclose(logits[0], alone(model, [*row, 8])[-2:], atol=1e-9)


def test_rows_move_by_their_own_steps():
    rows = torch.arange(1, 11).view(2, 5)
    assert moved(rows, [0, 2], -1).tolist() == [[1, 2, 3, 4, 5], [-1, -1, 6, 7, 8]]
    deep = rows.view(2, 1, 5, 1)
    assert moved(deep, [1, 0], 0, 2).flatten().tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_a_history_moves_with_its_cache(model):
    ids, mask = padded(PROMPTS[:2])
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
    keep_history(output, read_history(ids, {"attention_mask": mask}))
    cache.crop(-1)
    move_history(cache, [0, 2])
    found = read_history(torch.tensor([[1], [2]]), {"past_key_values": cache})
    assert found.tolist() == [[5, 9, 2, 7, 1], [-1, -1, -1, -1, 2]]
    move_history(DynamicCache(), [0, 2])  # nobody keeps one here


def test_what_can_be_cropped(model):
    cache = DynamicCache(config=model.config)
    assert can_crop(model, cache) and can_crop(model, cache, 4)
    assert not can_crop(model, None) and not can_crop(model, StaticCache(config=model.config, max_cache_len=9))
    sliding = DynamicCache(config=MistralConfig(num_hidden_layers=2, sliding_window=4))
    assert can_crop(model, sliding) and not can_crop(model, sliding, 2)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, state_size=2))
    assert not can_crop(mamba, cache)
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2]]), past_key_values=cache, use_cache=True)
    assert can_crop(model, cache) and not can_crop(model, cache, 2), "rows begin with an empty cache"
