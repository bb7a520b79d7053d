"""The paper's ablations of adaptive retrieval on a test text: masks, weights, features, objectives, the oracle."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nearlm.base import QUIET, Doubles, Job, OptionError, Reporter, canonical_hash, files, to_json
from nearlm.mixing import (
    Examples,
    Gate,
    Inputs,
    Looked,
    Trace,
    Training,
    best_constant,
    cache_text,
    capped_lambda,
    examples_of,
    gate_files,
    mix,
    perplexity,
    split_rows,
    trace_for,
    train_network,
)
from nearlm.model.lm import LM
from nearlm.optimizer import Bench
from nearlm.paper.results import LEARNED, MASK, RANDOM, Ablation, FeatureRow, Oracle, PartSpeed
from nearlm.search import Retriever
from nearlm.store import DEFAULT, Datastore
from nearlm.text import Texts

SKIPPED = tuple(round(0.05 * step, 2) for step in range(21))
PAPER_ROWS = (
    ("keys", "conf", "ent", "freq", "fert"),
    ("keys", "conf", "ent", "fert"),
    ("keys", "conf", "ent", "freq"),
    ("keys", "freq", "fert"),
    ("conf", "ent", "freq", "fert"),
    ("keys",),
)


def ablate(
    lm: LM,
    store: Datastore,
    text: Texts,
    *,
    gate: str = DEFAULT,
    valid: Texts | None = None,
    reporter: Reporter = QUIET,
) -> Ablation:
    """Take a gate apart on a test text, from one trace; with a validation text, train the paper's variants too."""
    store.need_keys()
    trained = Gate.load(store, gate)
    if trained.info.mixture:
        raise OptionError(
            f"gate {gate!r} works with a mixture, expected one that chooses λ itself; train one with: "
            f"nearlm gate {store.path} `text=…` `sources='none'` `gate='paper'`"
        )
    retriever = Retriever.open(store, trained.settings)
    trained.check(retriever, trained.settings, lm.fingerprint())

    def trace_of(wanted: Texts) -> Trace:
        read = cache_text(wanted, lm.tokenizer, store.reading(), reporter)
        return trace_for(lm, retriever, read, store.reading(), trained.settings, reporter)

    test = trace_of(text)
    found = _without_training(lm, trained, test)
    if valid is None:
        return found
    with files.lock(gate_files(store, gate).folder):
        variants = _Variants(store, trained, trace_of(valid), test, reporter)
        rows = [variants.row(features) for features in PAPER_ROWS]
        classified = variants.row(trained.inputs.features, "classify")
        variants.job.close()
    return replace(found, features=rows, objectives={"classification": classified.perplexity})


def _without_training(lm: LM, trained: Gate, test: Trace) -> Ablation:
    examples = examples_of(test, trained.inputs, trained.looked, trained.settings)
    log_lm = examples.log_lm
    log_knn = examples.log_knn
    log_lam = trained.network.log_weights(examples.keys, examples.scalars)[:, 0]
    curves = masks_and_weights(log_lm, log_knn, log_lam, trained.lam)
    best = best_constant(log_lm, log_knn)
    return Ablation(
        tokens=len(examples),
        nlm_perplexity=perplexity(log_lm),
        lam=trained.lam,
        vanilla_perplexity=perplexity(mix(log_lm, log_knn, trained.lam)),
        best_lam=best,
        best_constant_perplexity=perplexity(mix(log_lm, log_knn, best)),
        shares=list(SKIPPED),
        curves=curves,
        skipped=[float(np.mean(log_lam < trained.threshold_at(share))) for share in SKIPPED],
        equal_share=equal_share(curves[LEARNED if trained.learned else MASK], curves[RANDOM][0]),
        oracle=oracle(log_lm, log_knn, trained.lam),
        features=[],
        objectives={},
        speed=_speed(lm, trained, Bench(test.retriever.store, test.lm), test.retriever),
    )


