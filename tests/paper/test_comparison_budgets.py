"""Budgets: how time is counted and shared, what a memory reads in it, which documents it takes."""

import time
from dataclasses import replace

import pytest

from nearlm.base.errors import TextError
from nearlm.model import ModelSpec
from nearlm.optimizer.fit_plan import WAYS, Speed, mixing_seconds, tuning_seconds
from nearlm.paper.comparison_budgets import Task, choose_documents, plan_memory
from nearlm.text import TextSource, passages
from tiny import make_text


def test_time_runs_from_the_beginning_and_is_shared(tmp_path):
    text = TextSource.from_strings("a b")
    task = Task(ModelSpec("m"), text, text, 100.0, tmp_path, started=time.monotonic() - 40)
    assert task.spent == pytest.approx(40, abs=5) and task.left == pytest.approx(60, abs=5)
    assert task.share(0.5).left == pytest.approx(30, abs=5) and task.share(0.5).started == task.started
    assert replace(task, seconds=1.0).left == 0


def test_what_is_planned_takes_the_time_and_not_more():
    speed = Speed(0.002, 4.0)
    for seconds in (120, 480, 1920):
        plan = plan_memory(speed, seconds, keys=True)
        taken = plan.store * speed.seconds + mixing_seconds(plan.valid, WAYS[-1]) + tuning_seconds(plan.valid, speed)
        assert 0.6 * seconds < taken < 0.92 * seconds and 1000 <= plan.valid <= 20_000
    assert plan_memory(speed, 1, keys=True).store == 1000
    assert plan_memory(speed, 120, keys=False).store is None
    assert plan_memory(speed, 120, keys=False).valid > plan_memory(speed, 120, keys=True).valid


def test_documents_are_chosen_by_chance_up_to_the_tokens():
    source = TextSource.from_strings(*(make_text(50, seed=seed) for seed in range(20)))
    whole = [passage.key for passage in passages(source.open())]
    chosen = choose_documents(source, 200, 4.0)
    kept = [passage.key for passage in passages(chosen.open())]
    lengths = {passage.key: len(passage.text) for passage in passages(source.open())}
    assert kept != whole[: len(kept)] and set(kept) == set(sorted(whole)[: len(kept)])
    assert sum(lengths[key] for key in kept) >= 800 > sum(lengths[key] for key in kept) - lengths[max(kept)]
    assert chosen.max_tokens == 200
    with pytest.raises(TextError, match="no document"):
        choose_documents(TextSource.from_strings(), 10, 4.0)
