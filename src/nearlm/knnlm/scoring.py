"""Scoring tokens with LM and memory, batch by batch, and where the time goes."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nearlm.base import Doubles, Floats, Int32s, Ints
from nearlm.mixing import Memory, back_off, last_tokens, mix, perplexity
from nearlm.model.lm import LM
from nearlm.search import Neighbors
from nearlm.text import SCORE_BATCH_TOKENS, Batch, Windows, fill_batch, plan_batches


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
    """The scores of a batch, their places in the text, and the neighbours of the tokens that retrieved."""

    positions: Ints
    scores: TokenScores
    near: Neighbors | None


class Predicted(NamedTuple):
    """What the LM says of a batch's targets: log p, the queries, its confidence and entropy if a gate needs them."""

    log_lm: Doubles
    queries: Floats
    conf: Floats | None
    ent: Floats | None


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
        """Score windows batch by batch."""
        with ThreadPoolExecutor(1) as pool:
            pending: Future[_Remembered] | None = None
            for rows in plan_batches(windows, batch_tokens):
                here = windows[rows]
                batch = fill_batch(tokens, here)
                contexts = self._contexts(tokens, bounds, here)
                predicted = self._predict(batch)
                if not self._overlaps:
                    yield self._timed(self._remember(here, batch, contexts, predicted))
                    continue
                if pending is not None:
                    yield self._timed(pending.result())
                pending = pool.submit(self._remember, here, batch, contexts, predicted)
            if pending is not None:
                yield self._timed(pending.result())

    @property
    def _overlaps(self) -> bool:
        wished = self.lm.device.type == "cuda" if self.overlap is None else self.overlap
        return wished and self.memory is not None

    def _timed(self, remembered: _Remembered) -> ScoredBatch:
        """Add up the time here: only the caller's thread may change the timer."""
        self.timer.add(remembered.spent)
        return remembered.batch

    def _contexts(self, tokens: Int32s, bounds: Ints, windows: Windows) -> Int32s | None:
        """Return what the gate wants to know of the tokens before the targets, if anything."""
        if self.memory is None or self.memory.gate is None or not self.memory.gate.needs_contexts:
            return None
        started = time.perf_counter()
        contexts = last_tokens(tokens, bounds, windows.target_positions)
        self.timer.gate += time.perf_counter() - started
        return contexts

    def _predict(self, batch: Batch) -> Predicted:
        """Run the LM over a batch."""
        started = time.perf_counter()
        gate = self.memory.gate if self.memory is not None else None
        scores = self.lm.score(batch, statistics=gate is not None and gate.needs_statistics)
        conf, ent = (None if value is None else value.float().cpu().numpy() for value in (scores.conf, scores.ent))
        predicted = Predicted(scores.logp.double().cpu().numpy(), scores.keys.float().cpu().numpy(), conf, ent)
        self.timer.lm += time.perf_counter() - started
        return predicted

    def _remember(self, windows: Windows, batch: Batch, contexts: Int32s | None, predicted: Predicted) -> _Remembered:
        """Search the memory for the tokens that do not skip it, and mix what it says with what the LM said."""
        spent = Timer()
        log_lm = predicted.log_lm
        lam = self._weights(predicted, contexts, spent)
        retrieved = lam > 0
        if self.memory is not None and self.memory.gate is None:
            retrieved[:] = True
        log_knn = np.full(len(log_lm), -np.inf)
        logp = log_lm
        near = None
        if self.memory is not None and retrieved.any():
            started = time.perf_counter()
            near = self.memory.search(predicted.queries[retrieved])
            searched = time.perf_counter()
            log_knn[retrieved] = self.memory.log_p(near, batch.targets[retrieved])
            logp = log_lm.copy()
            logp[retrieved] = mix(
                log_lm[retrieved], back_off(log_knn[retrieved], log_lm[retrieved], near.tokens), lam[retrieved]
            )
            spent.search = searched - started
            spent.mixing = time.perf_counter() - searched
        scores = TokenScores(batch.targets, log_lm, log_knn, logp, lam, retrieved)
        return _Remembered(ScoredBatch(windows.target_positions, scores, near), spent)

    def _weights(self, predicted: Predicted, contexts: Int32s | None, spent: Timer) -> Doubles:
        """Return the λ of every token."""
        count = len(predicted.log_lm)
        if self.memory is None:
            return np.zeros(count)
        if self.memory.gate is None:
            return np.full(count, self.memory.lam)
        started = time.perf_counter()
        lam = self.memory.gate.weights(predicted.queries, predicted.conf, predicted.ent, contexts)
        spent.gate = time.perf_counter() - started
        return lam
