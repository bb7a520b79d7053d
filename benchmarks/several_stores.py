"""Two stores of unlike domains with one model: each alone, both at once, on text of either domain and on other text.

    python benchmarks/several_stores.py licences manuals --valid spdx:valid pydocs:valid --test spdx:test pydocs:test
        --unrelated 'docs/*.md' [--tokens 8000] [--valid-tokens 30000] [--json]

Each store needs a tuned index or gets one tuned, and a mixture, on its own validation text; then one mixture is
learned for both on both texts. They are kept in the stores, so give copies. Everything comes from one pass of the
LM over each text. Of a text about so many tokens are read: the first 8,000 characters of documents that are spread
evenly over it.

"untrained" is what several stores do when nothing was learned for them together: each as it is alone.
"""

import argparse
import json
import warnings
from typing import Any

import numpy as np

from nearlm.base import Doubles, NearLMWarning, Reporter, blocks, canonical_hash
from nearlm.mixing import (
    LMTrace,
    Memory,
    Mixture,
    join_memories,
    learn_together,
    open_memory,
    perplexity,
    standard_error,
    trace_text,
    tune,
)
from nearlm.model.lm import LM
from nearlm.search import read_settings
from nearlm.store import Datastore, SearchSettings, open_stores, store_names
from nearlm.store.model_files import load_lm
from nearlm.text import Reading, TextSource, TokenText, plan_windows

CHARACTERS = 8000  # of a document
PER_TOKEN = 4
LEARNED = "both"


def excerpt(text: str, tokens: int) -> TextSource:
    """Return the beginnings of documents that are spread over a text, about so many tokens in all."""
    found = ["".join(document.pieces)[:CHARACTERS] for document in TextSource((text,)).open().documents()]
    wanted = max(1, PER_TOKEN * tokens // CHARACTERS)
    while sum(len(one) for one in spread(found, wanted)) < PER_TOKEN * tokens and wanted < len(found):
        wanted += 1
    return TextSource.from_strings(*spread(found, wanted), max_tokens=tokens)


def spread(found: list[str], wanted: int) -> list[str]:
    """Choose so many, evenly."""
    places = np.linspace(0, len(found) - 1, min(wanted, len(found))).round().astype(int)
    return [found[place] for place in places]


def learn(store: Datastore, text: TokenText, lm: LM, reporter: Reporter) -> None:
    """Tune a store's index unless it is tuned, and train its mixture unless there is one."""
    if read_settings(store, "default") is None:
        tune(store, text, lm, reporter=reporter)
    if "default" not in store.mixtures:
        Mixture.train(store, text, lm, reporter=reporter)


def joined(traces: list[LMTrace], reading: Reading) -> LMTrace:
    """Put traces together as if their texts were one."""
    tokens = np.concatenate([trace.text.tokens for trace in traces])
    ends = np.cumsum([0, *(len(trace.text.tokens) for trace in traces)])
    starts = [trace.text.bounds[:-1] + end for trace, end in zip(traces, ends[:-1], strict=True)]
    bounds = np.concatenate([*starts, ends[-1:]])
    windows = plan_windows(bounds, reading.window, reading.stride, reading.pack)
    names = [trace.key for trace in traces]
    text = TokenText(tokens, bounds, windows, canonical_hash([trace.text.sha256 for trace in traces]))
    columns = ("keys", "logp", "conf", "ent", "top")
    whole = {name: np.concatenate([getattr(trace, name) for trace in traces]) for name in columns}
    assert len(text.targets) == len(whole["logp"])
    return LMTrace(text, canonical_hash(names)[:24], **whole)


def log_p(memory: Memory, traced: LMTrace) -> Doubles:
    """Return log p of every token of a text."""
    known = traced.known()
    targets = traced.text.targets
    log_lm = traced.log_lm
    parts = []
    for rows in blocks(len(traced), 2048):
        parts.append(memory.predict(traced.keys[rows], known[rows]).score(log_lm[rows], targets[rows])[1])
    return np.concatenate(parts)


def measure(ways: dict[str, Memory], traced: LMTrace, right: str) -> dict[str, Any]:
    """Return the perplexity of each way, and that of both at once as a ratio to the right one's, with its error."""
    logs = {"LM": traced.log_lm, **{name: log_p(memory, traced) for name, memory in ways.items()}}
    found: dict[str, Any] = {name: perplexity(values) for name, values in logs.items()}
    for name in ("untrained", "learned"):
        difference = logs[right] - logs[name]
        error = standard_error(difference, traced.text.documents)
        found[f"{name}: of {right}"] = [float(np.exp(difference.mean())), float(error * np.exp(difference.mean()))]
    return {"tokens": len(traced), "right": right, **found}


def show(rows: dict[str, dict[str, Any]], names: tuple[str, ...]) -> None:
    """Print a table."""
    columns = ("LM", *names, "untrained", "learned")
    print("| text | tokens |", " | ".join(columns), "| untrained / right | learned / right |")
    print("|---" * (len(columns) + 4) + "|")
    for text, row in rows.items():
        ratios = [row[f"{way}: of {row['right']}"] for way in ("untrained", "learned")]
        shown = [f"{ratio:.4f} ± {error:.4f}" for ratio, error in ratios]
        print(f"| {text} | {row['tokens']:,} |", " | ".join(f"{row[name]:.3f}" for name in columns), end=" | ")
        print(" | ".join(shown), "|")


def main() -> None:
    """Learn what is not there, and measure every way on every text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs=2)
    parser.add_argument("--valid", nargs=2, required=True)
    parser.add_argument("--test", nargs=2, required=True)
    parser.add_argument("--unrelated", nargs="+", default=[])
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--valid-tokens", type=int, default=30_000, help="of each validation text")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore", NearLMWarning)
    reporter = Reporter()
    stores = open_stores(asked.stores)
    names = store_names(stores)
    lm = load_lm(stores[0])
    traces = [trace_text(lm, stores[0], excerpt(text, asked.valid_tokens), reporter) for text in asked.valid]
    for store, traced in zip(stores, traces, strict=True):
        learn(store, traced.text, lm, reporter)
    both = joined(traces, stores[0].reading())
    print(learn_together(stores, both, lm, name=LEARNED, reporter=reporter).table())
    own = SearchSettings(mixture="default")
    alone = [Memory.open(store, own) for store in stores]
    learned = open_memory(stores, SearchSettings(mixture=LEARNED), alone)
    ways = {**dict(zip(names, alone, strict=True)), "untrained": join_memories(alone), "learned": learned}
    rows = {}
    for text, right in (*zip(asked.test, names, strict=True), *((text, "LM") for text in asked.unrelated)):
        traced = trace_text(lm, stores[0], excerpt(text, asked.tokens), reporter)
        rows[text] = measure(ways, traced, right)
    if asked.json:
        print(json.dumps(rows))
    else:
        show(rows, names)


if __name__ == "__main__":
    main()
