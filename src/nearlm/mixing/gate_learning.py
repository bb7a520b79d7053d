"""From a validation text to a trained network: trace it, make features, hold some out, train, judge."""

from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from safetensors.torch import save as save_tensors

from nearlm.base import Doubles, FileInfo, Floats, Job, Json, Reporter, blocks, files, to_json
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate_network import GateNetwork, Inputs, capped_lambda, scalar_columns
from nearlm.mixing.gate_training import (
    SHARES,
    SURE,
    TRUSTED_TOKENS,
    Examples,
    Split,
    Trained,
    Training,
    best_constant,
    split_rows,
    standard_error,
    thresholds_of,
    train_network,
    warn_few,
)
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.mixing.mixture_features import NGRAM, Known, Proposal, propose, suffix_features
from nearlm.mixing.network_files import load_network
from nearlm.mixing.ngrams import MAX_N, NGrams, build_ngrams
from nearlm.mixing.traces import Trace
from nearlm.mixing.trained import lasting_hash, search_only
from nearlm.model.lm import LM
from nearlm.store import Datastore, SearchSettings, StoreState, Tuned

FORMAT = 4
_BLOCK = 4096


@dataclass(frozen=True)
class HeldOut:
    """What a network does to tokens that it was not trained on: a perplexity for every percent of skipped searches.

    `errors` are those of the curve, as differences from the constant λ in nats.
    """

    tokens: int
    unit: str
    nlm: float
    constant: float
    gain: float
    gain_error: float
    curve: list[float]
    errors: list[float]
    random: list[float]


@dataclass(frozen=True)
class Verdict:
    """Whether λ(c) is learned or constant, the constant, and the score below which each percent skips retrieval."""

    weight: str
    lam: float
    thresholds: list[float]
    held_out: HeldOut


@dataclass(frozen=True)
class TrainingInfo:
    """How a network was trained, and on how many tokens."""

    objective: str
    seed: int
    rate: float
    batch: int
    epochs: int
    patience: int
    l1: float
    tokens: int


@dataclass(frozen=True)
class GateInfo(Verdict):
    """What `gate.json` says of a gate: what it may be used with, how it was trained, and how well it does.

    `mixture` is the hash of the mixture that it works together with, empty if it chooses λ itself.
    """

    format: int
    mixture: str
    shape: Inputs
    store: str
    search: str
    model: str
    text: str
    settings: SearchSettings
    training: TrainingInfo
    tried: dict[str, float]
    files: dict[str, FileInfo]
    state: StoreState | None = None  # none in older files


@dataclass(frozen=True)
class Looked:
    """What a gate looks up in a store's text: n-grams and longest suffixes, where its features need them."""

    ngrams: NGrams | None = None
    infinigram: InfiniGram | None = None

    @classmethod
    def build(cls, store: Datastore, inputs: Inputs, reporter: Reporter) -> "Looked":
        """Open what is needed, or make it."""
        ngrams = build_ngrams(store, reporter) if inputs.counts else None
        return cls(ngrams, build_infinigram(store, reporter) if inputs.suffix else None)

    @classmethod
    def open(cls, store: Datastore, inputs: Inputs) -> "Looked":
        """Open what is needed."""
        return cls(NGrams.open(store) if inputs.counts else None, InfiniGram.open(store) if inputs.suffix else None)

    @property
    def bytes(self) -> int:
        """The size of all that is looked up."""
        return sum(one.bytes for one in (self.ngrams, self.infinigram) if one is not None)

    def scalars(self, inputs: Inputs, known: Known, proposals: dict[str, Proposal] | None = None) -> Floats:
        """Return the scalar features of contexts; `proposals` are those of a mixture that were asked already."""
        counts = self.ngrams.look_up(known.contexts.last(MAX_N)) if self.ngrams else None
        suffix = None
        if inputs.suffix:
            found = proposals if proposals and NGRAM in proposals else propose((NGRAM,), known, self.infinigram)
            suffix = suffix_features(known, found)
        return scalar_columns(inputs, len(known), known.conf, known.ent, counts, suffix)

    def all_scalars(self, inputs: Inputs, known: Known) -> Floats:
        """Return the scalar features of many contexts, looked up some at a time."""
        return np.concatenate([self.scalars(inputs, known[rows]) for rows in blocks(len(known), _BLOCK)])


@dataclass(frozen=True)
class Ways:
    """Log p of every token without a search and with it: by LM and p_kNN, or, with a mixture, as it mixes."""

    without: Doubles
    searched: Doubles
    mixture: str = ""  # the hash of the mixture


def learn(
    lm: LM, trace: Trace, job: Job, training: Training, tuned: Tuned, reporter: Reporter, ways: Ways | None = None
) -> tuple[GateNetwork, GateInfo]:
    """Train one network for each L1 coefficient and return the best at 50 % pruning, with all there is to say of it."""
    store = trace.retriever.store
    text = trace.lm.text
    inputs = training.inputs(lm.dim, mixed=ways is not None)  # f(c) itself, also of a reduced store
    examples = examples_of(trace, inputs, Looked.build(store, inputs, reporter), tuned, ways)
    split = split_rows(text.documents, training.seed)
    _warn_few(examples, split, reporter)
    made_from: Json = {
        "store": store.checksum,
        "search": lasting_hash(trace.retriever),
        "model": lm.fingerprint(),
        "text": text.sha256,
        "mixture": ways.mixture if ways else "",
    }
    settings = search_only(tuned)
    steps = {name: value for name, value in to_json(training).items() if name != "l1"}  # each has a step of its own
    asked = {"training": steps, "dim": inputs.dim, "settings": to_json(settings), "trace": trace.lm.key}
    job.resume({**made_from, **asked})
    tried = [_train(job, inputs, examples, split, l1, training, reporter) for l1 in training.coefficients()]
    best = min(tried, key=lambda one: one.perplexity)
    verdict = judge(best.network, examples, split, training.objective, tuned.lam or 0.0, mixed=ways is not None)
    if ways is None:
        _warn_constant(verdict, training, reporter)
    return best.network, GateInfo(
        **vars(verdict),
        **made_from,
        state=store.state,
        format=FORMAT,
        shape=inputs,
        settings=settings,
        training=_training_info(training, best, len(split.train)),
        tried={str(one.l1): one.perplexity for one in tried},
        files={},
    )


