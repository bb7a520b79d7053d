"""Scoring tokens with LM and memory, batch by batch, and where the time goes."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nearlm.base import Array, Doubles, Floats, Int32s, Ints
from nearlm.mixing import Contexts, Known, Memory, Prediction, perplexity
from nearlm.model.lm import LM
from nearlm.search import Neighbors
from nearlm.text import SCORE_BATCH_TOKENS, Batch, Windows, fill_batch, plan_batches

_TOGETHER = 4  # batches of a fast LM that are searched for at once
_SECONDS = 0.5  # that a batch may take: the next of a slower LM are not waited for


@dataclass
class Timer:
    """Where the time of a run went, in seconds."""

    lm: float = 0.0
    gate: float = 0.0
    search: float = 0.0
    mixing: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @property
    def total(self) -> float:
        """Everything since the start."""
        return time.perf_counter() - self.started

    def add(self, spent: "Timer") -> None:
        """Add what was spent elsewhere, in another thread perhaps."""
        for name in ("lm", "gate", "search", "mixing"):
            setattr(self, name, getattr(self, name) + getattr(spent, name))


@dataclass(frozen=True, repr=False)
class TokenScores:
    """Per predicted token, in order: its id, log p of LM, neighbours and mixture, λ, and if it was searched for."""

    tokens: Int32s
    log_lm: Doubles
    log_knn: Doubles
    logp: Doubles
    lam: Doubles
    retrieved: npt.NDArray[np.bool_]

    def __repr__(self) -> str:
        shown = f"perplexity {perplexity(self.logp):.3f}, LM alone {perplexity(self.log_lm):.3f}"
        return f"TokenScores({len(self.tokens):,} tokens: {shown})"


class ScoredBatch(NamedTuple):
    """The scores of a batch, their places in the text, and what the memory said of them, if there is one."""

    positions: Ints
    scores: TokenScores
    prediction: Prediction | None

    @property
    def near(self) -> Neighbors | None:
        """The neighbours of the tokens that retrieved."""
        return self.prediction.near if self.prediction is not None else None


class LMStatistics(NamedTuple):
    """Max p of the LM, its entropy and its likeliest token, of each position."""

    conf: Floats
    ent: Floats
    top: Int32s


class Predicted(NamedTuple):
    """What the LM says of a batch's targets: log p, the queries, and statistics if the memory needs them."""

    log_lm: Doubles
    queries: Floats
    statistics: LMStatistics | None

    @classmethod
    def join(cls, parts: "Sequence[Predicted]") -> "Predicted":
        """Put several together."""
        log_lm, queries, statistics = zip(*parts, strict=True)
        known = None
        if statistics[0] is not None:
            known = LMStatistics(*(np.concatenate(column) for column in zip(*statistics, strict=True)))
        return cls(np.concatenate(log_lm), np.concatenate(queries), known)


class _Read(NamedTuple):
    """What the LM has read: which windows, their targets, and what it says of these."""

    rows: Ints
    targets: Int32s
    predicted: Predicted

    @classmethod
    def join(cls, parts: "list[_Read]") -> "_Read":
        """Put several together."""
        if len(parts) == 1:
            return parts[0]
        rows, targets, predicted = zip(*parts, strict=True)
        return cls(np.concatenate(rows), np.concatenate(targets), Predicted.join(predicted))


class _Remembered(NamedTuple):
    """What the memory made of a batch, and the time that it took."""

    batch: ScoredBatch
    spent: Timer


