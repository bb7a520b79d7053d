"""Fit an LM's weights to windows of a token stream with transformers' `Trainer`, from checkpoint to checkpoint."""

import contextlib
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nearlm.base import Advance, Int32s, Ints, Reporter, duration, files, size
from nearlm.base.errors import ModelError, OptionError, StoreError, check_at_least
from nearlm.model.pretrained import choose_device
from nearlm.text import Windows

TRAINING_SAVE_SECONDS = 120.0
_LOGIT_BYTES = 64 << 20  # of logits at a time; a larger batch is taken in parts
_STAMP = "sound.json"  # of a checkpoint: written last
_KEPT = 2  # checkpoints
_MEASURED_SECONDS = 10.0
_CHEAP_SECONDS = 6.0  # a checkpoint that takes longer is made less often
_PROGRAM_BYTES = 500 << 20  # of memory for torch and transformers themselves
_IGNORED = -100  # the label of padding


@dataclass(frozen=True)
class Schedule:
    """How an LM is trained: AdamW, windows in random order, a cosine schedule after a warm-up (a share of steps)."""

    window: int = 512
    batch_tokens: int = 4096
    epochs: int = 2
    rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(2, window=self.window)
        check_at_least(1, batch_tokens=self.batch_tokens, epochs=self.epochs)
        check_at_least(0, seed=self.seed)
        if not 0 < self.rate < math.inf:
            raise OptionError(f"`rate` is {self.rate}, expected a number above 0")
        if not 0 <= self.warmup < 1:
            raise OptionError(f"`warmup` is {self.warmup}, expected a share of the steps: 0 or more, below 1")


class TrainingWindows(Dataset[dict[str, Tensor]]):
    """The windows of all epochs, each epoch in an order of its own; a window overlaps the next by one token."""

    def __init__(self, tokens: Int32s, windows: Windows, schedule: Schedule):
        self._tokens = tokens
        self._windows = windows
        self._length = int(windows.inputs.max()) + 1
        orders = (np.random.default_rng((schedule.seed, epoch)) for epoch in range(schedule.epochs))
        self._order: Ints = np.concatenate([order.permutation(len(windows)) for order in orders])
        self.predictions = windows.records * schedule.epochs

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        row = self._order[number]
        start = self._windows.start[row]
        count = self._windows.inputs[row] + 1
        ids = np.zeros(self._length, np.int64)
        labels = np.full(self._length, _IGNORED, np.int64)
        ids[:count] = labels[:count] = self._tokens[start : start + count]
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def count_predicted(self, rows: slice) -> int:
        """Return how many tokens some examples predict."""
        return int(self._windows.inputs[self._order[rows]].sum())


