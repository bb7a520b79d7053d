"""Train a gate's network on traced tokens, and say how well it removes retrievals."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nearlm.base import Doubles, Floats, Ints, OptionError, Reporter, check_at_least
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate_network import LOSSES, GateNetwork, Inputs, capped_lambda, parse_features
from nearlm.mixing.tuning import LAMBDAS

USUAL_FEATURES = "conf,ent,freq,fert"  # on some 10,000 tokens f(c) is learned by heart
MIXED_FEATURES = "conf,ent,suffix"
PAPER_L1 = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0)
HELD_OUT_SHARE = 0.1
SHARES = np.round(np.arange(0.0, 1.005, 0.01), 2)
SURE = 2.0  # standard errors
FEW_TOKENS = 10_000  # fewer teach a network little
TRUSTED_TOKENS = 500  # fewer held-out tokens cannot tell a better λ(c) from one that knows their document
_BLOCKS = 20
_GROUPS = 10  # of tokens, at least, to tell an error from
_FIT_ROWS = 100_000


@dataclass(frozen=True)
class Examples:
    """What a gate learns from, one row per token: f(c), scalar features, log p of the LM and of the neighbours."""

    keys: Floats
    scalars: Floats
    log_lm: Doubles
    log_knn: Doubles

    def __len__(self) -> int:
        return len(self.log_lm)

    def __getitem__(self, rows: Ints) -> "Examples":
        return Examples(self.keys[rows], self.scalars[rows], self.log_lm[rows], self.log_knn[rows])


@dataclass(frozen=True)
class Training:
    """How a gate is trained: objective, features, L1 coefficient, steps of the optimiser, and when to stop."""

    objective: str = "likelihood"
    """likelihood or classify."""
    features: str = "auto"
    """Some of keys,conf,ent,freq,fert,suffix, or all; auto: conf,ent, and suffix with a mixture, else freq,fert."""
    l1: str = "0.05"
    """Weight of the L1 term that makes λ small, or auto."""
    standardise: str = "all"
    """Scale features: all, scalars or none."""
    seed: int = 0
    """Seed of the training."""
    rate: float = 5e-4
    """Learning rate."""
    batch: int = 128
    """Tokens in a batch."""
    epochs: int = 40
    """Most passes over the tokens."""
    patience: int = 5
    """Passes without a better held-out perplexity after which training stops."""

    def __post_init__(self) -> None:
        if self.objective not in LOSSES:
            raise OptionError(f"`objective` is {self.objective!r}, expected one of {', '.join(LOSSES)}")
        check_at_least(0, seed=self.seed)
        check_at_least(1, batch=self.batch, epochs=self.epochs, patience=self.patience)
        if not 0 < self.rate < float("inf"):
            raise OptionError(f"`rate` is {self.rate}, expected more than 0")
        self.inputs(1)
        self.coefficients()

    def inputs(self, dim: int, *, mixed: bool = False) -> Inputs:
        """Return what the network takes in, for context vectors of some width, with a mixture or without."""
        usual = MIXED_FEATURES if mixed else USUAL_FEATURES
        return Inputs(dim, parse_features(usual if self.features == "auto" else self.features), self.standardise)

    def coefficients(self) -> tuple[float, ...]:
        """Return the L1 coefficients to try."""
        if self.l1 == "auto":
            return PAPER_L1
        try:
            value = float(self.l1)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise OptionError(f"`l1` is {self.l1!r}, expected 0 or more, or auto")
        return (value,)


@dataclass(frozen=True)
class Split:
    """Which rows train and which are held out, and whether those are whole documents or, if these are few, blocks.

    `documents` are those of the rows that are held out.
    """

    train: Ints
    held: Ints
    documents: Ints
    unit: str


def split_rows(documents: Ints, seed: int) -> Split:
    """Hold out about a tenth of the tokens: whole documents, or two contiguous blocks of a text with too few."""
    rng = np.random.default_rng(seed)
    rows = np.arange(len(documents))
    sizes = np.bincount(documents)
    goal = HELD_OUT_SHARE * len(documents)
    chosen = []
    total = 0
    for document in rng.permutation(len(sizes)):
        if total + sizes[document] <= 1.25 * goal:
            chosen.append(document)
            total += sizes[document]
        if total >= goal:
            break
    held = np.isin(documents, chosen)
    unit = "documents"
    if total < 0.75 * goal:
        first = int(rng.integers(0, _BLOCKS))
        blocks = (first, (first + _BLOCKS // 2) % _BLOCKS)
        held = np.isin(rows * _BLOCKS // max(len(rows), 1), blocks)
        unit = "blocks"
    if not held.any() or held.all():
        raise OptionError(f"the text has {len(rows)} tokens to predict, too few to hold some out; use more text")
    return Split(rows[~held], rows[held], documents[held], unit)


def best_constant(log_lm: Doubles, log_knn: Doubles) -> float:
    """Return the one λ that predicts some tokens best, to 0.01."""
    return float(min(LAMBDAS, key=lambda lam: perplexity(mix(log_lm, log_knn, lam))))


def thresholds_of(scores: Doubles) -> Doubles:
    """Return, for every percent of retrievals to remove, the score from which on the rest retrieves, [101]."""
    ordered = np.sort(scores)
    at = np.minimum(np.round(SHARES * len(scores)).astype(int), len(scores) - 1)
    cuts: Doubles = ordered[at]
    cuts[0] = -np.inf
    cuts[-1] = np.inf
    return cuts


def standard_error(values: Doubles, documents: Ints) -> float:
    """Return the standard error of a mean over tokens, which are alike within a document, or within a block if few."""
    groups = np.unique(documents, return_inverse=True)[1]
    if len(values) and groups.max() + 1 < _GROUPS:
        groups = np.arange(len(values)) * _GROUPS // len(values)
    return float(np.sqrt(np.sum(np.bincount(groups, values - values.mean()) ** 2)) / len(values))


def half_perplexity(log_lm: Doubles, log_knn: Doubles, lam: float | Doubles, scores: Doubles) -> float:
    """Return the perplexity when the lower half of the scores skips retrieval."""
    return perplexity(mix(log_lm, log_knn, np.where(scores >= np.median(scores), lam, 0.0)))


@dataclass(frozen=True)
class Trained:
    """A trained network, the L1 coefficient it was trained with, and its perplexity at 50 % on what was held out."""

    network: GateNetwork
    l1: float
    perplexity: float
    epochs: int


def train_network(
    inputs: Inputs,
    examples: Examples,
    split: Split,
    l1: float,
    training: Training,
    advance: Callable[[int], None] = lambda count: None,
) -> Trained:
    """Train one network and keep its best state at 50 % pruning of the held-out rows; the same seed, the same network.

    `advance` is told of every epoch's tokens.
    """
    held = examples[split.held]
    constant = best_constant(examples.log_lm[split.train], examples.log_knn[split.train])
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(training.seed)
        rng = np.random.default_rng(training.seed)
        network = GateNetwork(inputs)
        sample = examples[np.sort(rng.permutation(split.train)[:_FIT_ROWS])]
        network.fit(torch.from_numpy(np.array(sample.keys, np.float32)), torch.from_numpy(sample.scalars))
        if training.objective == "likelihood":
            network.begin_at(constant)
        optimiser = torch.optim.Adam(network.parameters(), lr=training.rate)
        best = Trained(copy.deepcopy(network), l1, _held_perplexity(network, held, training, constant), 0)
        for epoch in range(1, training.epochs + 1):
            order = rng.permutation(split.train)
            _train_epoch(network, optimiser, examples, order, l1, training)
            value = _held_perplexity(network, held, training, constant)
            advance(len(order))
            if value < best.perplexity:
                best = Trained(copy.deepcopy(network), l1, value, epoch)
            elif epoch - best.epochs >= training.patience:
                break
    best.network.eval()
    return best


def _train_epoch(
    network: GateNetwork, optimiser: Any, examples: Examples, order: Ints, l1: float, training: Training
) -> None:
    network.train()
    loss = LOSSES[training.objective]
    for start in range(0, len(order), training.batch):
        batch = examples[np.sort(order[start : start + training.batch])]
        columns = (batch.keys, batch.scalars, batch.log_lm, batch.log_knn)
        keys, scalars, log_lm, log_knn = (torch.from_numpy(np.array(column, np.float32)) for column in columns)
        optimiser.zero_grad()
        loss(network(keys, scalars), log_knn, log_lm, l1).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: layers this small only wait for a second, and the result hangs on no core count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _held_perplexity(network: GateNetwork, held: Examples, training: Training, constant: float) -> float:
    log_lam = network.log_weights(held.keys, held.scalars)[:, 0]
    lam = capped_lambda(log_lam) if training.objective == "likelihood" else constant
    return half_perplexity(held.log_lm, held.log_knn, lam, log_lam)


def warn_few(tokens: int, what: str, reporter: Reporter) -> None:
    """Say if a text is short for a gate or mixture to learn from."""
    if tokens < FEW_TOKENS:
        reporter.say(f"warning: {tokens:,} tokens are few to learn from; {FEW_TOKENS:,} or more make a better {what}")