@dataclass(frozen=True)
class Scorer:
    """Scores windows of a text with an LM and, unless it is None, a memory."""

    lm: LM
    memory: Memory | None
    timer: Timer = field(default_factory=Timer)
    overlap: bool | None = None
    """Whether the search for one batch overlaps the LM's pass over the next; None: on a GPU."""

    def score(
        self, tokens: Int32s, bounds: Ints, windows: Windows, batch_tokens: int = SCORE_BATCH_TOKENS
    ) -> Iterator[ScoredBatch]:
        """Score windows, some batches of a fast LM at a time: every list that they probe is then read once for all."""
        with ThreadPoolExecutor(1) as pool:
            pending: Future[_Remembered] | None = None
            for read in self._read(tokens, windows, batch_tokens):
                here = windows[read.rows]
                contexts = self._contexts(tokens, bounds, here)
                if not self._overlaps:
                    yield self._timed(self._remember(here, read, contexts))
                    continue
                if pending is not None:
                    yield self._timed(pending.result())
                pending = pool.submit(self._remember, here, read, contexts)
            if pending is not None:
                yield self._timed(pending.result())

    def _read(self, tokens: Int32s, windows: Windows, batch_tokens: int) -> Iterator[_Read]:
        """Run the LM over windows; what it says of several batches is returned together if that does not take long."""
        parts: list[_Read] = []
        started = time.perf_counter()
        for rows in plan_batches(windows, batch_tokens):
            batch = fill_batch(tokens, windows[rows])
            parts.append(_Read(rows, batch.targets, self._predict(batch)))
            if len(parts) == _TOGETHER or time.perf_counter() - started > _SECONDS:
                yield _Read.join(parts)
                parts = []
                started = time.perf_counter()
        if parts:
            yield _Read.join(parts)

    @property
    def _overlaps(self) -> bool:
        wished = self.lm.device.type == "cuda" if self.overlap is None else self.overlap
        return wished and self.memory is not None

    def _timed(self, remembered: _Remembered) -> ScoredBatch:
        """Add up the time here: only the caller's thread may change the timer."""
        self.timer.add(remembered.spent)
        return remembered.batch

    def _contexts(self, tokens: Int32s, bounds: Ints, windows: Windows) -> Contexts | None:
        """Return what the memory wants to know of the tokens before the targets, if anything."""
        if self.memory is None or not self.memory.needs_contexts:
            return None
        return Contexts.of_text(tokens, bounds, windows.target_positions)

    def _predict(self, batch: Batch) -> Predicted:
        """Run the LM over a batch."""
        started = time.perf_counter()
        wanted = self.memory is not None and self.memory.needs_statistics
        scores = self.lm.score(batch, statistics=wanted)
        statistics = (
            LMStatistics(*(as_array(value) for value in (scores.conf, scores.ent, scores.top))) if wanted else None
        )
        predicted = Predicted(scores.logp.double().cpu().numpy(), scores.keys.float().cpu().numpy(), statistics)
        self.timer.lm += time.perf_counter() - started
        return predicted

    def _remember(self, windows: Windows, read: _Read, contexts: Contexts | None) -> _Remembered:
        """Ask the memory, and mix what it says with what the LM said."""
        spent = Timer()
        targets = read.targets
        predicted = read.predicted
        log_lm = predicted.log_lm
        count = len(log_lm)
        if self.memory is None:
            nothing = np.zeros(count)
            scores = TokenScores(targets, log_lm, np.full(count, -np.inf), log_lm, nothing, np.zeros(count, np.bool_))
            return _Remembered(ScoredBatch(windows.target_positions, scores, None), spent)
        known = Known.of(predicted.statistics, contexts, count)
        prediction = self.memory.predict(predicted.queries, known)
        started = time.perf_counter()
        log_knn, logp = prediction.score(log_lm, targets)
        spent.gate, spent.search, mixing = prediction.spent
        spent.mixing = mixing + time.perf_counter() - started
        scores = TokenScores(targets, log_lm, log_knn, logp, prediction.lam, prediction.retrieved)
        return _Remembered(ScoredBatch(windows.target_positions, scores, prediction), spent)


def as_array(values: Tensor | None) -> Array:
    """Return numbers of the LM as a memory takes them: float32 or int32."""
    assert values is not None
    return (values.float() if values.is_floating_point() else values.int()).cpu().numpy()
