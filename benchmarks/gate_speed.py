"""What a gate costs next to its LM: microseconds a token for statistics, n-gram look-ups and the network.

    python benchmarks/gate_speed.py cache:smollm2-spdx --text spdx:valid --gate default

The LM is timed as `eval` runs it without a gate. Confidence and entropy come from logits that are there anyway:
what they cost is timed on one slice of logits, against log p of the targets alone. Each part is the median of
`--rounds` interleaved rounds over the same batch.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch

from nearlm.base import Floats
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.gate import Gate
from nearlm.mixing.mixture_features import Known
from nearlm.model.lm import LM, _log_probability, _statistics
from nearlm.store.datastore import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import SCORE_BATCH_TOKENS, TextSource, TokenText, fill_batch, plan_batches, read_once

_ROWS = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--gate", default="default")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    store = Datastore.open(options.store)
    gate, lm = Gate.load(store, options.gate), load_lm(store)
    source = TextSource((options.text,), max_tokens=3 * SCORE_BATCH_TOKENS)
    with read_once(source, lm.tokenizer, store.reading()) as text:
        found = measured(lm, gate, text, options.rounds)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=1))


def measured(lm: LM, gate: Gate, text: TokenText, rounds: int) -> dict[str, float]:
    """Return the microseconds a token of each part."""
    windows = text.windows[plan_batches(text.windows, SCORE_BATCH_TOKENS)[0]]
    batch, scores = fill_batch(text.tokens, windows), lm.score(fill_batch(text.tokens, windows))
    keys, conf, ent = (value.float().cpu().numpy() for value in (scores.keys, scores.conf, scores.ent))
    contexts = Contexts.of_text(text.tokens, text.bounds, windows.target_positions)
    known = Known(conf, ent, scores.top.int().cpu().numpy(), contexts)

    def counts() -> Floats:
        return gate.looked.scalars(gate.inputs, known)

    scalars = counts()
    targets = torch.from_numpy(batch.targets[:_ROWS])
    logits = torch.randn(_ROWS, lm.vocab_size)
    counted = {"with_statistics": _ROWS, "without": _ROWS}
    parts: dict[str, Callable[[], object]] = {
        "lm": lambda: lm.score(batch, statistics=False),
        "with_statistics": lambda: _statistics(logits, targets),
        "without": lambda: _log_probability(logits, targets),
        "counts": counts,
        "network": lambda: gate.network.log_weights(keys, scalars),
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds):
        for name, run in parts.items():
            started = time.perf_counter()
            run()
            taken[name].append((time.perf_counter() - started) / counted.get(name, len(keys)) * 1e6)
    found = {name: float(np.median(values)) for name, values in taken.items()}
    found["statistics"] = float(np.median(np.subtract(taken["with_statistics"], taken["without"])))
    found["share_of_lm"] = (found["statistics"] + found["counts"] + found["network"]) / found["lm"]
    return found


if __name__ == "__main__":
    main()
