"""How long the n-gram tables take to build, how large they are, and how fast they answer, on a made-up corpus.

    python benchmarks/ngram_speed.py --tokens 10000000

Tokens follow a Zipf law over a vocabulary of 49,152, and half of the text repeats earlier passages, so that long
n-grams come back as they do in real text. Memory is the growth of the process's peak.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from nearlm.base.arrays import ShardedArray
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.ngrams import build_ngrams
from nearlm.store.layout import Layout


def corpus(tokens: int, vocabulary: int = 49_152) -> tuple[np.ndarray, np.ndarray]:
    """Make a token stream and its document bounds."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, vocabulary + 1)
    stream = rng.choice(vocabulary, tokens, p=share / share.sum()).astype(np.int32)
    for start in range(2000, tokens - 40, 80):
        source = rng.integers(0, start - 40)
        stream[start : start + 40] = stream[source : source + 40]
    bounds = np.unique(np.concatenate(([0, tokens], rng.integers(0, tokens, tokens // 1000))))
    return stream, bounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=10_000_000)
    tokens = parser.parse_args().tokens
    stream, bounds = corpus(tokens)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        store = SimpleNamespace(
            path=Path(folder),
            layout=Layout(Path(folder)),
            tokens=ShardedArray([stream]),
            document_bounds=bounds,
            checksum="x",
        )
        started = time.perf_counter()
        tables = build_ngrams(store)
        seconds = time.perf_counter() - started
        positions = np.random.default_rng(1).integers(0, tokens, 200_000)
        contexts = Contexts.of_text(stream, bounds, positions).last(4)
        tables.look_up(contexts[:2000])
        started = time.perf_counter()
        tables.look_up(contexts)
        looked = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        "tokens": tokens,
        "build_seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "bytes_per_token": round(tables.bytes / tokens, 1),
        "peak_rss_growth_mb": round((after - before) / 1024),
        "contexts_per_second": round(len(contexts) / looked),
        "microseconds_per_context": round(looked / len(contexts) * 1e6, 2),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
