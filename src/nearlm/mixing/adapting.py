"""From a validation text to a trained network: trace it, make features, hold some out, train, judge."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from nearlm.base import Job, Json, OptionError, Reporter, StoreError, files
from nearlm.mixing.adaptor_network import AdaptorNetwork, Shape, capped_lambda, scalar_columns
from nearlm.mixing.adaptor_training import (
    PAPER_A,
    SHARES,
    SURE,
    Examples,
    Split,
    Trained,
    Training,
    best_constant,
    pruned_logp,
    split_rows,
    standard_error,
    thresholds_of,
    train_network,
)
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.ngrams import NGrams, build_ngrams, last_tokens
from nearlm.mixing.traces import Reading, TokenText, Trace, read_text, trace_lm, trace_search
from nearlm.model import LM
from nearlm.search import DEFAULT, Retriever, index_folder
from nearlm.store import Datastore

FEW_TOKENS = 10_000
TRUSTED_TOKENS = 500  # fewer held-out tokens cannot tell a better λ(c) from one that knows their document


@dataclass(frozen=True)
class Settings:
    """What a search and its temperature were when an adaptor was trained: it is of no use with others."""

    index: str
    k: int
    temperature: float
    nprobe: int | None
    distances: str

    @classmethod
    def tuned(cls, store: Datastore, index: str) -> "Settings":
        """Read what was tuned for an index."""
        path = index_folder(store, index) / "settings.json"
        if not path.exists():
            again = f"nearlm tune {store.path} --text …{'' if index == DEFAULT else f' --index {index}'}"
            raise StoreError(f"index {index!r} of {store.path} has no tuned T and k; tune it first: {again}")
        found = files.read_stamped(path)
        return cls(index, found["k"], found["temperature"], found["nprobe"], found["distances"])

    def retriever(self, store: Datastore) -> Retriever:
        """Open the index as it was tuned."""
        return Retriever(store, self.index, nprobe=self.nprobe, distances=self.distances)


def learn(
    lm: LM,
    store: Datastore,
    texts: str | Sequence[str] | TokenText,
    job: Job,
    shape: Shape,
    settings: Settings,
    grid: tuple[float, ...],
    training: Training,
    reporter: Reporter,
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
    **corpus_options: Any,
) -> tuple[AdaptorNetwork, Json]:
    """Train one network for each L1 coefficient and return the best at 50 % pruning, with all there is to say of it."""
    reading, retriever = Reading.of_store(store.manifest, stride), settings.retriever(store)
    text = texts
    if not isinstance(text, TokenText):
        text = read_text(text, lm.tokenizer, reading, max_tokens=max_tokens, reporter=reporter, **corpus_options)
    trace = traced(lm, retriever, text, reading, settings, reporter)
    ngrams = build_ngrams(store, reporter) if shape.counts else None
    examples, split = examples_of(trace, shape, ngrams, settings), split_rows(text.documents, training.seed)
    _warn_few(examples, split, reporter)
    made_from = {
        "store": store.manifest["checksum"],
        "search": search_hash(retriever),
        "model": lm.fingerprint(),
        "text": text.sha256,
    }
    plan = {**made_from, "shape": shape.to_json(), "training": asdict(training)}
    plan |= {"settings": asdict(settings), "trace": trace.lm.key}
    if not job.started or job.plan() != plan:
        job.begin(plan)
    tried = [_trained(job, shape, examples, split, a, training, reporter) for a in grid]
    best = min(tried, key=lambda one: one.perplexity)
    described = {
        **made_from,
        "settings": asdict(settings),
        "training": {**asdict(training), "a": best.a, "epochs": best.epochs, "tokens": len(split.train)},
        "tried": {str(one.a): one.perplexity for one in tried},
        **judged(best.network, examples, split, training.objective, tuned_lambda(store, settings.index)),
    }
    _warn_constant(described, training, reporter)
    return best.network, described


def search_hash(retriever: Retriever) -> str:
    """Return a hash of all that a search depends on."""
    return files.canonical_hash(retriever.describe())


def traced(
    lm: LM, retriever: Retriever, text: TokenText, reading: Reading, settings: Settings, reporter: Reporter
) -> Trace:
    """Trace a text with enough neighbours for an adaptor's settings, the same trace that tuning reads if possible."""
    k = max(retriever.default_k(), settings.k) if retriever.nested else settings.k
    return trace_search(trace_lm(lm, text, reading, reporter), retriever, k, reporter)


