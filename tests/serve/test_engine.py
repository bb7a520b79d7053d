"""The engine's queue: who is read together, who waits, and how it ends."""

import threading
import time

import pytest

from nearlm.serve.engine import Engine, end_tokens
from nearlm.serve.errors import APIError
from nearlm.serve.limits import Limits
from nearlm.serve.metrics import Metrics
from nearlm.serve.sampling import Sampling
from nearlm.serve.tasks import Delta, Failure, PromptRead, Wish


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
