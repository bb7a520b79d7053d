"""The engine's queue: who is read together, who waits, and how it ends."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from nearlm.knnlm.draft_length import Acceptance, Pace
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.pass_costs import PassCosts
from nearlm.mixing import Memory
from nearlm.model.lm import LM
from nearlm.model.packing import Packing
from nearlm.model.passes import plain_turn
from nearlm.serve import engine as module
from nearlm.serve.engine import Engine, end_tokens
from nearlm.serve.errors import APIError
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.sampling import Sampling
from nearlm.serve.tasks import Delta, Failure, PromptRead, Wish
from tiny import make_llama


@pytest.fixture
def engine(served_lm):
    made = Engine(served_lm, served_lm.tokenizer.decode, Limits(max_batch=4, max_queue=6), Metrics())
    yield made
    made.close(2)


def wish(prompt=(0, 60, 70), tokens=5, **more):
    return Wish(list(prompt), None, tokens, sampling=Sampling(0.0), **more)


def collect(engine, wishes):
    """Submit wishes; return what is told of them, and an event that is set when all is told."""
    told, done = [], threading.Event()
    ends = sum(one.choices for one in wishes)

    def tell(number, event):
        told.append((number, event))
        finished = [e for _, e in told if isinstance(e, Failure) or (isinstance(e, Delta) and e.finish)]
        if len(finished) >= ends:
            done.set()

    return engine.submit(wishes, tell), told, done


def text_of(told, number):
    return "".join(event.text for which, event in told if which == number and isinstance(event, Delta))


def test_tasks_that_come_together_are_read_and_stepped_together(engine, monkeypatch):
    reads, steps = [], []
    real_read, real_step = engine._decoder.read, engine._decoder.step
    monkeypatch.setattr(engine._decoder, "read", lambda r, **o: reads.append(len(r.prompts)) or real_read(r, **o))
    monkeypatch.setattr(engine._decoder, "step", lambda p, t: steps.append(len(t)) or real_step(p, t))
    _ = engine._decoder.together
    reads.clear(), steps.clear()
    _, told, done = collect(engine, [wish(), wish((0, 61)), wish((0, 62, 72, 82), choices=2)])
    engine.start()
    assert done.wait(30)
    assert (reads, steps) == ([3], [4] * 4)
    assert text_of(told, 2)


def test_more_than_fits_waits_its_turn(engine):
    _, told, done = collect(engine, [wish(choices=3), wish(choices=3), wish(choices=4)])
    engine.start()
    assert done.wait(30)
    read = [number for number, event in told if isinstance(event, PromptRead)]
    assert read == [0, 1, 2]
    assert text_of(told, 0) == text_of(told, 1)


def test_a_full_queue_refuses_all_of_a_request(engine):
    collect(engine, [wish(choices=4), wish(choices=4)])
    with pytest.raises(APIError, match="8 continuations wait"):
        engine.submit([wish(), wish(choices=2)], print)
    engine.submit([wish(choices=2)], lambda number, event: None)


def test_closing_finishes_what_runs_and_takes_no_more(engine):
    engine.start()
    _, told, done = collect(engine, [wish(tokens=30)])
    engine.drain()
    with pytest.raises(APIError, match="shutting down"):
        engine.submit([wish()], print)
    engine.close(30)
    assert done.is_set()
    assert told[-1][1].finish == "length"


def test_closing_does_not_wait_for_ever(engine, monkeypatch):
    real = engine._decoder.step
    monkeypatch.setattr(engine._decoder, "step", lambda p, t: time.sleep(0.1) or real(p, t))
    engine.start()
    _, told, done = collect(engine, [wish(tokens=200)])
    time.sleep(0.3)
    engine.close(0.2)
    assert done.wait(1)
    assert told[-1][1].error.code == "shutting_down"


def test_cancelled_tasks_leave_and_others_stay(engine):
    engine.start()
    tasks, _, done = collect(engine, [wish(tokens=200)])
    _, others, ready = collect(engine, [wish(tokens=20)])
    engine.cancel(tasks)
    assert ready.wait(30)
    assert others[-1][1].count == 20
    assert not done.is_set()


def test_end_tokens_are_those_of_generate(served_lm, monkeypatch):
    assert end_tokens(served_lm) == {1}
    monkeypatch.setattr(served_lm.model.generation_config, "eos_token_id", [1, 7])
    assert end_tokens(served_lm) == {1, 7}
    monkeypatch.setattr(served_lm.model.generation_config, "eos_token_id", None)
    assert end_tokens(served_lm) == frozenset()


def test_an_engine_without_work_leaves_the_model_to_others(chatty):
    lm = LM(make_llama(seed=3), chatty)
    lm.packing = Packing("float32")
    engine = Engine(lm, chatty.decode, Limits(max_batch=4, max_queue=6), Metrics())
    engine.start()
    try:
        _, _, done = collect(engine, [wish(), wish((0, 61))])
        assert done.wait(30)
        with plain_turn(lm.model):  # waits until the engine lets go of it
            assert "forward" not in vars(lm.model.lm_head)
    finally:
        engine.close(2)


class Sure(Acceptance):
    """Expects every draft to be accepted, so that all of it is tried."""

    def rates(self, chain):
        return np.ones(len(chain))


@pytest.fixture
def drafting(engine, stores):
    """An engine to which passes over any number of tokens cost the same, and what drafts from each store."""
    engine.prepare_drafts(Memory.open(stores[0]))
    engine._seconds = np.ones(64)
    engine._pace = Pace(engine._seconds)
    return engine, [replace(Drafter.of(store, None), acceptance=Sure()) for store in stores]


def wishes_of(stores, drafters):
    """Prompts of the stores' text, greedy and sampled, with memories and without."""
    memory, bare = Memory.open(stores[0]), Memory.open(stores[1])
    prompts = [stores[1].tokens[at : at + 20 + at // 20].tolist() for at in (0, 40, 90, 150)]
    sampled = Sampling(0.8, 0.9, 5), Sampling(1.0, 1.0, 3)
    each = [(bare, Sampling(0.0)), (memory, sampled[0]), (memory, Sampling(0.0)), (None, sampled[1])]
    return [
        Wish(prompt, asked, 24, sampling=sampling, alternatives=2, neighbors=1, drafter=drafters[asked is not memory])
        for prompt, (asked, sampling) in zip(prompts, each, strict=True)
    ]


def tokens_of(told, number):
    events = [event for which, event in told if which == number and isinstance(event, Delta)]
    return [token for event in events for token in event.tokens]


def test_drafts_change_how_often_the_model_runs_and_nothing_else(drafting, stores, monkeypatch):
    engine, drafters = drafting
    steps = []
    real = engine._decoder.step
    monkeypatch.setattr(engine._decoder, "step", lambda *given: steps.append(given[1]) or real(*given))
    engine.start()
    found = {}
    for chosen in ([None, None], drafters):
        steps.clear()
        told = []
        for wishes in (wishes_of(stores, chosen), wishes_of(stores, chosen)[:1]):  # together, and one alone
            _, here, done = collect(engine, wishes)
            assert done.wait(300)
            told.append([(tokens_of(here, number), text_of(here, number)) for number in range(len(wishes))])
        found[chosen is drafters] = (told, len(steps))
    plain, drafted = found[False], found[True]
    assert drafted[1] < plain[1] == 2 * 23
    for before, after in zip(plain[0], drafted[0], strict=True):
        for (expected, text), (tokens, same) in zip(before, after, strict=True):
            assert same == text and [token.id for token in tokens] == [token.id for token in expected]
            assert [token.logp for token in tokens] == pytest.approx([token.logp for token in expected], abs=1e-9)
            assert [token.trace.p for token in tokens] == pytest.approx([token.trace.p for token in expected], abs=1e-9)
            assert not any(token.trace.drafted for token in expected)
    assert any(token.trace.drafted for token in drafted[0][1][0][0])


def test_a_single_row_is_drafted_for_by_what_passes_were_found_to_take(engine, stores, monkeypatch):
    monkeypatch.setattr(module, "pass_costs", lambda *_: PassCosts((1, 64), (1.0, 1.0)))
    engine.prepare_drafts(Memory.open(stores[0]))
    assert engine._pace.best_length([np.full(9, 0.9)]) == 9


def test_rows_that_are_run_one_by_one_are_not_drafted_for(engine, stores, monkeypatch):
    monkeypatch.setattr(engine._decoder, "together", False)
    engine.prepare_drafts(Memory.open(stores[0]))
    assert not engine._drafting and engine._drafts() == []
