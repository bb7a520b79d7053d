"""Continuations as people ask for them: stop strings, beams, batches, chats, with drafts and without."""

import pytest
import torch
from transformers import GenerationConfig

from calls import load_knnlm
from nearlm.knnlm import generation
from nearlm.knnlm.generation import Continuation
from nearlm.knnlm.pass_costs import PassCosts
from nearlm.knnlm.speculation import Pass

PROMPT = "the licence grants"


@pytest.fixture(autouse=True)
def _free_passes(monkeypatch):
    """Let a pass cost the same over any number of tokens, so that all is drafted that can be."""
    monkeypatch.setattr(generation, "pass_costs", lambda *_: PassCosts((1, 17), (1.0, 1.0)))


def both(knnlm, prompts, **options):
    """Return what is written with drafts, once it is seen that it is what is written without."""
    drafted = knnlm.continuations(prompts, **options)
    plain = knnlm.continuations(prompts, draft=False, **options)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert not any(any(one.drafted) for one in plain)
    return drafted


def test_a_continuation_says_what_was_drafted(bare):
    start = bare.lm.tokenizer.decode(bare.store.tokens[1:40].tolist())
    (made,) = both(bare, [start], max_new_tokens=40, do_sample=False)
    assert len(made.passes) < len(made.tokens) == len(made.drafted) == 40
    assert sum(one.written for one in made.passes) == 40 and made.passes[0] == Pass(0, 1)
    assert sum(made.drafted) == 40 - len(made.passes) and made.tokens_per_pass > 1
    assert made.prompt == bare.prompt_ids(start) and made.seconds > 0 and "per pass" in repr(made)


def test_numbers_of_a_continuation():
    made = Continuation([1], [2, 3, 4, 5], [False, True, True, False], [Pass(0, 1), Pass(3, 3)], 0.5)
    assert (made.tokens_per_pass, made.tokens_per_second) == (2.0, 8.0)
    assert repr(made) == "Continuation(4 tokens at 8.0/s, 2.00 per pass, 2 drafted)"


@pytest.mark.parametrize("given", ["option", "config"])
def test_a_stop_string_inside_a_draft_ends_the_text(bare, given):
    start = bare.lm.tokenizer.decode(bare.store.tokens[1:30].tolist())
    whole = bare.generate(start, max_new_tokens=30, do_sample=False)
    for word in whole.split()[2:6:3]:
        options = {"max_new_tokens": 30, "do_sample": False}
        if given == "option":
            options["stop_strings"] = [word]
        else:
            options = {
                "generation_config": GenerationConfig(stop_strings=word, pad_token_id=1, eos_token_id=1, **options)
            }
        (made,) = both(bare, [start], **options)
        assert bare.lm.tokenizer.decode(made.tokens, skip_special_tokens=True).rstrip().endswith(word)


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"num_return_sequences": 2, "num_beams": 2},
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 3},
        {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=5, pad_token_id=1, eos_token_id=1)},
    ],
    ids=str,
)
def test_what_is_not_written_token_by_token_is_left_to_transformers(knnlm, options):
    made = both(
        knnlm,
        [PROMPT],
        do_sample=False,
        **({"max_new_tokens": 5} | options if "generation_config" not in options else options),
    )
    assert not any(any(one.drafted) for one in made)


def test_a_batch_is_written_together_each_row_with_its_drafts(bare):
    """Rows of unlike lengths; one ends at a stop string within a draft."""
    texts = [bare.lm.tokenizer.decode(bare.store.tokens[at : at + 20 + at // 9].tolist()) for at in (1, 90, 300)]
    options = {"max_new_tokens": 30, "do_sample": False}
    alone = [bare.continuations([text], draft=False, **options)[0].tokens for text in texts]
    made = both(bare, texts, **options)
    assert [one.tokens for one in made] == alone
    assert all(len(one.passes) < len(one.tokens) and any(one.drafted) for one in made)
    word = bare.lm.tokenizer.decode(alone[0]).split()[3]
    stopped = both(bare, texts, stop_strings=[word], **options)
    assert len(stopped[0].tokens) < 30 == max(len(one.tokens) for one in stopped)


def test_a_large_batch_is_left_to_transformers(knnlm, monkeypatch):
    monkeypatch.setattr(generation, "_MOST_ROWS", 1)
    made = both(knnlm, [PROMPT, "free"], max_new_tokens=8, do_sample=False)
    assert all(one.passes == [Pass(0, 1)] * 8 for one in made)


def test_without_memory_the_stores_text_still_drafts(bare):
    plain = load_knnlm(bare.store, bare.lm, knn=False)
    assert plain.drafter.infinigram is not None
    start = plain.lm.tokenizer.decode(bare.store.tokens[1:30].tolist())
    both(plain, [start], max_new_tokens=20, do_sample=False)


def test_a_samples_seed_and_time_limit_work_as_ever(knnlm):
    options = {"max_new_tokens": 10, "do_sample": True, "top_p": 0.9, "max_time": 60.0}
    torch.manual_seed(4)
    drafted = knnlm.generate(PROMPT, **options)
    torch.manual_seed(4)
    assert drafted == knnlm.generate(PROMPT, draft=False, **options)
