"""Choose λ, T and k for an index on a validation text, from one trace, in seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import Json, OptionError, Reporter, files
from nearlm.mixing.equations import mix, perplexity
from nearlm.mixing.traces import Reading, TokenText, Trace, read_text, trace_lm, trace_search
from nearlm.model import LM
from nearlm.search import Retriever, index_folder

PAPER_LAMBDAS = tuple(round(0.1 + 0.05 * step, 2) for step in range(17))
LAMBDAS = tuple(round(0.01 * step, 2) for step in range(1, 100))
TEMPERATURES = tuple(float(t) for t in np.round(np.geomspace(0.25, 1024, 25), 3))
KS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Point:
    """One setting and the perplexity it gives."""

    k: int
    temperature: float
    lam: float
    perplexity: float


@dataclass(frozen=True)
class Tuning:
    """What tuning found on a text: the best setting, the best at each k, and the paper's own protocol."""

    tokens: int
    nlm_perplexity: float
    best: Point
    by_k: list[Point]
    paper: Point
    knn_wins: float
    oracle_perplexity: float

    def table(self) -> str:
        """Return what was found, for people."""
        rows = [f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}"]
        rows += [_line(f"k={point.k}", point) for point in self.by_k]
        rows.append(_line("best", self.best) + "  ← kept with the index")
        rows.append(_line("the paper's T=1", self.paper))
        rows.append(f"the memory is at least as good as the LM for {self.knn_wins:.0%} of the tokens; ")
        rows[-1] += f"if one knew which, perplexity would be {self.oracle_perplexity:.3f}"
        return "\n".join(rows)

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)


def tune(
    lm: LM,
    retriever: Retriever,
    texts: str | Sequence[str],
    *,
    k: int | None = None,
    stride: int | None = None,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Tuning:
    """Tune λ × T × k of an index on a text and save the best with the index, where it becomes the default."""
    if k is not None and k < 1:
        raise OptionError(f"--k is {k}, expected at least 1")
    reading = Reading.of_store(retriever.store.manifest, stride)
    text = read_text(texts, lm.tokenizer, reading, max_tokens=max_tokens, reporter=reporter, **corpus_options)
    lm_trace = trace_lm(lm, text, reading, reporter)
    k = min(k or retriever.default_k(), retriever.max_k)
    traces = [trace_search(lm_trace, retriever, k, reporter)]
    if not retriever.nested:
        traces += [trace_search(lm_trace, retriever, small, reporter) for small in KS if small < k]
    found = tune_traces(traces)
    save_settings(retriever, found.best, text)
    return found


def save_settings(retriever: Retriever, best: Point, text: TokenText) -> None:
    """Keep what was tuned on a text with the index."""
    settings = {**asdict(best), "nprobe": retriever.index.nprobe, "distances": retriever.distances}
    folder = index_folder(retriever.store, retriever.name)
    files.write_stamped(folder / "settings.json", {**settings, "tokens": len(text.targets), "text": text.sha256})


def best_setting(trace: Trace) -> Point:
    """Return the best λ and T for all neighbours of a trace."""
    return _best_at(trace, trace.k, np.asarray(trace.lm.logp, np.float64))


def best_settings(trace: Trace, ks: Sequence[int]) -> list[Point]:
    """Return the best λ and T for some numbers of neighbours, most first; with fewer of them T is near that of most."""
    log_lm = np.asarray(trace.lm.logp, np.float64)
    found: list[Point] = []
    for k in sorted({min(k, trace.k) for k in ks} if trace.retriever.nested else {trace.k}, reverse=True):
        found.append(_best_at(trace, k, log_lm, found[-1].temperature if found else None))
    return found


def paper_setting(trace: Trace) -> Point:
    """Return the best λ of the paper's own protocol: T=1, λ from 0.1 to 0.9 in steps of 0.05."""
    return _best_lambda(np.asarray(trace.lm.logp, np.float64), trace.log_p_knn(1.0), trace.k, 1.0, PAPER_LAMBDAS)


def tune_traces(traces: Sequence[Trace]) -> Tuning:
    """Search λ × T × k over one trace, or over one trace for each k where a smaller k is not part of a larger."""
    log_lm = np.asarray(traces[0].lm.logp, np.float64)
    by_k = [_best_at(trace, k, log_lm) for trace in traces for k in _ks(trace)]
    best = min(by_k, key=lambda point: point.perplexity)
    paper = paper_setting(traces[0])
    chosen = next(trace for trace in traces if trace.k >= best.k and (trace.retriever.nested or trace.k == best.k))
    log_knn = chosen.log_p_knn(best.temperature, best.k)
    return Tuning(
        tokens=len(log_lm),
        nlm_perplexity=perplexity(log_lm),
        best=best,
        by_k=sorted(by_k, key=lambda point: point.k),
        paper=paper,
        knn_wins=float(np.mean(log_knn >= log_lm)),
        oracle_perplexity=perplexity(np.maximum(log_knn, log_lm)),
    )


def _line(label: str, point: Point) -> str:
    return f"{label:16}k={point.k:<5} T={point.temperature:<8g} λ={point.lam:<5g} perplexity {point.perplexity:.3f}"


def _ks(trace: Trace) -> list[int]:
    return sorted({*(k for k in KS if k < trace.k), trace.k}) if trace.retriever.nested else [trace.k]


def _best_at(trace: Trace, k: int, log_lm: npt.NDArray[np.float64], near: float | None = None) -> Point:
    """Find the best T on a coarse grid (or take one that it is near to) and then around it, and the best λ at each."""
    points: dict[float, Point] = {}

    def at(temperature: float) -> Point:
        if temperature not in points:
            log_knn = trace.log_p_knn(temperature, k)
            points[temperature] = _best_lambda(log_lm, log_knn, k, temperature, LAMBDAS)
        return points[temperature]

    coarse = near or min((at(t) for t in TEMPERATURES[::3]), key=lambda point: point.perplexity).temperature
    middle = TEMPERATURES.index(coarse)
    return min((at(t) for t in TEMPERATURES[max(0, middle - 2) : middle + 3]), key=lambda point: point.perplexity)


def _best_lambda(
    log_lm: npt.NDArray[np.float64],
    log_knn: npt.NDArray[np.float64],
    k: int,
    temperature: float,
    lambdas: Sequence[float],
) -> Point:
    scored = [(perplexity(mix(log_lm, log_knn, lam)), lam) for lam in lambdas]
    value, lam = min(scored)
    return Point(k, temperature, lam, value)