def examples_of(trace: Trace, shape: Shape, ngrams: NGrams | None, settings: Settings) -> Examples:
    """Turn a trace into what an adaptor learns from."""
    text = trace.lm.text
    counts = ngrams.look_up(last_tokens(text.tokens, text.bounds, text.windows.target_positions)) if ngrams else None
    scalars = scalar_columns(shape, len(trace.lm), trace.lm.conf, trace.lm.ent, counts)
    log_knn = trace.log_p_knn(settings.temperature, settings.k)
    return Examples(trace.lm.keys, scalars, np.asarray(trace.lm.logp, np.float64), log_knn)


def tuned_lambda(store: Datastore, index: str) -> float:
    """Return the λ that was tuned for an index."""
    return float(files.read_stamped(index_folder(store, index) / "settings.json")["lam"])


def judged(network: AdaptorNetwork, examples: Examples, split: Split, objective: str, tuned: float) -> Json:
    """Judge a network on what was held out: thresholds, the curve, and whether its λ(c) may be trusted.

    It is, if it predicts enough held-out tokens better than the best constant λ of the training tokens does, by more
    than two standard errors of the difference. With too few tokens the constant is the λ that was tuned. `errors` are
    those of the curve, as differences from that constant in nats.
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
    cuts = thresholds_of(log_lam)
    lam = capped_lambda(log_lam) if learned else constant
    curve = [pruned_logp(held.log_lm, held.log_knn, lam, log_lam >= cut) for cut in cuts]
    mean_lm, mean_plain = float(np.mean(held.log_lm)), float(np.mean(plain))
    return {
        "weight": "learned" if learned else "constant",
        "lam": constant,
        "thresholds": cuts[1:-1].tolist(),
        "held_out": {
            "tokens": len(held),
            "unit": split.unit,
            "nlm": perplexity(held.log_lm),
            "constant": perplexity(plain),
            "gain": float(np.mean(gain)),
            "gain_error": error,
            "curve": [perplexity(logp) for logp in curve],
            "errors": [standard_error(logp - plain, split.documents) for logp in curve],
            "random": np.exp(-(SHARES * mean_lm + (1 - SHARES) * mean_plain)).tolist(),
        },
    }


def parse_a(a: float | str) -> tuple[float, ...]:
    """Turn the L1 coefficient, or `auto`, into those to try."""
    if a == "auto":
        return PAPER_A
    try:
        value = float(a)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise OptionError(f"--a is {a!r}, expected 0 or more, or auto")
    return (value,)


def _trained(
    job: Job, shape: Shape, examples: Examples, split: Split, a: float, training: Training, reporter: Reporter
) -> Trained:
    """Train with one coefficient, or take what an earlier run of the job has trained with it."""
    step, noted = f"a-{a:g}", job.state(f"a-{a:g}")
    path = job.folder / f"{step}.safetensors"
    if noted:
        network = AdaptorNetwork(shape)
        network.load_state_dict(load_tensors(path.read_bytes()))
        return Trained(network.eval(), a, noted["perplexity"], noted["epochs"])
    with reporter.bar(f"training, a={a:g}", training.epochs * len(split.train), "tokens") as advance:
        trained = train_network(shape, examples, split, a, training, advance)
    reporter.say(f"a={a:g}: held-out perplexity {trained.perplexity:.3f} at 50 % skipped, epoch {trained.epochs}")
    files.write_bytes(path, save_tensors(trained.network.state_dict()))
    job.note(step, {"perplexity": trained.perplexity, "epochs": trained.epochs})
    return trained


def _warn_few(examples: Examples, split: Split, reporter: Reporter) -> None:
    if len(examples) < FEW_TOKENS:
        reporter.say(
            f"warning: {len(examples):,} tokens are few to learn from; {FEW_TOKENS:,} or more make a better adaptor"
        )
    if len(split.held) < TRUSTED_TOKENS:
        reporter.say(
            f"warning: {len(split.held):,} held-out tokens are too few to choose by (at least {TRUSTED_TOKENS}): "
            "λ stays as tuned, and --skip auto skips nothing"
        )
    if split.unit == "blocks":
        reporter.say("the text has too few documents to hold whole ones out; two blocks of it are held out instead")


def _warn_constant(described: Json, training: Training, reporter: Reporter) -> None:
    held = described["held_out"]
    if training.objective == "likelihood" and described["weight"] == "constant" and held["tokens"] >= TRUSTED_TOKENS:
        gain = f"gain {held['gain']:.4f} ± {held['gain_error']:.4f} nats on {held['tokens']:,} held-out tokens"
        reporter.say(
            f"warning: the learned λ(c) is not surely better than λ={described['lam']:g} ({gain}); "
            "λ stays constant, the adaptor only skips"
        )
