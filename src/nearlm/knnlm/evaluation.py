"""Perplexity and speed of a kNN-LM, or of its LM alone, over a text."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nearlm.base import QUIET, Doubles, OptionError, Reporter
from nearlm.knnlm.knnlm import KNNLM
from nearlm.knnlm.scoring import Scorer, Timer
from nearlm.model.lm import AnyModel
from nearlm.store import AnyStores, SearchSettings
from nearlm.text import SCORE_BATCH_TOKENS, Texts, TokenText, read_once


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How well and how fast a text was predicted, and where the time went (shares of the whole)."""

    perplexity: float
    nlm_perplexity: float
    word_perplexity: float
    bits_per_byte: float
    tokens: int
    words: int
    bytes: int
    retrievals: int
    tokens_per_second: float
    retrievals_per_second: float | None
    seconds: float
    lm_share: float
    gate_share: float
    search_share: float
    mixing_share: float
    rest_share: float
    skipped: float
    gate_microseconds: float | None
    search: SearchSettings

    def __repr__(self) -> str:
        skipped = f", {self.skipped:.0%} skip retrieval" if self.search.index is not None else ""
        return (
            f"Evaluation(perplexity {self.perplexity:.3f}, LM alone {self.nlm_perplexity:.3f}; "
            f"{self.bits_per_byte:.4f} bits per byte; {self.tokens:,} tokens at {self.tokens_per_second:,.0f}/s; "
            f"memory {self.microseconds:,.0f} µs per token{skipped})"
        )

    @property
    def microseconds(self) -> float:
        """What a token took beyond the LM."""
        share = self.gate_share + self.search_share + self.mixing_share
        return 1e6 * share * self.seconds / self.tokens


def evaluate(
    store: AnyStores | KNNLM,
    text: Texts,
    model: AnyModel = None,
    settings: SearchSettings | None = None,
    *,
    knn: bool = True,
    stride: int | None = None,
    batch_tokens: int = SCORE_BATCH_TOKENS,
    reporter: Reporter = QUIET,
) -> Evaluation:
    """Measure perplexity and speed over a text, with a store's memory and with the model alone.

    Args:
        store: A `KNNLM`, or what `KNNLM.load` takes together with `model`, `settings` and `knn`.
        text: Names of texts, or a `TextSource`; it should not be in the store.
        model: The store's model, by default as it was built.
        settings: How the memory is searched and mixed; what is left out is as it was tuned.
        knn: Use the memory; without it the model alone is measured.
        stride: Tokens from window to window, by default the window.
        batch_tokens: Tokens in a batch.
        reporter: Whom to tell of the progress.

    Returns:
        Perplexities, bits per byte, tokens per second (of everything but tokenising), and where the time went.

    Example:
        >>> result = nearlm.evaluate("mystore", "test/")
        >>> result.perplexity > 1
        True
    """
    if not isinstance(store, KNNLM):
        knnlm = KNNLM.load(store, model, settings or SearchSettings(), knn=knn)
    elif model is None and settings is None and knn:
        knnlm = store
    else:
        raise OptionError("a KNNLM has its `model`, `settings` and `knn` already; leave them out")
    with read_once(text, knnlm.lm.tokenizer, knnlm.store.reading(stride), reporter) as read:
        return evaluate_tokens(knnlm, read, batch_tokens=batch_tokens, reporter=reporter)


def evaluate_tokens(
    knnlm: KNNLM, text: TokenText, *, batch_tokens: int = SCORE_BATCH_TOKENS, reporter: Reporter = QUIET
) -> Evaluation:
    """Score a tokenised text."""
    return score_tokens(knnlm, text, batch_tokens=batch_tokens, reporter=reporter).evaluation


@dataclass(frozen=True)
class ScoredText:
    """How well a text was predicted as a whole, and log p of each of its targets, in corpus order."""

    evaluation: Evaluation
    logp: Doubles
    log_lm: Doubles


def score_tokens(
    knnlm: KNNLM, text: TokenText, *, batch_tokens: int = SCORE_BATCH_TOKENS, reporter: Reporter = QUIET
) -> ScoredText:
    """Score a tokenised text, token by token."""
    if knnlm.memory is not None:
        knnlm.memory.warm_up()
    scorer = Scorer(knnlm.lm, knnlm.memory)
    places = text.windows.target_positions
    logp = np.empty(len(places))
    log_lm = np.empty(len(places))
    retrievals = 0
    with reporter.bar("evaluating", text.windows.records, "tokens") as advance:
        for positions, scores, _ in scorer.score(text.tokens, text.bounds, text.windows, batch_tokens):
            rows = np.searchsorted(places, positions)
            logp[rows] = scores.logp
            log_lm[rows] = scores.log_lm
            retrievals += int(scores.retrieved.sum())
            advance(len(scores.tokens))
    evaluation = _summary(knnlm, text, float(logp.sum()), float(log_lm.sum()), retrievals, scorer.timer)
    return ScoredText(evaluation, logp, log_lm)


def _summary(knnlm: KNNLM, text: TokenText, logp: float, log_lm: float, retrievals: int, timer: Timer) -> Evaluation:
    seconds = timer.total
    tokens = text.windows.records
    words, count = words_and_bytes(text, knnlm.lm.tokenizer)
    used = knnlm.memory.settings if knnlm.memory is not None else SearchSettings()
    rest = seconds - timer.lm - timer.gate - timer.search - timer.mixing
    return Evaluation(
        perplexity=math.exp(-logp / tokens),
        nlm_perplexity=math.exp(-log_lm / tokens),
        word_perplexity=math.exp(min(-logp / max(words, 1), 700)),
        bits_per_byte=-logp / math.log(2) / max(count, 1),
        tokens=tokens,
        words=words,
        bytes=count,
        retrievals=retrievals,
        tokens_per_second=tokens / seconds,
        retrievals_per_second=retrievals / timer.search if retrievals else None,
        seconds=seconds,
        lm_share=timer.lm / seconds,
        gate_share=timer.gate / seconds,
        search_share=timer.search / seconds,
        mixing_share=timer.mixing / seconds,
        rest_share=rest / seconds,
        skipped=1 - retrievals / tokens,
        gate_microseconds=timer.gate / tokens * 1e6 if knnlm.gate else None,
        search=used if knnlm.memory is None or knnlm.memory.constant else replace(used, lam=None),
    )


def words_and_bytes(text: TokenText, tokenizer: Any) -> tuple[int, int]:
    """Count the words and UTF-8 bytes of what is predicted, document by document, special tokens left out."""
    words = 0
    count = 0
    given = ~np.isin(text.bounds[:-1], text.windows.target_positions)  # of a document without BOS: its first token
    for begin, end, leave in zip(text.bounds[:-1], text.bounds[1:], given, strict=True):
        plain = tokenizer.decode(np.asarray(text.tokens[begin:end]), skip_special_tokens=True)
        if leave:
            first = tokenizer.decode(np.asarray(text.tokens[begin : begin + 1]), skip_special_tokens=True)
            plain = plain.removeprefix(first.rstrip("\ufffd"))  # a character belongs to the token that ends it
        words += len(plain.split())
        count += len(plain.encode())
    return words, count
