"""What an adaptor costs next to its LM: microseconds a token for statistics, n-gram look-ups and the network.

    python benchmarks/adaptor_speed.py cache:smollm2-spdx --text spdx:valid --adaptor default

The LM is timed as `eval` runs it without an adaptor, and once more with the confidence and entropy that one wants.
Each part is the median of `--rounds` interleaved rounds over the same batch.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from nearlm.adaptor import Adaptor
from nearlm.adaptor_network import scalar_columns
from nearlm.datastore import Datastore
from nearlm.knnlm import load_lm
from nearlm.ngrams import last_tokens
from nearlm.trace import SCORE_BATCH_TOKENS, Reading, read_text
from nearlm.windows import fill_batch, plan_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--adaptor", default="default")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    store = Datastore.open(options.store)
    adaptor, lm, reading = Adaptor.load(store, options.adaptor), load_lm(store), Reading.of_store(store.manifest)
    text = read_text(options.text, lm.tokenizer, reading, max_tokens=3 * SCORE_BATCH_TOKENS)
    windows = text.windows[plan_batches(text.windows, SCORE_BATCH_TOKENS)[0]]
    batch, scores = fill_batch(text.tokens, windows), lm.score(fill_batch(text.tokens, windows))
    keys, conf, ent = (value.float().cpu().numpy() for value in (scores.keys, scores.conf, scores.ent))

    def counts() -> object:
        contexts = last_tokens(text.tokens, text.bounds, windows.target_positions)
        return adaptor.ngrams and adaptor.ngrams.look_up(contexts)

    scalars = scalar_columns(adaptor.shape, len(keys), conf, ent, counts())
    parts: dict[str, Callable[[], object]] = {
        "lm": lambda: lm.score(batch, statistics=False),
        "lm_with_statistics": lambda: lm.score(batch, statistics=True),
        "counts": counts,
        "network": lambda: adaptor.network.log_weights(keys, scalars),
    }
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(options.rounds):
        for name, run in parts.items():
            started = time.perf_counter()
            run()
            taken[name].append((time.perf_counter() - started) / len(keys) * 1e6)
    found = {name: float(np.median(values)) for name, values in taken.items()}
    found["statistics"] = float(np.median(np.subtract(taken["lm_with_statistics"], taken["lm"])))
    found["share_of_lm"] = (found["statistics"] + found["counts"] + found["network"]) / found["lm"]
    print(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=1))


if __name__ == "__main__":
    main()
