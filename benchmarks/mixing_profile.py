"""Where the time of the memory goes beside the search: µs per token in every part, in batches and one at a time.

    python benchmarks/mixing_profile.py [--against CHECKOUT] [--threads 2] [--batches 1,8,128,2048] [--k 256]

Made-up data: a suffix array over the text of ngram_speed.py, contexts of a text of the same kind, k neighbours of 10 to
60 distinct tokens, a network with random weights. Scoring: all that is mixed, of which the rest are parts. Generation:
a vocabulary of 49,152 tokens, and `attached` is all that `attach` does, which is log p and statistics of the LM too.
With --against another checkout of the repository is measured in the same process, in turns. Times are the least of
--rounds, by CPU time if there is one thread, so that other work on the machine hardly matters.
"""

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import torch

SOURCES = ("knn", "ngram", "text")
VOCABULARY = 49_152
HERE = Path(__file__).resolve().parent.parent


class Checkout:
    """The package of one checkout; several live side by side."""

    def __init__(self, path: Path):
        self.path = path
        self._modules: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}

    @contextmanager
    def _used(self) -> Iterator[None]:
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "nearlm"}
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.path / "src"))
        yield
        sys.path.pop(0)
        self._modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "nearlm"}
        sys.modules.update(before)

    def module(self, name: str) -> Any:
        """Import a module of this checkout."""
        if name not in self._asked:
            with self._used():
                self._asked[name] = importlib.import_module(f"nearlm.{name}")
        return self._asked[name]


