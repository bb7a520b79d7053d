"""Train a mixture's network on a traced text: examples, with searches and without, and the steps of the optimiser."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from nearlm.base import Doubles, Floats, Ints, Reporter
from nearlm.mixing.advice import log_p_of, log_sum, there_of
from nearlm.mixing.candidates import from_neighbors
from nearlm.mixing.equations import perplexity
from nearlm.mixing.gate_training import (
    SURE,
    TRUSTED_TOKENS,
    Split,
    one_thread,
    split_rows,
    standard_error,
    warn_few,
)
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.mixture_features import (
    KNN,
    Bools,
    Proposal,
    columns_with,
    experts_of,
    features_of,
    kind_of,
    name_at,
    propose,
    store_of,
)
from nearlm.mixing.mixture_network import MixtureNetwork, mixture_loss, network_of
from nearlm.mixing.odds import Odds
from nearlm.mixing.traces import LMTrace, Trace
from nearlm.mixing.usual import UsualWeights
from nearlm.store import SearchSettings

_BLOCK = 2048
_BATCH = 256
_RATE = 2e-3
_EPOCHS = 40
_PATIENCE = 5
_FEWEST_OWN = 20  # tokens of the LM's own, some of which can be held out
_SKIPPED = 0.25  # of the tokens are learned from as if they had skipped retrieval


@dataclass(frozen=True)
class Searched:
    """The neighbours of a traced text, and the settings tuned for them."""

    trace: Trace
    tuned: SearchSettings

    @property
    def knn_temperature(self) -> float:
        """The tuned T."""
        return self.tuned.knn_temperature or 1.0


@dataclass(frozen=True)
class Samples:
    """What was made of text that the LM wrote by itself: examples, and the document of each."""

    examples: "MixtureExamples"
    documents: Ints

    def __getitem__(self, rows: Ints) -> "Samples":
        return Samples(self.examples[rows], _renumber(self.documents[rows]))


class StoreSide(NamedTuple):
    """What the sources of one store look at: its ∞-gram and the neighbours of a traced text, if there are any."""

    infinigram: InfiniGram | None
    searched: Searched | None


@dataclass(frozen=True)
class MixtureExamples:
    """What a mixture learns from, one row per token: features, log p of LM and experts, and which of them are there."""

    sources: tuple[str, ...]
    features: Floats
    log_p: Floats
    there: Bools

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Ints) -> "MixtureExamples":
        return MixtureExamples(self.sources, self.features[rows], self.log_p[rows], self.there[rows])

    def without_search(self, rows: Ints | slice = slice(None)) -> "MixtureExamples":
        """Return the examples as they are where some rows skip retrieval."""
        searched = [name for name in self.sources if kind_of(name) == KNN]
        if not searched:
            return self
        features = self.features.copy()
        there = self.there.copy()
        for name in searched:
            for column in columns_with(name, self.sources):
                features[rows, column] = 0
            there[rows, experts_of(self.sources)[name]] = False
        return MixtureExamples(self.sources, features, self.log_p, there)

    def without_features(self, columns: Ints) -> "MixtureExamples":
        """Return the examples without some features: a column that is always 0 teaches nothing, and changes nothing."""
        features = self.features.copy()
        features[:, columns] = 0
        return replace(self, features=features)

    def log_mixture(self, network: MixtureNetwork | UsualWeights | Odds) -> Doubles:
        """Return log p of every token as a network, or the usual rule, mixes it."""
        log_weights = network.log_weights(self.features, self.there)
        return log_sum(log_weights + self.log_p)


def mixture_examples(
    traced: LMTrace,
    sources: tuple[str, ...],
    infinigram: InfiniGram | None,
    searched: Searched | None,
    others: Sequence[StoreSide] = (),
) -> MixtureExamples:
    """Turn a trace into what a mixture learns from, some rows at a time; `others` are sides of further stores."""
    sides = (StoreSide(infinigram, searched), *others)
    text = traced.text
    targets = text.targets
    known = traced.known()
    parts = []
    for start in range(0, len(targets), _BLOCK):
        rows = slice(start, start + _BLOCK)
        here = known[rows]
        found = propose(sources, here, *(side.infinigram for side in sides))
        for number, side in enumerate(sides):
            if name_at(KNN, number) in sources and side.searched is not None:
                near = side.searched.trace.neighbors(rows, side.searched.tuned.k)
                candidates = from_neighbors(near, side.searched.knn_temperature)
                found[name_at(KNN, number)] = Proposal(np.arange(len(here.conf)), candidates)
        log_p = log_p_of(sources, found, traced.logp[rows], targets[rows]).astype(np.float32)
        there = there_of(sources, found, len(here.conf))
        parts.append((features_of(sources, here, found), log_p, there))
    return MixtureExamples(sources, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def train_mixture(
    examples: MixtureExamples,
    split: Split,
    seed: int,
    advance: Callable[[int], None] = lambda count: None,
    odds: Odds | None = None,
) -> MixtureNetwork:
    """Train a network by likelihood and keep its best state on the held-out rows; the same seed, the same network.

    That of several stores begins with what was learned for each alone, if odds are given.
    """
    held = examples[split.held]
    judges = (held, held.without_search())
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        network = network_of(examples.sources)
        network.fit(torch.from_numpy(examples.features[split.train]))
        if odds is not None:
            odds.begin(network)
        optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _EPOCHS, _RATE / 20)
        best, value, since = copy.deepcopy(network), _judge(network, judges), 0
        for _ in range(_EPOCHS):
            _train_epoch(network, optimiser, examples, rng.permutation(split.train), rng)
            schedule.step()
            advance(len(split.train))
            now = _judge(network, judges)
            since += 1
            if now < value:
                best, value, since = copy.deepcopy(network), now, 0
            elif since >= _PATIENCE:
                break
    return best.eval()


@dataclass(frozen=True)
class MixtureVerdict:
    """How well a mixture does on tokens that it was not trained on, and whether it is used.

    `better` says that it predicts enough of them better than the tuned constant λ does, by more than two standard
    errors of the difference (`gain`, in nats). `skipped` is its perplexity when no token is searched for.
    """

    better: bool
    tokens: int
    held_tokens: int
    unit: str
    nlm: float
    constant: float
    searched: float
    skipped: float
    gain: float
    gain_error: float


def learn_mixture(
    examples: MixtureExamples,
    traced: LMTrace,
    constant: Doubles,
    seed: int,
    reporter: Reporter,
    odds: Odds | None = None,
    samples: Samples | None = None,
) -> tuple[MixtureNetwork, MixtureVerdict]:
    """Train a network on nine tenths of a text and judge it on the rest, against log p by what nobody trained.

    What the LM wrote by itself is learned from too, but nothing is judged on it.
    """
    split = split_rows(traced.text.documents, seed)
    warn_few(len(examples), "mixture", reporter)
    joined, both = join_samples(examples, split, samples, seed)
    with reporter.bar("training the mixture", _EPOCHS * len(both.train), "tokens") as advance:
        network = train_mixture(joined, both, seed, advance, odds)
    verdict = judge_mixture(network, examples, split, constant)
    several = any(map(store_of, examples.sources))
    _warn_not_better(verdict, "the weights of each store alone" if several else "one λ", reporter)
    return network, verdict


def _warn_not_better(verdict: MixtureVerdict, than: str, reporter: Reporter) -> None:
    """Say that a mixture is not used by itself, if so."""
    if not verdict.better:
        gain = f"{verdict.gain:.4f} ± {verdict.gain_error:.4f} nats on {verdict.held_tokens:,} held-out tokens"
        reporter.say(f"warning: the mixture is not surely better than {than} ({gain}); it is used only if it is named")


def join_samples(
    examples: MixtureExamples, split: Split, samples: Samples | None, seed: int
) -> tuple[MixtureExamples, Split]:
    """Put what the LM wrote by itself behind the examples of a text, a tenth of it held out to stop by."""
    if samples is None or len(samples.documents) < _FEWEST_OWN:
        return examples, split
    own = split_rows(samples.documents, seed)
    columns = [
        np.concatenate([getattr(one, name) for one in (examples, samples.examples)])
        for name in ("features", "log_p", "there")
    ]
    train = np.concatenate([split.train, len(examples) + own.train])
    held = np.concatenate([split.held, len(examples) + own.held])
    documents = np.concatenate([split.documents, split.documents.max() + 1 + own.documents])
    return MixtureExamples(examples.sources, *columns), Split(train, held, documents, split.unit)


def judge_mixture(
    network: MixtureNetwork, examples: MixtureExamples, split: Split, constant: Doubles
) -> MixtureVerdict:
    """Compare a network on what was held out with log p of one λ for all tokens."""
    held = examples[split.held]
    searched = held.log_mixture(network)
    constant = constant[split.held]
    gain = searched - constant
    error = standard_error(gain, split.documents)
    return MixtureVerdict(
        better=len(held) >= TRUSTED_TOKENS and float(np.mean(gain)) > SURE * error,
        tokens=len(split.train),
        held_tokens=len(held),
        unit=split.unit,
        nlm=perplexity(held.log_p[:, 0].astype(np.float64)),
        constant=perplexity(constant),
        searched=perplexity(searched),
        skipped=perplexity(held.without_search().log_mixture(network)),
        gain=float(np.mean(gain)),
        gain_error=error,
    )


def _judge(network: MixtureNetwork, judges: tuple[MixtureExamples, MixtureExamples]) -> float:
    """Return the perplexity on held-out tokens, searched and not, in the shares that are learned from."""
    searched, skipped = (perplexity(one.log_mixture(network)) for one in judges)
    return float(searched ** (1 - _SKIPPED) * skipped**_SKIPPED)


def _train_epoch(
    network: MixtureNetwork,
    optimiser: torch.optim.Optimizer,
    examples: MixtureExamples,
    order: Ints,
    rng: np.random.Generator,
) -> None:
    network.train()
    for start in range(0, len(order), _BATCH):
        batch = examples[np.sort(order[start : start + _BATCH])]
        batch = batch.without_search(np.flatnonzero(rng.random(len(batch)) < _SKIPPED))
        features, log_p, there = (torch.from_numpy(column) for column in (batch.features, batch.log_p, batch.there))
        optimiser.zero_grad()
        mixture_loss(network(features, there), log_p).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def cross_fit(
    examples: MixtureExamples, documents: Ints, seed: int = 0, samples: Samples | None = None
) -> tuple[Doubles, Doubles]:
    """Return log p of every token with a search and without, each by a network trained on the other half of a text.

    Each learns from half of what the LM wrote by itself, so that its share is what it is in the whole.
    """
    searched = np.empty(len(examples))
    skipped = np.empty(len(examples))
    own = [None, None] if samples is None else [samples[rows] for rows, _ in halves(samples.documents)]
    for (train, rest), half in zip(halves(documents), own, strict=True):
        split = split_rows(_renumber(documents[train]), seed)
        network = train_mixture(*join_samples(examples[train], split, half, seed), seed)
        searched[rest] = examples[rest].log_mixture(network)
        skipped[rest] = examples[rest].without_search().log_mixture(network)
    return searched, skipped


def halves(documents: Ints) -> list[tuple[Ints, Ints]]:
    """Cut the rows of a text into halves of whole documents, the larger first; return (one, other), (other, one)."""
    sizes = np.bincount(documents)
    side = np.zeros(len(sizes), np.int64)
    filled = [0, 0]
    for document in np.argsort(-sizes, kind="stable"):
        side[document] = int(filled[1] < filled[0])
        filled[side[document]] += sizes[document]
    first = side[documents] == 0
    if first.all():  # a single document
        first = np.arange(len(documents)) < len(documents) // 2
    rows = np.arange(len(documents))
    return [(rows[first], rows[~first]), (rows[~first], rows[first])]


def _renumber(documents: Ints) -> Ints:
    return np.unique(documents, return_inverse=True)[1].reshape(-1)