def fit(model: Any, examples: TrainingWindows, schedule: Schedule, folder: Path, reporter: Reporter) -> list[float]:
    """Train with transformers' `Trainer`, from the newest sound checkpoint on; return the loss of every step."""
    from transformers import PrinterCallback, Trainer

    batch = max(1, schedule.batch_tokens // schedule.window)
    rows = _rows_at_once(model, batch, schedule.window)
    steps = -(-len(examples) // batch)
    arguments = _arguments(schedule, rows, batch, steps, folder)
    checkpoint = sound_checkpoint(folder)
    done = int(checkpoint.name.partition("-")[2]) if checkpoint else 0
    _say_needs(model, examples, steps - done, rows * schedule.window, folder, reporter)
    ahead = examples.count_predicted(slice(0, done * batch))
    with reporter.bar("training", examples.predictions, "tokens", ahead) as advance:
        watch = _watch(examples, batch, steps, advance, reporter)
        trainer = Trainer(model, arguments, train_dataset=examples, callbacks=[watch])
        trainer.remove_callback(PrinterCallback)
        # The order is the examples' own, so that it does not hang on a state of chance.
        trainer.get_train_dataloader = lambda: trainer.accelerator.prepare(DataLoader(examples, rows))
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def _arguments(schedule: Schedule, rows: int, batch: int, steps: int, folder: Path) -> Any:
    """Return the trainer's own options."""
    from transformers import TrainingArguments

    gpu = choose_device("auto").type == "cuda"
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=batch // rows,
        num_train_epochs=1,
        learning_rate=schedule.rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(schedule.warmup * steps),
        weight_decay=schedule.weight_decay,
        adam_beta2=0.95,
        seed=schedule.seed,
        use_cpu=not gpu,
        bf16=gpu and torch.cuda.is_bf16_supported(),
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # a batch is the same on every machine
    return arguments


def _watch(examples: TrainingWindows, batch: int, steps: int, advance: Advance, reporter: Reporter) -> Any:
    """Return the trainer's callback: progress, a forecast after the first steps, and checkpoints now and then."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.saved = time.monotonic()
            self.pause = TRAINING_SAVE_SECONDS
            self.began = 0.0
            self.first = 0
            self.told = False

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            step = state.global_step
            now = time.monotonic()
            advance(examples.count_predicted(slice((step - 1) * batch, step * batch)))
            if not self.first:  # the first step is slow and does not count
                self.began = now
                self.first = step
            elif not self.told and now - self.began > _MEASURED_SECONDS:
                self.told = True
                left = (steps - step) * (now - self.began) / (step - self.first)
                reporter.say(f"training takes about {duration(left)} from here on")
            if now - self.saved >= self.pause and step < steps:
                self.saved = now
                control.should_save = True

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **more: Any) -> None:
            if not math.isfinite(logs.get("loss", 0.0)):
                raise ModelError(f"the loss is {logs['loss']} at step {state.global_step}; choose a lower rate")

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            _stamp(Path(args.output_dir) / f"checkpoint-{state.global_step}")
            cost = time.monotonic() - self.saved
            self.saved = time.monotonic()
            self.pause = TRAINING_SAVE_SECONDS * max(1.0, cost / _CHEAP_SECONDS)

    return Watch()


def _stamp(checkpoint: Path) -> None:
    """Put a checkpoint on the disk, note its files' checksums, and let old ones go."""
    names = sorted(path.name for path in checkpoint.iterdir() if path.name != _STAMP)
    for name in names:
        files.sync_file(checkpoint / name)
    files.write_stamped(checkpoint / _STAMP, {"files": {name: files.checksum(checkpoint / name) for name in names}})
    for old in _checkpoints(checkpoint.parent)[_KEPT:]:
        files.remove(old)


def _checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, the newest first."""
    return sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.partition("-")[2]))


def sound_checkpoint(folder: Path) -> Path | None:
    """Return a job's newest checkpoint that is whole, and remove those that are not."""
    for checkpoint in _checkpoints(folder / "checkpoints"):
        with contextlib.suppress(StoreError, OSError):
            listed = files.read_stamped(checkpoint / _STAMP)["files"]
            if all(files.checksum(checkpoint / name) == sha256 for name, sha256 in listed.items()):
                return checkpoint
        files.remove(checkpoint)
    return None


def _rows_at_once(model: Any, batch: int, window: int) -> int:
    """Return how many rows of a batch are computed together: a divisor of it whose logits stay small."""
    most = max(1, _LOGIT_BYTES // (4 * window * model.config.get_text_config().vocab_size))
    return max(rows for rows in range(1, batch + 1) if batch % rows == 0 and rows <= most)


def _say_needs(
    model: Any, examples: TrainingWindows, steps: int, at_once: int, folder: Path, reporter: Reporter
) -> None:
    """Say what a training needs, and refuse a disk that is too small for its checkpoints."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    config = model.config.get_text_config()
    disk = (12 * (_KEPT + 1) + 4) * weights  # weights and two moments a checkpoint; the model
    inside = 20 * config.hidden_size * config.num_hidden_layers + 3 * config.vocab_size
    memory = _PROGRAM_BYTES + 16 * weights + 4 * at_once * inside
    reporter.say(
        f"training {weights / 1e6:,.1f} million weights in {steps:,} steps, {examples.predictions:,} tokens in all; "
        f"needs about {size(memory)} of memory and {size(disk)} of disk"
    )
    free = shutil.disk_usage(folder).free
    if free < disk:
        raise StoreError(f"{folder} has {size(free)} of free disk, training needs {size(disk)}; free some and repeat")
