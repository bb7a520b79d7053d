"""Made-up examples to train a network on, a training that takes no time, and how to trace a text."""

import numpy as np

from nearlm.mixing.gate_training import (
    Examples,
    Training,
)
from nearlm.mixing.traces import cache_text, trace_lm, trace_search
from nearlm.search.retriever import Retriever

QUICK = Training(epochs=3, batch=64)


def made_up_examples(count=6000, seed=0, dim=12):
    """Tokens whose first key says whether the memory knows them."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(count, dim)).astype(np.float32)
    knows = keys[:, 0] + 0.3 * rng.normal(size=count) > 0.3
    log_lm = np.log(rng.uniform(0.02, 0.5, count))
    log_knn = np.where(knows, np.log(rng.uniform(0.5, 1.0, count)), -np.inf)
    return Examples(keys, rng.normal(size=(count, 6)).astype(np.float32), log_lm, log_knn)


DOCUMENTS = np.repeat(np.arange(60), 100)


class Heard:
    """A reporter that remembers what was said."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)

    def bar(self, *_):
        from nearlm.base.progress import Reporter

        return Reporter(quiet=True).bar("", None, "")


def trace_for(lm, store, valid, k=128, **options):
    reading = store.reading()
    text = cache_text(valid, lm.tokenizer, reading)
    return trace_search(trace_lm(lm, text, reading), Retriever(store, **options), k)
