"""The paper's ablations of adaptive retrieval on a test text: masks, weights, features, objectives, the oracle."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Job, Json, OptionError, Reporter, files
from nearlm.mixing import (
    FEATURES,
    SCORE_BATCH_TOKENS,
    Adaptor,
    Examples,
    Reading,
    Settings,
    Shape,
    Split,
    Trace,
    Training,
    adaptor_folder,
    best_constant,
    build_ngrams,
    capped_lambda,
    examples_of,
    mix,
    perplexity,
    read_text,
    split_rows,
    traced,
    train_network,
)
from nearlm.model import LM
from nearlm.optimizer import TIMED, adaptor_seconds, searches_per_second
from nearlm.paper.results import LEARNED, MASK, RANDOM
from nearlm.search import Retriever
from nearlm.store import Datastore
from nearlm.text import fill_batch, plan_batches

SHARES = tuple(round(0.05 * step, 2) for step in range(21))
PAPER_ROWS = (
    FEATURES,
    ("keys", "conf", "ent", "fert"),
    ("keys", "conf", "ent", "freq"),
    ("keys", "freq", "fert"),
    ("conf", "ent", "freq", "fert"),
    ("keys",),
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ablation:
    """What was found on a text: a perplexity for every share of removed retrievals, row by row."""

    tokens: int
    nlm_perplexity: float
    lam: float
    vanilla_perplexity: float
    best_lam: float
    best_constant_perplexity: float
    shares: tuple[float, ...]
    curves: dict[str, list[float]]
    skipped: list[float]
    equal_share: float
    oracle: Json
    features: list[Json]
    objectives: dict[str, list[float]]
    speed: Json

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)

    def table(self) -> str:
        """Return what was found, for people."""
        rows = [
            f"{self.tokens:,} tokens; perplexity of the LM {self.nlm_perplexity:.3f}, with λ={self.lam:g} "
            f"{self.vanilla_perplexity:.3f}, with the test's own best λ={self.best_lam:g} "
            f"{self.best_constant_perplexity:.3f}",
            f"{'share skipped':28}" + "".join(f"{share:8.0%}" for share in self.shares[::2]),
        ]
        for name, values in {**self.curves, **self.objectives}.items():
            rows.append(f"{name:28}" + "".join(f"{value:8.3f}" for value in values[::2]))
        rows.append(
            f"{'tokens/s, from its parts':28}" + "".join(f"{v:8.0f}" for v in self.speed["tokens_per_second"][::2])
        )
        rows.append(f"the adaptor is as good as λ={self.lam:g} for all up to {self.equal_share:.0%} skipped")
        rows.append(
            f"oracle: {self.oracle['skipped']:.0%} need no memory; perplexity {self.oracle['constant']:.3f} with "
            f"λ={self.lam:g}, {self.oracle['best']:.3f} with the better of the two"
        )
        for row in self.features:
            rows.append(f"  {'+'.join(row['features']):28} at 50 %: {row['perplexity'][10]:.3f}")
        return "\n".join(rows)


def ablate(
    lm: LM,
    store: Datastore,
    texts: str | Sequence[str],
    *,
    adaptor: str = "default",
    valid: Sequence[str] = (),
    valid_tokens: int | None = None,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Ablation:
    """Take an adaptor apart on a test text, from one trace; with a validation text, train the paper's variants too."""
    reporter = reporter or Reporter(quiet=True)
    if valid_tokens is not None and not valid:
        raise OptionError("--valid-tokens cuts the validation text; name it with --valid")
    trained = Adaptor.load(store, adaptor)
    reading, settings = Reading.of_store(store.manifest), trained.settings
    retriever = settings.retriever(store)
    trained.check(retriever, settings.temperature, settings.k, lm.fingerprint())

    def trace_of(wanted: str | Sequence[str], limit: int | None) -> Trace:
        text = read_text(wanted, lm.tokenizer, reading, max_tokens=limit, reporter=reporter, **corpus_options)
        return traced(lm, retriever, text, reading, settings, reporter)

    test = trace_of(texts, max_tokens)
    examples = examples_of(test, trained.shape, trained.ngrams, settings)
    log_lam = trained.network.log_weights(examples.keys, examples.scalars)[:, 0]
    curves = masks_and_weights(examples.log_lm, examples.log_knn, log_lam, trained.lam)
    best = best_constant(examples.log_lm, examples.log_knn)
    rows: list[Json] = []
    objectives: dict[str, list[float]] = {}
    if valid:
        with files.lock(adaptor_folder(store, adaptor)):
            learning = _Learning(store, trained, trace_of(list(valid), valid_tokens), test, reporter)
            rows = [learning.noted(features) for features in PAPER_ROWS]
            objectives["classification"] = learning.noted(trained.shape.features, "classify")["perplexity"]
            learning.job.close()
    return Ablation(
        tokens=len(examples),
        nlm_perplexity=perplexity(examples.log_lm),
        lam=trained.lam,
        vanilla_perplexity=perplexity(mix(examples.log_lm, examples.log_knn, trained.lam)),
        best_lam=best,
        best_constant_perplexity=perplexity(mix(examples.log_lm, examples.log_knn, best)),
        shares=SHARES,
        curves=curves,
        skipped=[float(np.mean(log_lam < trained.threshold(share))) for share in SHARES],
        equal_share=equal_share(curves[LEARNED if trained.learned else MASK], curves[RANDOM][0]),
        oracle=oracle(examples.log_lm, examples.log_knn, trained.lam),
        features=rows,
        objectives=objectives,
        speed=_speed(lm, trained, test, retriever),
    )


