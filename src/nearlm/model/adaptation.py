"""Adapt a causal LM to a text in a given time: by LoRA or in all weights, judged on held-out text.

Every learning rate is tried for a few steps; the best goes on from there, with a cosine schedule. The weights that were
best on the held-out text are kept. What is trained depends on the plan, the text and the seed alone: a killed training
resumes from its last state on disk and ends in the same weights.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nearlm.base import QUIET, Ints, Json, ModelError, OptionError, Reporter, check_at_least, files, import_extra
from nearlm.model.adapted_states import WEIGHT, State, States
from nearlm.model.spec import ModelSpec
from nearlm.text import TokenText, fill_batch

_TRIALS = 0.25  # of the time, to try the learning rates
_JUDGING = 0.15  # of the time, to judge on held-out text
_PLANNED = 0.94  # of the time
_JUDGED = 6  # times that the winner is judged
_PATIENCE = 2  # times that it may be worse than before
_WARMUP = 5  # steps
_BETAS = (0.9, 0.95)


@dataclass(frozen=True)
class AdaptOptions:
    """How an LM is adapted: by LoRA of a rank, or in all weights (None); the rates to try; windows in a step."""

    rank: int | None = 16
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    batch: int = 2
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, rank=self.rank, batch=self.batch)
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise OptionError(f"`rates` are {self.rates}, expected numbers above 0")


LORA = AdaptOptions()
FULL = AdaptOptions(rank=None, rates=(3e-5, 1e-4, 3e-4), weight_decay=0.01)


@dataclass(frozen=True)
class AdaptPlan:
    """How many steps each rate is tried and the winner makes in all, from judgement to judgement, on how much text."""

    trial: int
    steps: int
    every: int
    judged: int
    """Windows of the held-out text."""


@dataclass(frozen=True)
class AdaptPace:
    """What was measured: the seconds of a step, and of judging a window."""

    step: float
    window: float

    def plan(self, seconds: float, options: AdaptOptions, windows: int) -> AdaptPlan:
        """Say what can be done in so many seconds, with so many windows to judge on."""
        usable = _PLANNED * seconds
        rates = len(options.rates)
        judgements = rates + _JUDGED + 1
        judged = max(1, min(windows, int(_JUDGING * usable / (judgements * self.window))))
        left = max(0.0, usable - judgements * judged * self.window)
        trial = 0 if rates == 1 else max(1, int(_TRIALS * left / (rates * self.step)))
        spent = max(0, rates - 1) * trial  # the steps of the winner's trial count
        steps = max(trial, 1, int(left / self.step) - spent)
        return AdaptPlan(trial, steps, max(1, (steps - trial) // _JUDGED), judged)


@dataclass(frozen=True)
class Adapted:
    """What an adaptation did: the rate that was chosen, its steps and tokens, and losses on the held-out text."""

    rate: float
    steps: int
    tokens: int
    first_loss: float
    loss: float
    trials: dict[str, float]


class Adaptation:
    """A model that is being adapted to a text, judged on another."""

    def __init__(self, model: nn.Module, train: TokenText, valid: TokenText, options: AdaptOptions = LORA):
        self.options = options
        self.train = train
        self.valid = valid
        self.model: Any = model
        with torch.random.fork_rng():
            torch.manual_seed(options.seed)
            if options.rank is None:
                model.requires_grad_(True)
            else:
                self.model = _with_lora(model, options.rank)
        self.weights = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        self.optimizer = self._new_optimizer()

    def measure(self) -> AdaptPace:
        """Time a step and a judgement, and leave the weights as they were."""
        before = self._state()
        self._step(0, 0.0)
        started = time.perf_counter()
        self._step(1, 0.0)
        stepped = time.perf_counter()
        self.judge(1)
        ended = time.perf_counter()
        self._restore(before)
        return AdaptPace(stepped - started, ended - stepped)

    def run(self, plan: AdaptPlan, folder: Path | None = None, reporter: Reporter = QUIET) -> Adapted:
        """Try the rates, train with the best, and end in the weights that were best on the held-out text.

        With a folder the states on the way are kept there, and an earlier run's are resumed.
        """
        states = States(folder)
        first = self.judge(plan.judged)
        trials = self._try_rates(plan, states, reporter)
        rate = min(trials, key=lambda one: trials[one])
        latest = states.find("latest")
        if latest is None:
            tried = states.get(_trial(rate))
            note = {"step": plan.trial, "best": min(first, trials[rate]), "worse": 0}
            states.keep("best", tried.weights() if trials[rate] < first else states.get("start"))
            latest = State(tried.tensors, note)
        found = self._train(plan, rate, latest, states, reporter)
        self._restore(states.get("best"))  # the model as it was, if nothing was better
        shown = {f"{one:g}": loss for one, loss in trials.items()}
        return Adapted(rate, found["step"], self._count(found["step"]), first, min(first, found["best"]), shown)

    def judge(self, windows: int) -> float:
        """Return the loss per token on some windows of the held-out text, spread evenly."""
        rows = np.unique(np.linspace(0, len(self.valid.windows) - 1, windows).round().astype(np.int64))
        total = 0.0
        count = 0
        self.model.eval()
        with torch.inference_mode():
            for row in rows:
                losses = self._losses(self.valid, row)
                total += float(losses.double().sum())
                count += len(losses)
        return total / count

    def _try_rates(self, plan: AdaptPlan, states: States, reporter: Reporter) -> dict[float, float]:
        """Train for some steps with each rate; return the losses after it."""
        start = states.find("start")
        if start is None:
            start = self._state()
            states.keep("start", start)
        found: dict[float, float] = {}
        for rate in self.options.rates:
            known = states.find(_trial(rate))
            if known is None:
                self._restore(start)
                for step in range(plan.trial):
                    self._step(step, rate * _warmth(step))
                known = self._state({"loss": self.judge(plan.judged)})
                reporter.say(f"rate {rate:g}: loss {known.note['loss']:.4f} after {plan.trial} steps")
                self._keep_best(rate, known, found, states)
            found[rate] = float(known.note["loss"])
        return found

    def _keep_best(self, rate: float, state: State, losses: dict[float, float], states: States) -> None:
        """Keep the weights of the best trial so far only: those of all weights are large."""
        if state.note["loss"] >= min(losses.values(), default=math.inf):
            state = State({}, state.note)
        states.keep(_trial(rate), state)
        for worse, loss in losses.items():
            if state.tensors:
                states.keep(_trial(worse), State({}, {"loss": loss}))

    def _train(self, plan: AdaptPlan, rate: float, latest: State, states: States, reporter: Reporter) -> Json:
        """Go on with one rate until all steps are made, or the held-out text gets worse; return what was noted."""
        self._restore(latest)
        note = dict(latest.note)
        with reporter.bar("adapting", plan.steps, "steps", note["step"]) as advance:
            while note["step"] < plan.steps and note["worse"] < _PATIENCE:
                step = note["step"]
                self._step(step, rate * _warmth(step) * _cosine(step, plan))
                advance(1)
                note["step"] = step + 1
                if (step + 1 - plan.trial) % plan.every and step + 1 < plan.steps:
                    continue
                loss = self.judge(plan.judged)
                better = loss < note["best"]
                note = {**note, "best": min(loss, note["best"]), "worse": 0 if better else note["worse"] + 1}
                if better:
                    states.keep("best", self._state().weights())
                if states.folder is not None:
                    states.keep("latest", self._state(note))
        return note

    def _step(self, step: int, rate: float) -> None:
        """Make one step on the windows that are its own."""
        rows = self._rows(step)
        tokens = int(self.train.windows.targets[rows].sum())
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        for row in rows:  # one at a time: logits of the whole vocabulary are large
            loss = self._losses(self.train, row).sum() / tokens
            if not torch.isfinite(loss):
                raise ModelError(f"the loss is {float(loss)} at step {step}; choose lower `rates`")
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def _losses(self, text: TokenText, row: Any) -> Tensor:
        """Return the loss of every target of a window."""
        device = next(iter(self.weights.values())).device
        batch = fill_batch(text.tokens, text.windows[np.array([row])])
        logits = self.model(input_ids=torch.from_numpy(batch.ids).to(device), use_cache=False).logits
        targets = torch.from_numpy(np.asarray(batch.targets, np.int64)).to(device)
        kept = logits[torch.from_numpy(batch.recorded).to(device)]
        return functional.cross_entropy(kept.float(), targets, reduction="none")

    def _rows(self, step: int) -> Ints:
        """Return the windows of a step: all in an order of chance, then all again in another."""
        count = len(self.train.windows)
        places = step * self.options.batch + np.arange(self.options.batch)
        orders = {}
        for epoch in np.unique(places // count).tolist():
            orders[epoch] = np.random.default_rng((self.options.seed, epoch)).permutation(count)
        return np.array([orders[place // count][place % count] for place in places.tolist()])

    def _count(self, steps: int) -> int:
        """Return how many tokens so many steps have predicted."""
        return sum(int(self.train.windows.targets[self._rows(step)].sum()) for step in range(steps))

    def _new_optimizer(self) -> torch.optim.AdamW:
        how: Any = {"lr": 0.0, "betas": _BETAS, "weight_decay": self.options.weight_decay}
        return torch.optim.AdamW(self.weights.values(), **how)

    def _state(self, note: Json | None = None) -> State:
        """Return a copy of the trained weights and of the optimizer's moments."""
        tensors = {f"{WEIGHT}{name}": weight.detach().clone() for name, weight in self.weights.items()}
        for name, weight in self.weights.items():
            for moment, value in self.optimizer.state.get(weight, {}).items():
                tensors[f"{moment}.{name}"] = value.clone()
        return State(tensors, note or {})

    def _restore(self, state: State) -> None:
        """Take weights and moments from a state."""
        self.optimizer = self._new_optimizer()
        kinds = {name.partition(".")[0] for name in state.tensors if not name.startswith(WEIGHT)}
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(state.tensors[f"{WEIGHT}{name}"])
                known = {kind: state.tensors[f"{kind}.{name}"].clone() for kind in kinds}
                if known:
                    self.optimizer.state[weight] = known


