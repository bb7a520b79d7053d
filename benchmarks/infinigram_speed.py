"""How long a suffix array takes to build, how large it is, and how fast the ∞-gram is found, on a made-up corpus.

    python benchmarks/infinigram_speed.py --tokens 10000000 [--same]

The corpus is that of ngram_speed.py: Zipf's law over 49,152 tokens, half of it repeats of 40 tokens; or, with --same,
one token over and over, which is the worst that can happen. It lies in a file that is mapped, as in a store. Memory is
the peak of RssAnon while building, less what it was before (Linux only). Contexts are those of all positions of
a text of the same kind, looked up in one call, in calls of one, and in one call on one thread.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np

from build_memory import Watch, rss_anon
from nearlm.base import ArrayFile, ShardedArray
from nearlm.mixing.infinigram import InfiniGram
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.store.layout import Layout
from ngram_speed import corpus

HELD_OUT = 50_000
ALONE = 2000


def fake_store(folder: Path, stream: np.ndarray, bounds: np.ndarray) -> SimpleNamespace:
    """Return all of a store that a suffix array is made from; its tokens are mapped."""
    file = ArrayFile(folder / "tokens-00000.npy", np.dtype("int32"), stream.shape)
    file.write(stream)
    return SimpleNamespace(
        path=folder,
        layout=Layout(folder),
        tokens=ShardedArray([file.open()]),
        document_bounds=bounds,
        checksum=str(len(stream)),
        state=None,
        continues=lambda checksum, _: checksum == str(len(stream)),
    )


def made_up(tokens: int, same: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make a token stream, its document bounds, and another text."""
    stream, bounds = corpus(tokens + HELD_OUT)
    if same:
        stream[:] = 7
        bounds = np.array([0, tokens])
    return stream[:tokens], np.append(bounds[bounds < tokens], tokens), stream[tokens:].copy()


def look_up(grams: InfiniGram, text: np.ndarray, calls: int) -> tuple[float, float]:
    """Return the seconds that each context takes, and the mean length of what is found."""
    ends = np.arange(1, len(text) + 1)
    begins = np.zeros(len(text), np.int64)
    grams.look_up(text, begins, ends)
    found = []
    started = time.perf_counter()
    for rows in np.array_split(np.arange(len(text)), calls):
        found.append(grams.look_up(text, begins[rows], ends[rows]).length)
    seconds = time.perf_counter() - started
    return seconds / len(text), float(np.concatenate(found).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--same", action="store_true", help="one token over and over")
    options = parser.parse_args()
    tokens = options.tokens
    with tempfile.TemporaryDirectory(prefix="nearlm-suffixes-") as name:
        (Path(name) / "tiny").mkdir()
        (Path(name) / "whole").mkdir()
        build_infinigram(fake_store(Path(name) / "tiny", *made_up(5000, False)[:2]))  # compiles
        stream, bounds, text = made_up(tokens, options.same)
        store = fake_store(Path(name) / "whole", stream, bounds)
        del stream
        before = rss_anon()
        with Watch() as watch:
            started = time.perf_counter()
            grams = build_infinigram(store)
            seconds = time.perf_counter() - started
        together, length = look_up(grams, text, 1)
        alone, _ = look_up(grams, text[:ALONE], ALONE)
        numba.set_num_threads(1)
        one_thread, _ = look_up(grams, text, 1)
    found = {
        "tokens": tokens,
        "build_seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "bytes_per_token": round(grams.bytes / tokens, 1),
        "peak_memory_mb": round((watch.peak - before) / 1e6),
        "memory_per_token": round((watch.peak - before) / tokens, 1),
        "mean_length": round(length, 1),
        "microseconds_per_context": round(together * 1e6, 2),
        "microseconds_one_thread": round(one_thread * 1e6, 2),
        "microseconds_in_calls_of_one": round(alone * 1e6, 2),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
