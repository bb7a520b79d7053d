"""Fitting: what the steps see, checkpoints, and what is refused."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from trainings import (
    TINY,
    Killed,
    assert_same_model,
    careful,
    checkpoints,
    interrupt,
)

from calls import train_lm
from nearlm.base import files
from nearlm.base.errors import ModelError, StoreError
from nearlm.paper import lm_fitting
from nearlm.paper.lm_fitting import Schedule
from nearlm.text.windows import plan_windows

pytest.importorskip("accelerate")
pytestmark = pytest.mark.usefixtures("quick_collections")


def test_every_token_is_predicted_once_an_epoch() -> None:
    tokens = np.arange(100, dtype=np.int32)
    schedule = Schedule(window=8, epochs=3, seed=5)
    examples = lm_fitting.TrainingWindows(tokens, plan_windows(np.array([0, 100]), 7, 7), schedule)
    rows = len(examples) // 3
    orders = []
    for epoch in range(3):
        items = [examples[number] for number in range(epoch * rows, (epoch + 1) * rows)]
        assert all(torch.equal(item["labels"][:2], item["input_ids"][:2]) for item in items)
        predicted = np.concatenate([item["labels"][1:].numpy() for item in items])
        assert sorted(predicted[predicted >= 0]) == list(range(1, 100))
        orders.append([int(item["input_ids"][0]) for item in items])
    assert len({tuple(order) for order in orders}) == 3
    assert examples.predictions == 3 * 99 == examples.count_predicted(slice(None))


@pytest.mark.parametrize("damage", ["half-written", "flipped", "cut", "both"])
def test_a_damaged_checkpoint_is_passed_over(
    damage: str, text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        careful(patch)
        if damage == "half-written":  # a checkpoint calls it for optimizer, schedule, chance and arguments
            interrupt(patch, 4 * 6 + 2, torch, "save")
        else:
            interrupt(patch, 8)
        train_lm(str(text), out, TINY)
    assert checkpoints(out)[-1] == "checkpoint-7"
    for name in checkpoints(out)[0 if damage == "both" else -1 :]:
        path = tmp_path / "model.training" / "train.job" / "checkpoints" / name / "optimizer.pt"
        if damage == "flipped":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        elif damage != "half-written":
            files.truncate(path, 100)
    with monkeypatch.context() as patch:
        calls = interrupt(patch, -1)
        train_lm(str(text), out, TINY)
    left = files.read_stamped(out / "training.json")["steps"] - len(calls)
    assert left == (0 if damage == "both" else 6)
    assert_same_model(out, trained)


def test_a_loss_that_is_no_number_stops_the_training(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the loss is (nan|inf) at step \d+; choose a lower rate"):
        train_lm(str(text), tmp_path / "model", dataclasses.replace(TINY, rate=1e30, warmup=0.0))


def test_a_small_disk_is_refused_beforehand(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StoreError, match=r"1.0 kB of free disk, training needs \d+.\d kB; free some"):
        train_lm(str(text), tmp_path / "model", TINY)


def test_a_batch_in_parts_is_the_same_batch(
    text: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_fitting, "_LOGIT_BYTES", 2 * 4 * 32 * 280)
    calls = interrupt(monkeypatch, -1)
    out = train_lm(str(text), tmp_path / "model", TINY)
    assert len(calls) > 3.5 * files.read_stamped(out / "training.json")["steps"]
    ours, theirs = load_file(out / "model.safetensors"), load_file(trained / "model.safetensors")
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.02)  # AdamW magnifies rounding
