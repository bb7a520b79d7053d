"""Perplexity and speed of a kNN-LM, or of its LM alone, over a text."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nearlm.base import Json, Reporter
from nearlm.knnlm.knnlm import KNNLM, Timer, TokenScores
from nearlm.mixing import SCORE_BATCH_TOKENS, Tokens, TokenText, read_text, warm_up
from nearlm.text import Batch, fill_batch, plan_batches


@dataclass(frozen=True)
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
    adaptor_share: float
    search_share: float
    mixing_share: float
    rest_share: float
    lam: float | None
    temperature: float
    k: int | None
    nprobe: int | None
    index: str | None
    distances: str | None
    adaptor: str | None
    skip: float | None
    skipped: float
    adaptor_microseconds: float | None

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)


def evaluate(
    knnlm: KNNLM,
    texts: str | Sequence[str],
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
    batch_tokens: int = SCORE_BATCH_TOKENS,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Evaluation:
    """Score a text batch by batch; tokens/s counts the LM, the search and everything else but tokenising."""
    reporter = reporter or Reporter(quiet=True)
    reading = knnlm.reading(stride)
    text = read_text(texts, knnlm.lm.tokenizer, reading, max_tokens=max_tokens, reporter=reporter, **corpus_options)
    return evaluate_tokens(knnlm, text, batch_tokens=batch_tokens, reporter=reporter)


def evaluate_tokens(
    knnlm: KNNLM, text: TokenText, *, batch_tokens: int = SCORE_BATCH_TOKENS, reporter: Reporter | None = None
) -> Evaluation:
    """Score a tokenised text."""
    reporter = reporter or Reporter(quiet=True)
    warm_up()
    if knnlm.gate is not None:
        knnlm.gate.warm_up()
    timer = Timer()
    logp, log_lm, asked = 0.0, 0.0, 0
    with reporter.bar("evaluating", text.windows.records, "tokens") as advance:
        batches = _batches(knnlm, text, batch_tokens, timer)
        for scores in _scored(knnlm, batches, timer):
            logp += float(scores.logp.sum())
            log_lm += float(scores.log_lm.sum())
            asked += int(scores.asked.sum())
            advance(len(scores.tokens))
    return _summary(knnlm, text, logp, log_lm, asked, timer, timer.total)


def _batches(knnlm: KNNLM, text: TokenText, batch_tokens: int, timer: Timer) -> Iterator[tuple[Batch, Tokens | None]]:
    for rows in plan_batches(text.windows, batch_tokens):
        batch, started = fill_batch(text.tokens, text.windows[rows]), time.perf_counter()
        contexts = knnlm.contexts(text.tokens, text.bounds, text.windows[rows])
        timer.adaptor += time.perf_counter() - started
        yield batch, contexts


def _scored(knnlm: KNNLM, batches: Iterator[tuple[Batch, Tokens | None]], timer: Timer) -> Iterator[TokenScores]:
    """Score batches; on a GPU the search of one overlaps the forward pass of the next."""
    if knnlm.lm.device.type != "cuda" or knnlm.retriever is None:
        for batch, contexts in batches:
            yield knnlm.score_batch(batch, contexts, timer)[0]
        return
    with ThreadPoolExecutor(1) as pool:
        pending: Future[Any] | None = None
        for batch, contexts in batches:
            predicted = knnlm.predict(batch, timer)
            if pending is not None:
                yield pending.result()[0]
            pending = pool.submit(knnlm.remember, batch, contexts, predicted, timer)
        if pending is not None:
            yield pending.result()[0]


def _summary(
    knnlm: KNNLM, text: TokenText, logp: float, log_lm: float, retrievals: int, timer: Timer, seconds: float
) -> Evaluation:
    tokens, retriever, gate = text.windows.records, knnlm.retriever, knnlm.gate
    words, count = _words_and_bytes(text, knnlm.lm.tokenizer)
    rest = seconds - timer.lm - timer.adaptor - timer.search - timer.mixing
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
        adaptor_share=timer.adaptor / seconds,
        search_share=timer.search / seconds,
        mixing_share=timer.mixing / seconds,
        rest_share=rest / seconds,
        lam=knnlm.lam if gate is None else None,
        temperature=knnlm.temperature,
        k=min(knnlm.k or retriever.default_k(), retriever.max_k) if retriever else None,
        nprobe=retriever.index.nprobe if retriever else None,
        index=retriever.name if retriever else None,
        distances=retriever.distances if retriever else None,
        adaptor=gate.adaptor.name if gate else None,
        skip=gate.skip if gate else None,
        skipped=1 - retrievals / tokens,
        adaptor_microseconds=timer.adaptor / tokens * 1e6 if gate else None,
    )


def _words_and_bytes(text: TokenText, tokenizer: Any) -> tuple[int, int]:
    """Count the words and UTF-8 bytes of a tokenised text, document by document, special tokens left out."""
    words = count = 0
    for begin, end in zip(text.bounds[:-1], text.bounds[1:], strict=True):
        plain = tokenizer.decode(np.asarray(text.tokens[begin:end]), skip_special_tokens=True)
        words, count = words + len(plain.split()), count + len(plain.encode())
    return words, count