def made_up_neighbors(rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and tokens [rows, k]: few distinct tokens, of which some are frequent."""
    rng = np.random.default_rng(1)
    distances = np.sort(rng.gamma(4, 2, (rows, k)).astype(np.float32), 1) + rng.gamma(2, 5, (rows, 1))
    distinct = rng.integers(10, 60, rows)
    places = (distinct[:, None] * rng.random((rows, k)) ** 2.5).astype(np.int64)
    vocabulary = rng.integers(0, VOCABULARY, (rows, 60))
    return distances.astype(np.float32), np.take_along_axis(vocabulary, places, 1).astype(np.int32)


class Case:
    """Contexts, neighbours and a mixture of one checkout."""

    def __init__(self, checkout: Checkout, infinigram: Any, text: np.ndarray, rows: int, k: int):
        self.module = checkout.module
        rng = np.random.default_rng(2)
        ends = np.sort(rng.choice(np.arange(1, len(text)), rows, replace=False))
        if rows > 1:  # a window of consecutive positions, as in scoring
            ends = np.arange(len(text) - rows, len(text))
        begins = np.maximum(0, ends - rng.integers(1, 2048, rows))
        contexts = self.module("mixing.contexts").Contexts(text, begins, ends)
        distances, tokens = made_up_neighbors(rows, k)
        self.near = self.module("search").Neighbors(distances, tokens, None, np.zeros_like(tokens, np.int64))
        conf = rng.uniform(0.01, 1, rows).astype(np.float32)
        top = np.where(rng.random(rows) < 0.5, tokens[:, 0], text[ends]).astype(np.int32)
        self.known = self.module("mixing.mixture_features").Known(conf, -np.log(conf), top, contexts)
        torch.manual_seed(0)
        self.mixture = self.module("mixing.mixture").untrained_mixture(SOURCES, infinigram)
        self.retrieved = np.ones(rows, np.bool_)
        self.log_lm = np.log(rng.uniform(0.001, 1, rows))
        self.targets = text[ends].astype(np.int32)

    def advice(self) -> Any:
        """Mix all there is, short of targets."""
        return self.mixture.weigh(self.known, self.mixture.ask(self.known), self.near, self.retrieved)

    def prediction(self, said: Any) -> Any:
        """Wrap what is said as scoring does."""
        module = self.module("mixing.prediction")
        return module.Prediction(said, self.near, self.retrieved, module.Spent(0.0, 0.0, 0.0))

    def scoring(self) -> dict[str, Callable[[], object]]:
        """Return the parts of scoring."""
        candidates = self.module("mixing.candidates")
        features = self.module("mixing.mixture_features")
        contexts = self.known.contexts
        said = self.advice()
        prediction = self.prediction(said)
        there = self.module("mixing.advice").there_of(SOURCES, said.proposals, len(self.known))
        described = features.features_of(SOURCES, self.known, said.proposals)
        look_up = self.mixture.infinigram.look_up
        return {
            "all": lambda: self.prediction(self.advice()).score(self.log_lm, self.targets),
            "look-up": lambda: look_up(contexts.tokens, contexts.begins, contexts.ends),
            "from_infinigram": lambda: candidates.from_infinigram(self.mixture.infinigram, contexts),
            "from_text": lambda: candidates.from_text(contexts),
            "from_neighbors": lambda: candidates.from_neighbors(self.near, 2.0),
            "features": lambda: features.features_of(SOURCES, self.known, said.proposals),
            "network": lambda: getattr(self.mixture, "_weigher", self.mixture.network).log_weights(described, there),
            "targets": lambda: prediction.score(self.log_lm, self.targets),
        }

    def generation(self) -> dict[str, Callable[[], object]]:
        """Return the parts of a generation step."""
        rows = len(self.known)
        logits = torch.randn(rows, 1, VOCABULARY, generator=torch.Generator().manual_seed(0))
        log_lm = logits[:, 0].log_softmax(-1)
        keys = torch.zeros(rows, 1, 8)
        said = self.advice()
        constant = self.module("mixing.interpolation").Interpolation(self.near, self.retrieved, np.full(rows, 0.3), 2.0)
        attachment = self.module("knnlm.attachment")
        settings = self.module("store").SearchSettings(k=self.near.tokens.shape[1], lam=0.3, knn_temperature=2.0)
        search = SimpleNamespace(search=lambda *_, **__: self.near)
        memory = self.module("mixing.memory").Memory
        mixed = memory(None, search, settings, None, self.mixture)
        plain = memory(None, search, settings)
        contexts = self.known.contexts
        return {
            "ask and weigh": self.advice,
            "vocabulary": lambda: said.log_p_vocabulary(log_lm),
            "vocabulary, one λ": lambda: constant.log_p_vocabulary(log_lm),
            "attached": lambda: attachment._mix(mixed, logits, keys, contexts),
            "attached, one λ": lambda: attachment._mix(plain, logits, keys, None),
        }


def least(parts: list[Callable[[], object]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Return the least seconds that each takes, of rounds in turns."""
    taken = np.full((len(parts), rounds), np.inf)
    for part in parts:
        part()
    for at in range(rounds):
        for place, part in enumerate(parts):
            started = clock()
            part()
            taken[place, at] = clock() - started
    return taken.min(1).tolist()


def infinigrams(checkout: Checkout, folder: Path, stream: np.ndarray, bounds: np.ndarray) -> Any:
    """Build the suffix array with a checkout."""
    store = SimpleNamespace(
        path=folder,
        layout=checkout.module("store.layout").Layout(folder),
        tokens=checkout.module("base").ShardedArray([stream]),
        document_bounds=bounds,
        checksum="made up",
        state=None,
        continues=lambda checksum, _: checksum == "made up",
    )
    folder.mkdir()
    return checkout.module("mixing").build_infinigram(store)


def measured(options: argparse.Namespace, checkouts: list[Checkout], folder: Path) -> Iterator[dict[str, Any]]:
    """Measure all parts, for one batch size after another."""
    with checkouts[0]._used():
        from ngram_speed import corpus

        stream, bounds = corpus(options.tokens + 20_000)
    text = stream[options.tokens :].copy()
    stream = stream[: options.tokens]
    bounds = np.append(bounds[bounds < options.tokens], options.tokens)
    grams = [infinigrams(one, folder / str(at), stream, bounds) for at, one in enumerate(checkouts)]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for rows in options.batches:
        cases = [Case(one, gram, text, rows, options.k) for one, gram in zip(checkouts, grams, strict=True)]
        kinds = ["scoring"] + ["generation"] * (rows <= 16)
        for kind in kinds:
            parts = [getattr(case, kind)() for case in cases]
            rounds = max(options.rounds, 500 // rows)
            for name in parts[0]:
                times = least([here[name] for here in parts], rounds, clock)
                micros = [seconds / rows * 1e6 for seconds in times]
                yield {"kind": kind, "rows": rows, "part": name, "µs": [round(one, 2) for one in micros]}


def numbers(text: str) -> list[int]:
    """Read numbers between commas."""
    return [int(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout of the repository, measured in turns")
    parser.add_argument("--tokens", type=int, default=850_000, help="of the store's text")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 128, 2048], help="contexts at a time")
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    numba.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    sys.path.append(str(HERE / "benchmarks"))
    checkouts = [Checkout(HERE), *([Checkout(options.against.resolve())] if options.against else [])]
    with tempfile.TemporaryDirectory(prefix="nearlm-mixing-") as folder:
        for row in measured(options, checkouts, Path(folder)):
            if options.json:
                print(json.dumps(row, ensure_ascii=False))
                continue
            shown = "  before ".join(f"{one:9.2f}" for one in row["µs"])
            ratio = f"  ratio {row['µs'][1] / max(row['µs'][0], 1e-3):5.2f}" if options.against else ""
            print(f"{row['kind']:10} {row['rows']:5} rows  {row['part']:18} µs {shown}{ratio}", flush=True)


if __name__ == "__main__":
    main()
