"""The adapter of a fit: LoRA on the documents to be stored, judged on held-out ones, before the memory is built."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nearlm.base import Job, OptionError, Reporter, TextError, files
from nearlm.model import ModelSpec
from nearlm.model.adaptation import (
    LORA,
    Adaptation,
    Adapted,
    AdaptPlan,
    adapting_threads,
    check_adaptable,
    save_adapter,
)
from nearlm.model.lm import LM
from nearlm.model.pretrained import load_pretrained
from nearlm.store import BuildOptions
from nearlm.text import Framing, Reading, TextSource, TokenText, read_text


def adapter_folder(store: Path) -> Path:
    """Return where the adapter of a store lies: beside it."""
    return store.absolute().with_name(f"{store.absolute().name}.adapter")


def with_adapter(model: Any, adapter: Path) -> Any:
    """Name the adapter of a store together with its model, if one was trained."""
    if not adapter.is_dir() or model is None or isinstance(model, LM):
        return model
    spec = ModelSpec(model) if isinstance(model, str) else model
    return spec if spec.adapter else replace(spec, adapter=str(adapter))


def spec_of(model: Any) -> ModelSpec:
    """Return what an adapter can be trained for: a model by name; refuse one that is loaded already."""
    if model is None or isinstance(model, LM):
        raise OptionError("`lora` trains an adapter for a model from its files; give `model` by name or folder")
    spec = ModelSpec(model) if isinstance(model, str) else model
    check_adaptable(spec)
    return spec


def reading_of(options: BuildOptions, tokenizer: Any) -> Reading:
    """Return how a text is cut up by a build with these options, all of which are given."""
    framing = Framing.of(tokenizer, options.separator or "eos", options.bos)
    return Reading(framing, options.window or 1, options.stride or 1, bool(options.pack))


def train_adapter(
    spec: ModelSpec,
    texts: tuple[TextSource, TextSource | None],
    reading: Reading,
    seconds: float,
    out: Path,
    job: Job,
    reporter: Reporter,
) -> Adapted:
    """Train an adapter on the first text, judged on the second, within a time; resume it, or find it done."""
    known, unseen = texts
    if unseen is None:
        raise TextError("there is too little text to hold some out, which `lora` needs; give `valid`, or more text")

    def train() -> Adapted:
        model, tokenizer = load_pretrained(replace(spec, dtype="float32"))
        train_text = _read(known, tokenizer, reading, job.folder / "adapter-train")
        valid_text = _read(unseen, tokenizer, reading, job.folder / "adapter-valid")
        adaptation = Adaptation(model, train_text, valid_text, LORA)

        def measure() -> AdaptPlan:
            return adaptation.measure().plan(seconds, LORA, len(valid_text.windows))

        with adapting_threads(job.once("adapter-threads", int, torch.get_num_threads)):
            plan = job.once("adapter-plan", AdaptPlan, measure)
            reporter.say(f"training an adapter: {plan.steps} steps, judged on {plan.judged} windows of held-out text")
            adapted = adaptation.run(plan, job.folder / "adapter-states", reporter)
        save_adapter(adaptation.model, spec, out)
        return adapted

    adapted = job.once("adapted", Adapted, train)
    files.remove(job.folder / "adapter-states")
    return adapted


def say_adapted(adapted: Adapted) -> str:
    """Say what an adapter gained, for people."""
    losses = f"{adapted.first_loss:.3f} → {adapted.loss:.3f}"
    return f"adapter: {adapted.steps} steps at rate {adapted.rate:g}, loss on held-out text {losses}"


def _read(text: TextSource, tokenizer: Any, reading: Reading, folder: Path) -> TokenText:
    folder.mkdir(parents=True, exist_ok=True)
    return read_text(text, tokenizer, reading, folder)
