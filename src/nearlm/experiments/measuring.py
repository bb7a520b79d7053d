"""What experiments measure alike: searches by themselves, and which points no other beats."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.adaptor import Adaptor
from nearlm.ngrams import last_tokens
from nearlm.retrieve import Retriever
from nearlm.trace import LMTrace

TIMED = 4096  # queries
_BATCH = 2048
_PASSES = 3


def searches_per_second(retriever: Retriever, queries: npt.NDArray[np.floating[Any]], k: int) -> float:
    """Time searches alone, in batches as evaluation makes them; the best of three passes."""
    times = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        for start in range(0, len(queries), _BATCH):
            retriever.search(queries[start : start + _BATCH], k, ordered=False)
        times.append(time.perf_counter() - started)
    return len(queries) / min(times)


def adaptor_seconds(adaptor: Adaptor, traced: LMTrace) -> float:
    """Time an adaptor alone, features and network, and return the seconds of a token; the best of three passes."""
    text, rows, times = traced.text, min(TIMED, len(traced)), []
    positions = text.windows.target_positions[:rows]
    for _ in range(_PASSES + 1):
        started = time.perf_counter()
        for start in range(0, rows, _BATCH):
            part = slice(start, min(start + _BATCH, rows))
            contexts = last_tokens(text.tokens, text.bounds, positions[part]) if adaptor.shape.counts else None
            adaptor.log_weights(traced.keys[part], traced.conf[part], traced.ent[part], contexts)
        times.append(time.perf_counter() - started)
    return min(times[1:]) / rows


def unbeaten(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Tell of points (perplexity, time) which no other beats in one and equals in the other."""
    return [not any(other[0] <= one[0] and other[1] <= one[1] and other != one for other in points) for one in points]