def masks_and_weights(log_lm: Doubles, log_knn: Doubles, log_lam: Doubles, constant: float) -> dict[str, list[float]]:
    """Return perplexities of {random, learned} masks × {constant, learned} λ; a random mask by its expectation."""
    weights: dict[str, float | Doubles] = {"constant": constant, "learned": capped_lambda(log_lam)}
    curves = {}
    for name, lam in weights.items():
        mixed = mix(log_lm, log_knn, lam)
        means = [share * np.mean(log_lm) + (1 - share) * np.mean(mixed) for share in SKIPPED]
        curves[f"random mask, {name} λ"] = [float(np.exp(-mean)) for mean in means]
        curves[f"learned mask, {name} λ"] = by_rank(log_lm, mixed, log_lam)
    return curves


def by_rank(log_lm: Doubles, mixed: Doubles, scores: Doubles) -> list[float]:
    """Return the perplexity when exactly each share with the lowest scores is left to the LM."""
    order = np.argsort(scores, kind="stable")
    saved = np.concatenate(([0.0], np.cumsum((log_lm - mixed)[order])))
    counts = np.round(np.array(SKIPPED) * len(scores)).astype(int)
    return [float(value) for value in np.exp(-(mixed.sum() + saved[counts]) / len(scores))]


def equal_share(values: Sequence[float], vanilla: float) -> float:
    """Return the largest share up to which a curve is no worse than `vanilla`, between its points by a line."""
    above = next((number for number, value in enumerate(values) if value > vanilla), None)
    if above is None:
        return 1.0
    if above == 0:
        return 0.0
    between = slice(above - 1, above + 1)
    return float(np.interp(vanilla, values[between], SKIPPED[between]))


def oracle(log_lm: Doubles, log_knn: Doubles, constant: float) -> Oracle:
    """Return what retrieving only where p_kNN ≥ p_LM would give."""
    wins = log_knn >= log_lm
    return Oracle(
        skipped=float(np.mean(~wins)),
        constant=perplexity(mix(log_lm, log_knn, np.where(wins, constant, 0.0))),
        best=perplexity(np.maximum(log_lm, log_knn)),
    )


class _Variants:
    """Trains variants of a gate on its validation text and tries them on the test; resumes after a kill."""

    def __init__(self, store: Datastore, gate: Gate, valid: Trace, test: Trace, reporter: Reporter):
        self.gate = gate
        self.valid = valid
        self.test = test
        self.reporter = reporter
        self.store = store
        self.split = split_rows(valid.lm.text.documents, gate.info.training.seed)
        self.job = Job(gate_files(store, gate.name).folder, "ablate")
        described = canonical_hash(to_json(gate.info))
        self.job.resume({"gate": described, "valid": valid.lm.key, "test": test.lm.key})

    def row(self, features: tuple[str, ...], objective: str = "likelihood") -> FeatureRow:
        """Return the test's perplexity at every share with some features, trained now or by an earlier run."""
        return self.job.once(f"{objective}-{'-'.join(features)}", FeatureRow, lambda: self._train(features, objective))

    def _train(self, features: tuple[str, ...], objective: str) -> FeatureRow:
        info = self.gate.info.training
        inputs = Inputs(self.gate.inputs.dim, features, self.gate.inputs.standardise)
        examples = self._examples(self.valid, inputs)
        test = self._examples(self.test, inputs)
        training = Training(objective=objective, seed=info.seed)
        with self.reporter.bar(f"training {objective} {'+'.join(features)}", None, "tokens") as advance:
            trained = train_network(inputs, examples, self.split, info.l1, training, advance)
        log_lam = trained.network.log_weights(test.keys, test.scalars)[:, 0]
        lam = capped_lambda(log_lam) if objective == "likelihood" else self.gate.lam
        values = by_rank(test.log_lm, mix(test.log_lm, test.log_knn, lam), log_lam)
        return FeatureRow(list(features), values, trained.epochs)

    def _examples(self, trace: Trace, inputs: Inputs) -> Examples:
        return examples_of(trace, inputs, Looked.build(self.store, inputs, self.reporter), self.gate.settings)


def _speed(lm: LM, gate: Gate, bench: Bench, retriever: Retriever) -> PartSpeed:
    """Time each part alone, warm, and say what tokens/s they add up to at every share."""
    seconds = {
        "lm": bench.lm_seconds(lm),
        "search": 1 / bench.searches_per_second(retriever, gate.settings.k or 1),
        "gate": bench.gate_seconds(gate),
    }
    each = [1 / (seconds["lm"] + seconds["gate"] + (1 - share) * seconds["search"]) for share in SKIPPED]
    return PartSpeed(seconds, each)