def masks_and_weights(log_lm: Floats, log_knn: Floats, log_lam: Floats, constant: float) -> dict[str, list[float]]:
    """Return perplexities of {random, learned} masks × {constant, learned} λ; a random mask by its expectation."""
    weights = {"constant": mix(log_lm, log_knn, constant), "learned": mix(log_lm, log_knn, capped_lambda(log_lam))}
    curves = {}
    for name, mixed in weights.items():
        means = [share * np.mean(log_lm) + (1 - share) * np.mean(mixed) for share in SHARES]
        curves[f"random mask, {name} λ"] = [float(np.exp(-mean)) for mean in means]
        curves[f"learned mask, {name} λ"] = by_rank(log_lm, mixed, log_lam)
    return curves


def by_rank(log_lm: Floats, mixed: Floats, scores: Floats) -> list[float]:
    """Return the perplexity when exactly each share with the lowest scores is left to the LM."""
    order = np.argsort(scores, kind="stable")
    saved = np.concatenate(([0.0], np.cumsum((log_lm - mixed)[order])))
    counts = np.round(np.array(SHARES) * len(scores)).astype(int)
    return [float(value) for value in np.exp(-(mixed.sum() + saved[counts]) / len(scores))]


def equal_share(values: Sequence[float], vanilla: float) -> float:
    """Return the largest share up to which a curve is no worse than `vanilla`, between its points by a line."""
    for number, value in enumerate(values):
        if value > vanilla:
            if number == 0:
                return 0.0
            before = values[number - 1]
            return SHARES[number - 1] + (SHARES[number] - SHARES[number - 1]) * (vanilla - before) / (value - before)
    return 1.0


def oracle(log_lm: Floats, log_knn: Floats, constant: float) -> Json:
    """Return what asking only where p_kNN ≥ p_LM would give."""
    wins = log_knn >= log_lm
    mixed = np.where(wins, mix(log_lm, log_knn, constant), log_lm)
    return {
        "skipped": float(np.mean(~wins)),
        "constant": perplexity(mixed),
        "best": perplexity(np.maximum(log_lm, log_knn)),
    }


class _Learning:
    """Trains variants of an adaptor on its validation text and tries them on the test; goes on after a kill."""

    def __init__(self, store: Datastore, adaptor: Adaptor, valid: Trace, test: Trace, reporter: Reporter):
        self.adaptor, self.valid, self.test, self.reporter = adaptor, valid, test, reporter
        self.ngrams = build_ngrams(store, reporter)
        described = adaptor.described["training"]
        self.a, self.seed = float(described["a"]), int(described["seed"])
        self.split: Split = split_rows(valid.lm.text.documents, self.seed)
        self.job = Job(adaptor_folder(store, adaptor.name), "ablate")
        plan = {"adaptor": files.canonical_hash(adaptor.described), "valid": valid.lm.key, "test": test.lm.key}
        if not self.job.started or self.job.plan() != plan:
            self.job.begin(plan)

    def noted(self, features: tuple[str, ...], objective: str = "likelihood") -> Json:
        """Return what a variant gives, trained now or by an earlier run."""
        step = f"{objective}-{'-'.join(features)}"
        found = self.job.state(step)
        if not found:
            found = self.row(features, objective)
            self.job.note(step, found)
        return found

    def row(self, features: tuple[str, ...], objective: str = "likelihood") -> Json:
        """Train with some features and return the test's perplexity at every share."""
        shape = Shape(self.adaptor.shape.dim, features, self.adaptor.shape.standardise)
        examples, test = self._examples(self.valid, shape), self._examples(self.test, shape)
        with self.reporter.bar(f"training {objective} {'+'.join(features)}", None, "tokens") as advance:
            trained = train_network(shape, examples, self.split, self.a, Training(objective, self.seed), advance)
        log_lam = trained.network.log_weights(test.keys, test.scalars)[:, 0]
        lam = capped_lambda(log_lam) if objective == "likelihood" else self.adaptor.lam
        found = by_rank(test.log_lm, mix(test.log_lm, test.log_knn, lam), log_lam)
        return {"features": list(features), "perplexity": found, "epochs": trained.epochs}

    def _examples(self, trace: Trace, shape: Shape) -> Examples:
        settings: Settings = self.adaptor.settings
        return examples_of(trace, shape, self.ngrams if shape.counts else None, settings)


def _speed(lm: LM, adaptor: Adaptor, trace: Trace, retriever: Retriever) -> Json:
    """Time each part alone and say what tokens/s they add up to at every share."""
    text = trace.lm.text
    batch = fill_batch(text.tokens, text.windows[plan_batches(text.windows, SCORE_BATCH_TOKENS)[0]])
    queries = np.asarray(trace.lm.keys[:TIMED])
    seconds = {
        "lm": _timed(lambda: lm.score(batch), len(batch.targets)),
        "search": 1 / searches_per_second(retriever, queries, adaptor.settings.k),
        "adaptor": adaptor_seconds(adaptor, trace.lm),
    }
    each = [1 / (seconds["lm"] + seconds["adaptor"] + (1 - share) * seconds["search"]) for share in SHARES]
    return {"seconds_per_token": seconds, "tokens_per_second": each}


def _timed(run: Callable[[], object], count: int) -> float:
    """Return the seconds a token of a run takes, the first run not counted."""
    run()
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) / count
