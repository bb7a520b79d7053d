"""How long the kNN-LM takes to score a text beside the LM, against another checkout of this repository.

    python benchmarks/scoring_speed.py STORE --text spdx:valid --against CHECKOUT --before INDEX [--nprobe 8] [--k 1024]

What is timed is all that one λ needs, for every batch of 2,048 positions of a text whose LM pass is there: search,
tokens of the neighbours, p_kNN of the next token, and the mixture. INDEX is an index of the store that the other
checkout has made; both score the text in turn, in one process. µs per token, medians of the rounds, and perplexity of
both with the T and λ that are best for each on this text.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from mixing_profile import HERE, Checkout
from nearlm.base import Reporter
from nearlm.mixing import trace_text
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

BATCH = 2048
TEMPERATURES = tuple(2 ** (step / 2) for step in range(-2, 8))
LAMBDAS = np.arange(0.02, 1, 0.02)


class Scored:
    """The neighbours of a store as one checkout finds them, and what it makes of them."""

    def __init__(self, checkout: Path, options: argparse.Namespace, index: str):
        module = Checkout(checkout.resolve()).module
        store = module("store.datastore").Datastore.open(options.store)
        self.retriever: Any = module("search.retriever").Retriever(store, index, nprobe=options.nprobe)
        self.equations: Any = module("mixing.equations")
        self.k = options.k
        self.lam, self.temperature = 0.4, 2.0

    def score(self, keys: Any, log_lm: Any, targets: Any, temperature: float | None = None) -> tuple[Any, float]:
        """Return log p_kNN of all targets, and the seconds that it took to mix them into log p."""
        log_knn = np.empty(len(keys))
        spent = 0.0
        for start in range(0, len(keys), BATCH):
            rows = slice(start, start + BATCH)
            began = time.perf_counter()
            near = self.retriever.search(keys[rows], self.k, ordered=False)
            given = near.distances, near.tokens, targets[rows], temperature or self.temperature, near.weights
            log_knn[rows] = self.equations.log_p_knn(*given)
            self.equations.mix(log_lm[rows], log_knn[rows], self.lam)
            spent += time.perf_counter() - began
        return log_knn, spent

    def best(self, keys: Any, log_lm: Any, targets: Any) -> float:
        """Return the perplexity with the best T and λ, and keep these."""
        found = []
        for temperature in TEMPERATURES:
            log_knn, _ = self.score(keys, log_lm, targets, temperature)
            p_lm, p_knn = np.exp(log_lm), np.exp(log_knn)
            for lam in LAMBDAS:
                found.append((float(np.exp(-np.mean(np.log((1 - lam) * p_lm + lam * p_knn)))), lam, temperature))
        perplexity, self.lam, self.temperature = min(found)
        return perplexity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--text", required=True)
    parser.add_argument("--max-tokens", type=int, default=12_000)
    parser.add_argument("--index", default="default")
    parser.add_argument("--nprobe", type=int, default=8)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--before", required=True, metavar="INDEX")
    options = parser.parse_args()
    store = Datastore.open(options.store)
    source = TextSource((options.text,), max_tokens=options.max_tokens)
    traced = trace_text(load_lm(store), store, source, Reporter())
    given = np.asarray(traced.keys, np.float32), np.asarray(traced.log_lm), np.asarray(traced.text.targets)
    options.store = store.path  # a checkout of before may look for the cache elsewhere
    sides = {"now": Scored(HERE, options, options.index), "before": Scored(options.against, options, options.before)}
    perplexities = {name: side.best(*given) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            times[name].append(1e6 * side.score(*given)[1] / len(given[0]))
    print("| | perplexity | T | λ | µs per token |\n|---|---|---|---|---|")
    for name, side in sides.items():
        row = f"{perplexities[name]:.3f} | {side.temperature:.2f} | {side.lam:.2f} | {np.median(times[name]):.1f}"
        print(f"| {name} | {row} |")
    ratios = np.array(times["before"]) / np.array(times["now"])
    print(f"{np.median(ratios):.2f} times as fast (rounds: {ratios.min():.2f} to {ratios.max():.2f})")


if __name__ == "__main__":
    main()
