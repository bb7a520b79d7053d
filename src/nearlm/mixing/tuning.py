"""Choose λ, T and k for an index on a validation text, from one trace, in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearlm.base import QUIET, Reporter, StoreError, check_at_least
from nearlm.mixing.equations import Doubles, mix, perplexity
from nearlm.mixing.traces import Trace, trace_search, trace_text
from nearlm.model.lm import AnyModel
from nearlm.search import Retriever, write_settings
from nearlm.store import DEFAULT, AnyStore, Datastore, Tuned
from nearlm.store.model_files import load_lm
from nearlm.text import Texts, TokenText

PAPER_LAMBDAS = tuple(round(0.1 + 0.05 * step, 2) for step in range(17))
LAMBDAS = tuple(round(0.01 * step, 2) for step in range(1, 100))
TEMPERATURES = tuple(float(t) for t in np.round(np.geomspace(0.25, 1024, 25), 3))
KS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, repr=False)
class Tuning:
    """What tuning found on a text: the best setting, the best at each k, and the paper's own protocol."""

    tokens: int
    nlm_perplexity: float
    best: Tuned
    by_k: list[Tuned]
    paper: Tuned
    knn_wins: float
    oracle_perplexity: float

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return what was found, for people."""
        rows = [f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}"]
        rows += [_line(f"k={point.k}", point) for point in self.by_k]
        rows.append(_line("best", self.best) + "  ← kept with the index")
        rows.append(_line("the paper's T=1", self.paper))
        rows.append(
            f"the memory is at least as good as the LM for {self.knn_wins:.0%} of the tokens; "
            f"if one knew which, perplexity would be {self.oracle_perplexity:.3f}"
        )
        return "\n".join(rows)


def tune(
    store: AnyStore,
    text: Texts | TokenText,
    model: AnyModel = None,
    *,
    index: str = DEFAULT,
    nprobe: int | None = None,
    k: int | None = None,
    distances: str = "index",
    stride: int | None = None,
    reporter: Reporter = QUIET,
) -> Tuning:
    """Choose λ, the kNN temperature and k on a validation text, and keep them with the index as its defaults.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        text: Names of texts, or a `TextSource`; it should not be in the store.
        model: The store's model, by default as it was built.
        index: Which index of the store.
        nprobe: Lists that a search looks at, by default the index's.
        k: The most neighbours per token to try, by default 1024.
        distances: Which distances weigh neighbours: of the `index`, exact ones of the `store`, or of its `parent`.
        stride: Tokens from window to window, by default the window.
        reporter: Whom to tell of the progress.

    Example:
        >>> tuning = nearlm.tune("mystore", "valid/")
        >>> 0 < tuning.best.lam < 1
        True
    """
    check_at_least(1, k=k)
    opened = Datastore.open(store)
    _check_keys(opened)
    retriever = Retriever(opened, index, nprobe=nprobe, distances=distances)
    lm_trace = trace_text(load_lm(opened, model), opened, text, reporter, stride=stride)
    most = retriever.used_k(k)
    ks = (most,) if retriever.nested else (most, *(small for small in KS if small < most))
    tuning = tune_traces([trace_search(lm_trace, retriever, one, reporter) for one in ks])
    write_settings(opened, tuning.best)
    return tuning


def _check_keys(store: Datastore) -> None:
    if not len(store):
        learn = f"nearlm gate {store.path} `text=…`, or learn_all()"
        raise StoreError(f"{store.path} has no keys, so nothing can be tuned; learn its weights with: {learn}")


def best_setting(trace: Trace) -> Tuned:
    """Return the best λ and T for all neighbours of a trace."""
    return _best_at(trace, trace.k)


def best_settings(trace: Trace, ks: Sequence[int]) -> list[Tuned]:
    """Return the best λ and T for some numbers of neighbours, most first; with fewer of them T is near that of most."""
    wanted = {min(k, trace.k) for k in ks} if trace.retriever.nested else {trace.k}
    best: list[Tuned] = []
    for k in sorted(wanted, reverse=True):
        best.append(_best_at(trace, k, best[-1].knn_temperature if best else None))
    return best


def paper_setting(trace: Trace) -> Tuned:
    """Return the best λ of the paper's own protocol: T=1, λ from 0.1 to 0.9 in steps of 0.05."""
    return _best_lambda(trace, trace.log_p_knn(1.0), trace.k, 1.0, PAPER_LAMBDAS)


def tune_traces(traces: Sequence[Trace]) -> Tuning:
    """Search λ × T × k over one trace, or over one trace for each k where a smaller k is not part of a larger."""
    log_lm = traces[0].log_lm
    by_k = [_best_at(trace, k) for trace in traces for k in _ks(trace)]
    best = min(by_k, key=lambda one: one.perplexity)
    assert best.k is not None
    chosen = next(trace for trace in traces if trace.k >= best.k and (trace.retriever.nested or trace.k == best.k))
    log_knn = chosen.log_p_knn_of(best)
    return Tuning(
        tokens=len(log_lm),
        nlm_perplexity=perplexity(log_lm),
        best=best,
        by_k=sorted(by_k, key=lambda one: one.k or 0),
        paper=paper_setting(traces[0]),
        knn_wins=float(np.mean(log_knn >= log_lm)),
        oracle_perplexity=perplexity(np.maximum(log_knn, log_lm)),
    )


def _line(label: str, one: Tuned) -> str:
    return f"{label:16}k={one.k:<5} T={one.knn_temperature:<8g} λ={one.lam:<5g} perplexity {one.perplexity:.3f}"


def _ks(trace: Trace) -> list[int]:
    return sorted({*(k for k in KS if k < trace.k), trace.k}) if trace.retriever.nested else [trace.k]


def _best_at(trace: Trace, k: int, near: float | None = None) -> Tuned:
    """Find the best T on a coarse grid (or take one that it is near to) and then around it, and the best λ at each."""
    tried: dict[float, Tuned] = {}

    def at(temperature: float) -> Tuned:
        if temperature not in tried:
            tried[temperature] = _best_lambda(trace, trace.log_p_knn(temperature, k), k, temperature, LAMBDAS)
        return tried[temperature]

    if near is None:
        near = min(TEMPERATURES[::3], key=lambda temperature: at(temperature).perplexity)
    middle = TEMPERATURES.index(near)
    around = TEMPERATURES[max(0, middle - 2) : middle + 3]
    return min((at(temperature) for temperature in around), key=lambda one: one.perplexity)


def _best_lambda(trace: Trace, log_knn: Doubles, k: int, temperature: float, lambdas: Sequence[float]) -> Tuned:
    value, lam = min((perplexity(mix(trace.log_lm, log_knn, lam)), lam) for lam in lambdas)
    return tuned_at(trace, k, temperature, lam, value)


def tuned_at(trace: Trace, k: int, temperature: float, lam: float, value: float) -> Tuned:
    """Return settings with the perplexity that they have on a traced text."""
    text = trace.lm.text
    evidence = Tuned(
        lam=lam,
        knn_temperature=temperature,
        k=k,
        perplexity=value,
        tokens=len(trace.lm),
        text=text.sha256,
        index_hash=trace.retriever.info.hash,
    )
    return evidence.over(trace.retriever.settings)
