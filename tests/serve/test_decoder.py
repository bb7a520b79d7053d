"""Rows of unlike lengths in one forward pass: each gets what it gets alone."""

import numpy as np
import pytest
import torch

from nearlm.model.lm import LM
from nearlm.model.packing import Packing
from nearlm.serve.decoder import CHUNK, Decoder, Reading
from tiny import make_llama

PROMPTS = [[5, 9, 2, 7, 11, 30], [4], [8, 8, 3]]


def alone(lm, ids):
    """The logits after a sequence, by one plain forward pass."""
    with torch.inference_mode():
        return lm.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.fixture(scope="module")
def decoder(tokenizer):
    made = Decoder(LM(make_llama(seed=1).double(), tokenizer))
    assert made.together
    return made


def test_rows_join_step_and_leave_as_if_they_were_alone(decoder):
    reading = Reading(PROMPTS[:2])
    said = decoder.read(reading)
    rows = [list(row) for row in PROMPTS[:2]]
    assert all(torch.allclose(said.logits[i], alone(decoder.lm, row)) for i, row in enumerate(rows))
    past = decoder.join(None, [], reading, [1, 2])
    rows.append(list(rows[1]))
    for step in range(70):  # further than the room that is kept
        if step == 3:
            late = Reading([PROMPTS[2]])
            decoder.read(late)
            past = decoder.join(past, [0, 1, 2], late, [1])
            rows.append(list(PROMPTS[2]))
        if step == 6:
            past = decoder.keep(past, [1, 3])
            rows = [rows[1], rows[3]]
        new = [(7 * step + row) % 300 for row in range(len(rows))]
        said = decoder.step(past, new)
        rows = [[*row, token] for row, token in zip(rows, new, strict=True)]
        if step < 10 or step > 66:
            for i, row in enumerate(rows):
                assert torch.allclose(said.logits[i], alone(decoder.lm, row), atol=1e-9)


def test_drafts_of_rows_are_read_and_taken_back(decoder):
    """Each row has as many of its drafted tokens taken back as it likes, and goes on as if they had not been read."""
    reading = Reading(PROMPTS)
    decoder.read(reading)
    past = decoder.join(None, [], reading, [1, 1, 1])
    rows = [list(row) for row in PROMPTS]
    draw = np.random.default_rng(1)
    for _ in range(12):
        drafts = [draw.integers(0, 300, draw.integers(0, 6)).astype(np.int32) for _ in rows]
        new = draw.integers(0, 300, 3).tolist()
        said = decoder.step(past, new, drafts)
        wide = 1 + max(map(len, drafts))
        kept = [int(draw.integers(0, len(draft) + 1)) for draft in drafts]
        for i, row in enumerate(rows):
            for place in range(len(drafts[i]) + 1):
                expected = alone(decoder.lm, [*row, new[i], *drafts[i][:place].tolist()])
                assert torch.allclose(said.logits[i * wide + place], expected, atol=1e-9)
            row += [new[i], *drafts[i][: kept[i]].tolist()]
        past.shrink([wide - 1 - count for count in kept])
        assert past.lengths == [len(row) for row in rows]


def test_a_long_prompt_is_read_in_chunks(tokenizer):
    decoder = Decoder(LM(make_llama(max_position_embeddings=1024).double(), tokenizer))
    ids = [(i * 37) % 300 for i in range(CHUNK + 40)]
    reading = Reading([ids])
    first = decoder.read(reading, every=True)
    assert not reading.done
    last = decoder.read(reading, every=True)
    assert reading.done
    logits = torch.cat([first.logits, last.logits])
    with torch.inference_mode():
        expected = decoder.lm.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    assert torch.allclose(logits, expected, atol=1e-9)


def test_a_model_that_cannot_be_padded_is_run_row_by_row(decoder, monkeypatch):
    single = Decoder(decoder.lm)
    monkeypatch.setattr(single, "together", False)
    past = None
    rows = []
    for prompt in PROMPTS:
        reading = Reading([prompt])
        single.read(reading)
        past = single.join(past, list(range(len(rows))), reading, [2 if prompt is PROMPTS[0] else 1])
        rows += [list(prompt)] * (2 if prompt is PROMPTS[0] else 1)
    past = single.keep(past, [1, 2, 3])
    rows = [[*row, 9] for row in rows[1:]]
    said = single.step(past, [9, 9, 9])
    assert all(torch.allclose(said.logits[i], alone(single.lm, row)) for i, row in enumerate(rows))


def test_mamba_is_run_row_by_row(tokenizer):
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4)
    lm = LM(MambaForCausalLM(config).double().eval(), tokenizer, key_tap="last_hidden")
    decoder = Decoder(lm)
    assert not decoder.together
    reading = Reading([PROMPTS[0]])
    decoder.read(reading)
    past = decoder.join(None, [], reading, [2])
    for token in (7, 9):
        said = decoder.step(past, [token, token + 1])
    expected = alone(lm, [*PROMPTS[0], 8, 10])
    assert torch.allclose(said.logits[1], expected, atol=1e-6)


@pytest.mark.parametrize("weights", ["float32", "float16"])
def test_weights_are_packed_and_left_alone_in_the_end(tokenizer, weights):
    lm = LM(make_llama(seed=1), tokenizer)
    lm.packing = Packing(weights)
    head = lm.model.lm_head
    packed = []
    lm.model.model.register_forward_hook(lambda *_: packed.append("forward" in vars(head)))
    decoder = Decoder(lm)
    assert decoder.together and "forward" not in vars(head)
    packed.clear()
    reading = Reading(PROMPTS)
    decoder.read(reading)
    past = decoder.join(None, [], reading, [1, 1, 1])
    said = decoder.step(past, [7, 7, 7])
    past = decoder.keep(past, [1])
    decoder.step(past, [9])
    assert packed == [True, True, True]
    decoder.rest()
    assert "forward" not in vars(head)
    if weights == "float32":
        assert torch.allclose(said.logits[1], alone(lm, [*PROMPTS[1], 7]), atol=1e-4)
