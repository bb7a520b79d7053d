"""Threads take turns at a model, and those that want the plain LM get it."""

import threading

import pytest
from torch import nn

from nearlm.model.passes import plain_turn, turn


def test_a_turn_within_a_turn_is_ones_own():
    model = nn.Linear(1, 1)
    with turn(model) as plain:
        assert not plain
        with plain_turn(model), turn(model) as plain:
            assert plain
        with turn(model) as plain:
            assert not plain


def test_an_error_ends_the_plain_turn():
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="some error"), plain_turn(model):
        raise ValueError("some error")
    with turn(model) as plain:
        assert not plain


def test_another_thread_waits_and_does_not_get_the_plain_lm():
    model = nn.Linear(1, 1)
    said: list[object] = []

    def other() -> None:
        with turn(model) as plain:
            said.append(plain)

    with plain_turn(model):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        said.append("first")
    thread.join()
    assert said == ["first", False]


def test_other_models_need_no_turn():
    done = threading.Event()

    def other() -> None:
        with turn(nn.Linear(1, 1)):
            done.set()

    with turn(nn.Linear(1, 1)):
        threading.Thread(target=other).start()
        assert done.wait(20)
