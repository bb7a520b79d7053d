"""Text that an LM writes by itself: drawn from its own distribution, whatever its authors advise."""

import numpy as np
import pytest
import torch

from nearlm.model.lm import LM
from nearlm.model.own_text import NOTHING, write_pieces
from tiny import make_llama, make_tokenizer


@pytest.fixture
def advised():
    """An LM whose authors advise the likeliest token, and never the same one twice."""
    model = make_llama(vocab_size=300)
    advice = {"do_sample": True, "top_k": 1, "repetition_penalty": 5.0, "temperature": 0.2, "max_new_tokens": 1}
    model.generation_config.update(**advice)
    return LM(model, make_tokenizer())


def test_pieces_are_drawn_from_the_models_own_distribution(advised):
    rows = 4000
    pieces = write_pieces(advised, rows, 2, seed=3)
    with torch.inference_mode():
        logits = advised.model(input_ids=torch.tensor([[advised.tokenizer.eos_token_id]])).logits[0, -1].double()
    expected = rows * logits.softmax(-1).numpy()
    found = np.bincount(pieces[:, 0], minlength=len(expected))
    often = expected >= 5
    observed = np.array([*found[often], found[~often].sum()])
    wanted = np.array([*expected[often], expected[~often].sum()])
    freedom = len(wanted) - 1
    assert freedom > 20 and np.sum((observed - wanted) ** 2 / wanted) < freedom + 4 * (2 * freedom) ** 0.5
    assert advised.model.generation_config.top_k == 1  # as it was


def test_a_seed_makes_the_same_pieces_and_another_seed_others(lm):
    state = torch.random.get_rng_state()
    first = write_pieces(lm, 3, 10, seed=1)
    np.testing.assert_array_equal(write_pieces(lm, 3, 10, seed=1), first)
    assert (write_pieces(lm, 3, 10, seed=2) != first).any()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_piece_ends_with_its_end_token_and_nothing_after_it(lm):
    pieces = write_pieces(lm, 200, 40, seed=0)
    end = lm.tokenizer.eos_token_id
    ended = [row for row in pieces if end in row]
    assert len(ended) > 5
    for row in ended:
        at = int(np.argmax(row == end))
        assert (row[:at] != NOTHING).all() and (row[at + 1 :] == NOTHING).all()
    for row in pieces:
        assert end in row or (row != NOTHING).all()


def test_pieces_come_after_all_tokens_that_begin_a_text(advised):
    rows, start = 2000, (7, 9)
    pieces = write_pieces(advised, rows, 1, 3, start)
    with torch.inference_mode():
        logits = advised.model(input_ids=torch.tensor([start])).logits[0, -1].double()
    expected = rows * logits.softmax(-1).numpy()
    found = np.bincount(pieces[:, 0], minlength=len(expected))
    often = expected >= 5
    assert np.sum((found[often] - expected[often]) ** 2 / expected[often]) < often.sum() + 4 * (2 * often.sum()) ** 0.5


def test_the_largest_seed_is_taken(lm):
    assert write_pieces(lm, 1, 3, seed=2**63 + 5).shape == (1, 3)


def test_the_settings_of_a_model_below_an_adapter_are_as_before(lm):
    peft = pytest.importorskip("peft")
    inner = make_llama(vocab_size=300)
    inner.generation_config.update(top_k=1, repetition_penalty=5.0)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    write_pieces(LM(peft.get_peft_model(inner, config), make_tokenizer()), 2, 3, seed=0)
    assert inner.generation_config.repetition_penalty == 5.0
