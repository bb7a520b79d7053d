"""Ranks of tokens by what they gain from a search."""

import numpy as np

from nearlm.mixing import build_infinigram, trace_text
from nearlm.optimizer.bench import Bench
from nearlm.optimizer.ranking import rank_tokens


def test_each_half_is_ranked_by_what_was_learned_from_the_other(store, lm, texts):
    bench = Bench(store, trace_text(lm, store, str(texts / "valid")))
    gains = np.asarray(bench.traced.conf, np.float64)  # what a gate can see
    skipped = np.full(len(gains), -3.0)
    ranks, microseconds = rank_tokens(bench, skipped + 2 * (gains > np.median(gains)), skipped, build_infinigram(store))
    assert microseconds > 0 and ranks.min() >= 0 and ranks.max() < 1
    assert np.mean(ranks[gains > np.median(gains)]) > np.mean(ranks[gains <= np.median(gains)])
