"""The baseline table: NLM, kNN-LM (vanilla), kNN-LM (exact distances), kNN-LM (auto), and perplexity against k.

    python benchmarks/knnlm_results.py cache:smollm2-spdx --valid spdx:valid --test spdx:test --max-tokens 12000

Makes the indexes `paper` and `default` (auto) if they are missing and tunes λ and T for each on the validation text.
Evaluations are interleaved, and the median of the rounds is reported; retrievals/s alone are timed on the same queries.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base.progress import Reporter
from nearlm.knnlm.evaluation import Evaluation, evaluate_tokens
from nearlm.knnlm.knnlm import KNNLM
from nearlm.mixing.memory import Memory
from nearlm.mixing.traces import cache_text, trace_lm, trace_search
from nearlm.mixing.tuning import KS, Tuning, tune, tune_traces
from nearlm.model.lm import LM
from nearlm.optimizer.bench import searches_per_second
from nearlm.search.index_building import build_index
from nearlm.search.retriever import Retriever
from nearlm.store.datastore import Datastore
from nearlm.store.model_files import load_lm
from nearlm.store.settings import SearchSettings
from nearlm.text import TextSource

REPORTER = Reporter()
EXACT_K = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--valid", default="spdx:valid")
    parser.add_argument("--test", default="spdx:test")
    parser.add_argument("--max-tokens", type=int, default=12000)
    parser.add_argument("--valid-tokens", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    store = Datastore.open(args.store)
    lm = load_lm(store)
    build_index(store, "paper", name="paper", reporter=REPORTER)
    build_index(store, name="default", reporter=REPORTER)
    valid = TextSource((args.valid,), max_tokens=args.valid_tokens)
    tuned = {}
    for label, index, distances in (
        ("vanilla", "paper", "index"),
        ("exact", "paper", "store"),
        ("auto", "default", "index"),
    ):
        retriever = Retriever(store, index, distances=distances)
        if distances == "store":
            tuned[label] = tuned_exact(lm, retriever, valid)
        else:
            tuned[label] = tune(lm, retriever, valid, reporter=REPORTER)
        print(f"{label}: {tuned[label].table()}")
    reading = store.reading()
    test = TextSource((args.test,), max_tokens=args.max_tokens)
    text = cache_text(test, lm.tokenizer, reading, REPORTER)
    models = {"NLM": KNNLM(lm, store, None)}
    for label, index, distances in (
        ("vanilla", "paper", "index"),
        ("vanilla, T=1", "paper", "index"),
        ("exact", "paper", "store"),
        ("auto", "default", "index"),
    ):
        point = tuned["vanilla"].paper if label.endswith("T=1") else tuned[label].best
        k = point.k if distances == "index" else EXACT_K
        settings = SearchSettings(lam=point.lam, knn_temperature=point.knn_temperature, k=k)
        models[label] = KNNLM(lm, store, Memory.of(Retriever(store, index, distances=distances), settings))
    runs: dict[str, list[Evaluation]] = {label: [] for label in models}
    for _ in range(args.rounds):
        for label, model in models.items():
            runs[label].append(evaluate_tokens(model, text))
            print(f"{label}: {runs[label][-1].perplexity:.3f} at {runs[label][-1].tokens_per_second:.0f} tokens/s")
    rows = [row(label, runs[label], models[label]) for label in models]
    trace = trace_lm(lm, text, reading, REPORTER)
    for one, model in zip(rows, models.values(), strict=True):
        one["retrievals_per_second"] = None
        if model.memory is not None:
            k = model.memory.settings.k
            one["retrievals_per_second"] = searches_per_second(model.memory.retriever, np.asarray(trace.keys), k)
    by_k = perplexity_by_k(store, trace, tuned["vanilla"])
    print(table(rows, by_k, len(store), text.windows.records))
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "by_k": by_k}, indent=1))


def tuned_exact(lm: LM, retriever: Retriever, source: TextSource) -> Tuning:
    """Tune λ and T for exact distances at one k; nothing is kept with the index."""
    reading = retriever.store.reading()
    read = cache_text(source, lm.tokenizer, reading, REPORTER)
    return tune_traces([trace_search(trace_lm(lm, read, reading, REPORTER), retriever, EXACT_K, REPORTER)])


def row(label: str, runs: list[Evaluation], model: KNNLM) -> dict[str, Any]:
    """Sum up the rounds of one model."""
    first = runs[0]
    return {
        "model": label,
        "perplexity": first.perplexity,
        "tokens_per_second": statistics.median(run.tokens_per_second for run in runs),
        "lm_share": statistics.median(run.lm_share for run in runs),
        "search_share": statistics.median(run.search_share for run in runs),
        "other_share": statistics.median(run.mixing_share + run.rest_share for run in runs),
        "lam": first.search.lam,
        "knn_temperature": first.search.knn_temperature,
        "k": first.search.k,
        "nprobe": first.search.nprobe,
    }


def perplexity_by_k(store: Datastore, trace: Any, tuning: Any) -> list[dict[str, float]]:
    """Return the test perplexity of vanilla for each k, with λ and T tuned for that k on validation."""
    from nearlm.mixing.equations import mix, perplexity

    searched = trace_search(trace, Retriever(store, "paper"), 1024, REPORTER)
    points = {point.k: point for point in tuning.by_k}
    return [
        {
            "k": k,
            "perplexity": perplexity(
                mix(np.asarray(trace.logp, np.float64), searched.log_p_knn(points[k].temperature, k), points[k].lam)
            ),
        }
        for k in KS
        if k in points
    ]


def table(rows: list[dict[str, Any]], by_k: list[dict[str, float]], records: int, tokens: int) -> str:
    """Write the results as Markdown."""
    lines = [
        f"{records:,} records, {tokens:,} test tokens",
        "",
        "| model | perplexity | tokens/s | of NLM | retrievals/s | LM | search | other | λ | T | k | nprobe |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    alone = rows[0]["tokens_per_second"]
    for one in rows:
        speed = f"{one['retrievals_per_second']:,.0f}" if one["retrievals_per_second"] else "–"
        settings = " | ".join(
            "–" if one[name] is None else f"{one[name]:g}" for name in ("lam", "knn_temperature", "k", "nprobe")
        )
        lines.append(
            f"| {one['model']} | {one['perplexity']:.3f} | {one['tokens_per_second']:.0f} | "
            f"{one['tokens_per_second'] / alone:.0%} | {speed} | {one['lm_share']:.1%} | {one['search_share']:.1%} | "
            f"{one['other_share']:.1%} | {settings} |"
        )
    lines += ["", "| k | " + " | ".join(str(int(point["k"])) for point in by_k) + " |"]
    lines += ["|---|" + "---|" * len(by_k)]
    lines += ["| perplexity | " + " | ".join(f"{point['perplexity']:.3f}" for point in by_k) + " |"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
