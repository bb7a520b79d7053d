"""From a validation text to a trained network: trace it, make features, hold some out, train, judge."""

from dataclasses import dataclass, fields

import numpy as np
from safetensors.torch import save as save_tensors

from nearlm.base import FileInfo, Job, Json, Reporter, StoreError, canonical_hash, files, to_json
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.gate_network import GateNetwork, Inputs, capped_lambda, load_network, scalar_columns
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
)
from nearlm.mixing.ngrams import NGrams, build_ngrams
from nearlm.mixing.traces import Trace, trace_lm, trace_search
from nearlm.model.lm import LM
from nearlm.search import Retriever, read_settings, tune_again
from nearlm.store import Datastore, SearchSettings, Tuned
from nearlm.text import Reading, TokenText

FORMAT = 3
FEW_TOKENS = 10_000


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
    """What `gate.json` says of a gate: what it may be used with, how it was trained, and how well it does."""

    format: int
    shape: Inputs
    store: str
    search: str
    model: str
    text: str
    settings: SearchSettings
    training: TrainingInfo
    tried: dict[str, float]
    files: dict[str, FileInfo]


def tuned_settings(store: Datastore, index: str) -> Tuned:
    """Return what was tuned for an index; a gate is trained for just that."""
    tuned = read_settings(store, index)
    if tuned is None:
        raise StoreError(f"index {index!r} of {store.path} has no tuned T and k; {tune_again(store, index)}")
    return tuned


def search_only(settings: SearchSettings) -> SearchSettings:
    """Return the settings that a gate depends on: all of a search, and T."""
    names = ("index", "knn_temperature", "k", "nprobe", "distances")
    return SearchSettings(**{name: getattr(settings, name) for name in names})


def learn(
    lm: LM, trace: Trace, job: Job, training: Training, tuned: Tuned, reporter: Reporter
) -> tuple[GateNetwork, GateInfo]:
    """Train one network for each L1 coefficient and return the best at 50 % pruning, with all there is to say of it."""
    store = trace.retriever.store
    text = trace.lm.text
    inputs = training.inputs(lm.dim)  # f(c) itself, also of a reduced store
    examples = examples_of(trace, inputs, build_ngrams(store, reporter) if inputs.counts else None, tuned)
    split = split_rows(text.documents, training.seed)
    _warn_few(examples, split, reporter)
    made_from: Json = {
        "store": store.checksum,
        "search": search_hash(trace.retriever),
        "model": lm.fingerprint(),
        "text": text.sha256,
    }
    settings = search_only(tuned)
    steps = {name: value for name, value in to_json(training).items() if name != "l1"}  # each has a step of its own
    asked = {"training": steps, "dim": inputs.dim, "settings": to_json(settings), "trace": trace.lm.key}
    job.resume({**made_from, **asked})
    tried = [_train(job, inputs, examples, split, l1, training, reporter) for l1 in training.coefficients()]
    best = min(tried, key=lambda one: one.perplexity)
    verdict = judge(best.network, examples, split, training.objective, tuned.lam or 0.0)
    _warn_constant(verdict, training, reporter)
    return best.network, GateInfo(
        **vars(verdict),
        **made_from,
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


def search_hash(retriever: Retriever) -> str:
    """Return a hash of all that a search depends on."""
    return canonical_hash(retriever.describe())


def trace_for(
    lm: LM, retriever: Retriever, text: TokenText, reading: Reading, settings: SearchSettings, reporter: Reporter
) -> Trace:
    """Trace a text with enough neighbours for a gate's settings, the same trace that tuning reads if possible."""
    k = retriever.used_k(settings.k)
    if retriever.nested:
        k = max(retriever.used_k(), k)
    return trace_search(trace_lm(lm, text, reading, reporter), retriever, k, reporter)


def examples_of(trace: Trace, inputs: Inputs, ngrams: NGrams | None, settings: SearchSettings) -> Examples:
    """Turn a trace into what a gate learns from."""
    counts = ngrams.look_up(trace.lm.contexts()) if ngrams else None
    scalars = scalar_columns(inputs, len(trace.lm), trace.lm.conf, trace.lm.ent, counts)
    return Examples(trace.lm.keys, scalars, trace.log_lm, trace.log_p_knn_of(settings))


def judge(network: GateNetwork, examples: Examples, split: Split, objective: str, tuned: float) -> Verdict:
    """Judge a network on what was held out: thresholds, the curve, and whether its λ(c) may be trusted.

    It is, if it predicts enough held-out tokens better than the best constant λ of the training tokens does, by more
    than two standard errors of the difference. With too few tokens the constant is the λ that was tuned.
    """
    held = examples[split.held]
    enough = len(held) >= TRUSTED_TOKENS
    constant = best_constant(examples.log_lm[split.train], examples.log_knn[split.train]) if enough else tuned
    log_lam = network.log_weights(held.keys, held.scalars)[:, 0]
    plain = mix(held.log_lm, held.log_knn, constant)
    gain = mix(held.log_lm, held.log_knn, capped_lambda(log_lam)) - plain
    error = standard_error(gain, split.documents)
    better = enough and float(np.mean(gain)) > SURE * error
    learned = objective == "likelihood" and better
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
    network = load_network(path, inputs, f"remove {job.folder} and train the gate again")
    return Trained(network.eval(), l1, value, epochs)


def _warn_few(examples: Examples, split: Split, reporter: Reporter) -> None:
    if len(examples) < FEW_TOKENS:
        reporter.say(
            f"warning: {len(examples):,} tokens are few to learn from; {FEW_TOKENS:,} or more make a better gate"
        )
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
