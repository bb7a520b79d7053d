"""What each expert of a mixture is worth, and what it costs.

    python benchmarks/mixture_ablation.py STORE --valid spdx:valid --test spdx:test [--unrelated pydocs:test]
        [--max-tokens 20000] [--index default] [--nprobe 8] [--seeds 3] [--json]

One mixture is trained for each set of sources on the validation text, with each seed; perplexities are means over the
seeds, of the tokens held out from the training and of the test. "Without searches": every token skips retrieval.
Times are of all that is done for a token beyond LM and search: look-ups, features, network and mixing.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass

import numpy as np

from nearlm.base import Reporter
from nearlm.mixing import best_setting, build_infinigram, perplexity, split_rows, trace_text
from nearlm.mixing.mixture_training import MixtureExamples, Searched, mixture_examples, train_mixture
from nearlm.mixing.traces import LMTrace, trace_search
from nearlm.search import Retriever
from nearlm.store import Datastore
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource

SETS = (("ngram",), ("text",), ("ngram", "text"), ("knn",), ("knn", "text"), ("knn", "ngram"), ("knn", "ngram", "text"))


@dataclass(frozen=True)
class Row:
    sources: str
    held_out: float
    test: float
    without_searches: float
    unrelated: float | None
    microseconds: float
    training_seconds: float


def main() -> None:
    options = parse()
    bench = Bench(options)
    rows = [bench.row(sources, options.seeds) for sources in SETS]
    if options.json:
        print(json.dumps({**bench.alone, "rows": [asdict(row) for row in rows]}))
        return
    for name, value in bench.alone.items():
        print(f"{name}: {value:.3f}")
    print("| experts beside the LM | held out | test | without searches | unrelated | µs per token |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        unrelated = "–" if row.unrelated is None else f"{row.unrelated:.3f}"
        print(
            f"| {row.sources} | {row.held_out:.3f} | {row.test:.3f} | {row.without_searches:.3f} | {unrelated} "
            f"| {row.microseconds:.1f} |"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--valid", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--unrelated")
    parser.add_argument("--max-tokens", type=int, default=20_000, help="of test and unrelated text")
    parser.add_argument("--valid-tokens", type=int)
    parser.add_argument("--index", default="default")
    parser.add_argument("--nprobe", type=int)
    parser.add_argument("--k", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Bench:
    """Traces of all texts, searched once."""

    def __init__(self, options: argparse.Namespace):
        reporter = Reporter()
        self.store = Datastore.open(options.store)
        lm = load_lm(self.store)
        self.retriever = Retriever(self.store, options.index, nprobe=options.nprobe)
        self.infinigram = build_infinigram(self.store, reporter)
        wanted = {
            "valid": TextSource((options.valid,), max_tokens=options.valid_tokens),
            "test": TextSource((options.test,), max_tokens=options.max_tokens),
        }
        if options.unrelated:
            wanted["unrelated"] = TextSource((options.unrelated,), max_tokens=options.max_tokens)
        self.traced: dict[str, LMTrace] = {
            name: trace_text(lm, self.store, source, reporter) for name, source in wanted.items()
        }
        traces = {name: trace_search(one, self.retriever, options.k, reporter) for name, one in self.traced.items()}
        tuned = best_setting(traces["valid"])
        self.searched = {name: Searched(trace, tuned) for name, trace in traces.items()}
        self.alone: dict[str, float] = {}
        for name, trace in traces.items():
            self.alone[f"{name}, LM"] = perplexity(trace.log_lm)
            self.alone[f"{name}, constant λ={tuned.lam:g}, T={tuned.knn_temperature:g}, k={tuned.k}"] = perplexity(
                trace.log_p(tuned)
            )

    def examples(self, name: str, sources: tuple[str, ...]) -> MixtureExamples:
        return mixture_examples(self.traced[name], sources, self.infinigram, self.searched[name])

    def row(self, sources: tuple[str, ...], seeds: int) -> Row:
        split = split_rows(self.traced["valid"].text.documents, 0)
        valid = self.examples("valid", sources)
        self.examples("test", sources)  # compiles
        started = time.perf_counter()
        test = self.examples("test", sources)
        features = (time.perf_counter() - started) / len(test)
        unrelated = self.examples("unrelated", sources) if "unrelated" in self.traced else None
        found, seconds, mixing = [], [], []
        for seed in range(seeds):
            started = time.perf_counter()
            network = train_mixture(valid, split, seed)
            trained = time.perf_counter()
            logp = test.log_mixture(network)
            mixing.append((time.perf_counter() - trained) / len(test))
            seconds.append(trained - started)
            others = [valid[split.held].log_mixture(network), logp, test.without_search().log_mixture(network)]
            if unrelated is not None:
                others.append(unrelated.log_mixture(network))
            found.append([perplexity(one) for one in others])
        means = np.mean(found, 0).tolist()
        beyond = 1e6 * (features + min(mixing))
        last = means[3] if unrelated is not None else None
        return Row(", ".join(sources), *means[:3], last, beyond, float(np.mean(seconds)))


if __name__ == "__main__":
    main()
