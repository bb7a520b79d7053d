"""Trainings that take no time, and how to stop them and compare what they made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from nearlm.model.lm import LM
from nearlm.paper import lm_fitting
from nearlm.paper.lm_fitting import Schedule
from nearlm.paper.lm_training import SmallLM
from nearlm.text.windows import fill_batch, plan_windows

TINY = SmallLM(vocabulary=280, dim=16, layers=1, heads=2, mlp=32, window=32, batch_tokens=256, rate=3e-2)


GENTLE = Schedule(window=32, batch_tokens=128, epochs=1, rate=3e-3)


TOKENS = 1200  # for fine-tuning: 10 steps, within the first document


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int, owner: Any = transformers.Trainer, name="training_step"):
    """Stop the program when something is called for the nth time."""
    whole, calls = getattr(owner, name), []

    def call(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == step:
            raise Killed
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


def careful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a checkpoint after every step."""
    monkeypatch.setattr(lm_fitting, "TRAINING_SAVE_SECONDS", 0.0)


def checkpoints(out: Path) -> list[str]:
    found = out.with_name(f"{out.name}.training").glob("train.job/checkpoints/*")
    return sorted((path.name for path in found), key=lambda name: int(name.split("-")[1]))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_model(found: Path, want: Path) -> None:
    ours, theirs = load_file(found / "model.safetensors"), load_file(want / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert contents(found) == contents(want)


def mean_loss(folder: Path, text: str) -> float:
    lm = LM.load(str(folder))
    tokens = np.asarray(lm.tokenizer(text)["input_ids"], np.int32)
    scores = lm.score(fill_batch(tokens, plan_windows(np.array([0, len(tokens)]), 16, 16)))
    return -float(scores.logp.mean())
