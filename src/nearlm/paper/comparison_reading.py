"""How a method reads a text: log p and the likeliest token at every place, and the tokens that it reads in a second."""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from nearlm.base import QUIET, Reporter
from nearlm.knnlm.scoring import Scorer
from nearlm.mixing import Contexts, Known, Memory
from nearlm.model.lm import LM
from nearlm.model.passes import plain_turn
from nearlm.model.statistics import statistics_of
from nearlm.model.tap import capture
from nearlm.paper.continuation import Predictions
from nearlm.text import SCORE_BATCH_TOKENS, Framing, Reading, TokenText, Windows, fill_batch, plan_batches

WINDOW = 512
_ROWS = 64  # of the whole vocabulary at a time
_ROUNDS = 3


def reading_of(lm: LM) -> Reading:
    """Return how all methods read a text, as a store of the model would."""
    window = min(WINDOW, lm.limit or WINDOW)
    return Reading(Framing.of(lm.tokenizer, "eos"), window, window)


class Reader(Protocol):
    """What a method made, ready to read a text."""

    lm: LM

    def predict(self, text: TokenText, reporter: Reporter = QUIET) -> Predictions:
        """Predict every target of a text from what stands before it."""

    def pass_over(self, text: TokenText) -> None:
        """Read a text as at test time: everything that takes time then."""


def tokens_per_second(reader: Reader, text: TokenText) -> float:
    """Time a reader on a text, the median of some rounds after one that warms up."""
    reader.pass_over(text)
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        reader.pass_over(text)
        times.append(time.perf_counter() - started)
    return len(text.targets) / median(times)


class MemoryReader:
    """An LM, with a memory or without."""

    def __init__(self, lm: LM, memory: Memory | None = None):
        self.lm = lm
        self.memory = memory
        lm.packing.prepare(lm.model)
        if memory is not None:
            memory.check_model(lm.fingerprint())
            memory.warm_up()

    def pass_over(self, text: TokenText) -> None:
        """Read a text as at test time."""
        for _ in Scorer(self.lm, self.memory).score(text.tokens, text.bounds, text.windows):
            pass

    def predict(self, text: TokenText, reporter: Reporter = QUIET) -> Predictions:
        """Predict every target of a text from what stands before it."""
        count = text.windows.records
        predicted = Predictions(np.empty(count), np.empty(count, np.bool_))
        places = text.windows.target_positions
        with reporter.bar("reading", count, "tokens") as advance:
            for rows in plan_batches(text.windows, SCORE_BATCH_TOKENS):
                windows = text.windows[rows]
                logp, hit = self._predict(text, windows)
                own = np.searchsorted(places, windows.target_positions)
                predicted.logp[own] = logp
                predicted.hit[own] = hit
                advance(len(own))
        return predicted

    def _predict(self, text: TokenText, windows: Windows) -> tuple[Any, Any]:
        if self.memory is None:
            batch = fill_batch(text.tokens, windows)
            scores = self.lm.score(batch)
            assert scores.top is not None
            return scores.logp.double().cpu().numpy(), scores.top.cpu().numpy() == batch.targets
        parts = [self._mix(*part) for part in self._read(text, windows)]
        logp, hit = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
        return logp, hit

    def _read(self, text: TokenText, windows: Windows) -> Iterator[tuple[Tensor, Any, Known, Tensor]]:
        """Run the LM over windows; yield log p of the vocabulary and what a memory asks for, some rows at a time."""
        lm = self.lm
        batch = fill_batch(text.tokens, windows)
        recorded = torch.from_numpy(batch.recorded)
        contexts = Contexts.of_text(text.tokens, text.bounds, windows.target_positions)
        ids = torch.from_numpy(batch.ids).to(lm.device)
        with torch.inference_mode(), plain_turn(lm.model), lm.packed(), capture(lm.tap, stop=False) as vectors:
            logits = lm.model(input_ids=ids, use_cache=False).logits[recorded]
        keys = vectors[0].reshape(*batch.ids.shape, -1)[recorded].float().cpu().numpy()
        for start in range(0, len(keys), _ROWS):
            rows = slice(start, start + _ROWS)
            log_lm = logits[rows].float().cpu().log_softmax(-1)
            found = statistics_of(log_lm)
            known = Known(found.conf.numpy(), found.ent.numpy(), found.top.int().numpy(), contexts[rows])
            yield log_lm, keys[rows], known, torch.from_numpy(np.asarray(batch.targets[rows])).long()

    def _mix(self, log_lm: Tensor, keys: Any, known: Known, targets: Tensor) -> tuple[Tensor, Tensor]:
        assert self.memory is not None
        log_p = self.memory.predict(keys, known).log_p_vocabulary(log_lm)
        return log_p.gather(1, targets[:, None])[:, 0].double(), log_p.argmax(1) == targets