def _training_info(training: Training, best: Trained, tokens: int) -> TrainingInfo:
    known = {**vars(training), "epochs": best.epochs, "l1": best.l1, "tokens": tokens}
    return TrainingInfo(**{field.name: known[field.name] for field in fields(TrainingInfo)})


def examples_of(
    trace: Trace, inputs: Inputs, looked: Looked, settings: SearchSettings, ways: Ways | None = None
) -> Examples:
    """Turn a trace into what a gate learns from."""
    scalars = looked.all_scalars(inputs, trace.lm.known())
    if ways is None:
        ways = Ways(trace.log_lm, trace.log_p_knn_of(settings))
    return Examples(trace.lm.keys, scalars, ways.without, ways.searched)


def judge(
    network: GateNetwork, examples: Examples, split: Split, objective: str, tuned: float, *, mixed: bool = False
) -> Verdict:
    """Judge a network on what was held out: thresholds, the curve, and whether its λ(c) may be trusted.

    It is, if it predicts enough held-out tokens better than the best constant λ of the training tokens does, by more
    than two standard errors of the difference. With too few tokens the constant is the λ that was tuned. Examples that
    a mixture has `mixed` already have no λ: a token is searched for or not.
    """
    held = examples[split.held]
    enough = len(held) >= TRUSTED_TOKENS
    constant = best_constant(examples.log_lm[split.train], examples.log_knn[split.train]) if enough else tuned
    if mixed:
        constant = 1.0
    log_lam = network.log_weights(held.keys, held.scalars)[:, 0]
    plain = mix(held.log_lm, held.log_knn, constant)
    gain = mix(held.log_lm, held.log_knn, capped_lambda(log_lam)) - plain
    error = standard_error(gain, split.documents)
    better = enough and float(np.mean(gain)) > SURE * error
    learned = objective == "likelihood" and better and not mixed
    lam = capped_lambda(log_lam) if learned else constant
    cuts = thresholds_of(log_lam)
    curve = [mix(held.log_lm, held.log_knn, np.where(log_lam >= cut, lam, 0.0)) for cut in cuts]
    expected = SHARES * float(np.mean(held.log_lm)) + (1 - SHARES) * float(np.mean(plain))
    held_out = HeldOut(
        tokens=len(held),
        unit=split.unit,
        nlm=perplexity(held.log_lm),
        constant=perplexity(plain),
        gain=float(np.mean(gain)),
        gain_error=error,
        curve=[perplexity(logp) for logp in curve],
        errors=[standard_error(logp - plain, split.documents) for logp in curve],
        random=np.exp(-expected).tolist(),
    )
    return Verdict("learned" if learned else "constant", constant, cuts[1:-1].tolist(), held_out)


def _train(
    job: Job, inputs: Inputs, examples: Examples, split: Split, l1: float, training: Training, reporter: Reporter
) -> Trained:
    """Train with one coefficient, or take what an earlier run of the job has trained with it."""
    path = job.folder / f"l1-{l1:g}.safetensors"

    def train() -> tuple[float, int]:
        with reporter.bar(f"training, l1={l1:g}", training.epochs * len(split.train), "tokens") as advance:
            trained = train_network(inputs, examples, split, l1, training, advance)
        reporter.say(f"l1={l1:g}: held-out perplexity {trained.perplexity:.3f} at 50 % skipped, epoch {trained.epochs}")
        files.write_bytes(path, save_tensors(trained.network.state_dict()))
        return trained.perplexity, trained.epochs

    value, epochs = job.once(f"l1-{l1:g}", tuple[float, int], train)
    network = load_network(partial(GateNetwork, inputs), path, f"remove {job.folder} and train the gate again")
    return Trained(network.eval(), l1, value, epochs)


def _warn_few(examples: Examples, split: Split, reporter: Reporter) -> None:
    warn_few(len(examples), "gate", reporter)
    if len(split.held) < TRUSTED_TOKENS:
        reporter.say(
            f"warning: {len(split.held):,} held-out tokens are too few to choose by (at least {TRUSTED_TOKENS}): "
            "λ stays as tuned, and `skip='auto'` skips nothing"
        )
    if split.unit == "blocks":
        reporter.say("the text has too few documents to hold whole ones out; two blocks of it are held out instead")


def _warn_constant(verdict: Verdict, training: Training, reporter: Reporter) -> None:
    held = verdict.held_out
    if training.objective == "likelihood" and verdict.weight == "constant" and held.tokens >= TRUSTED_TOKENS:
        gain = f"gain {held.gain:.4f} ± {held.gain_error:.4f} nats on {held.tokens:,} held-out tokens"
        reporter.say(
            f"warning: the learned λ(c) is not surely better than λ={verdict.lam:g} ({gain}); "
            "λ stays constant, the gate only skips"
        )