@contextmanager
def adapting_threads(threads: int) -> Iterator[None]:
    """Compute with as many threads as a training began with: other numbers give other roundings."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def save_adapter(model: Any, spec: ModelSpec, folder: Path) -> None:
    """Save a LoRA adapter, whole or not at all, without the place of the model that it was trained for."""
    part = folder.with_name(f"{folder.name}.part")
    files.remove(part)
    for config in model.peft_config.values():
        config.base_model_name_or_path = Path(str(spec.model)).name
    model.save_pretrained(part, save_embedding_layers=False)  # otherwise it asks the hub whether they changed
    files.remove(part / "README.md")
    for path in part.iterdir():
        files.sync_file(path)
    files.remove(folder)
    files.replace(part, folder)


def check_adaptable(spec: ModelSpec) -> None:
    """Refuse, before the work, a model that cannot be adapted, or a machine without peft."""
    import_extra("peft", "LoRA", "peft")
    for name in ("quantization", "adapter"):
        if getattr(spec, name):
            raise OptionError(f"`{name}={getattr(spec, name)!r}` cannot be trained on; name a plain model")


def _with_lora(model: nn.Module, rank: int) -> Any:
    """Put an adapter that changes nothing yet into all linear layers but the head."""
    peft = import_extra("peft", "LoRA", "peft")
    how: Any = {"r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(model, peft.LoraConfig(**how))


def _trial(rate: float) -> str:
    return f"trial-{rate:g}"


def _warmth(step: int) -> float:
    return min(1.0, (step + 1) / _WARMUP)


def _cosine(step: int, plan: AdaptPlan) -> float:
    """Return the share of the rate that is left at a step, once the rates have been tried."""
    done = (step - plan.trial) / max(1, plan.steps - plan.trial)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, done))))
