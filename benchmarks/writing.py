"""How often a memory writes on as a text does: exact match of the next tokens under greedy decoding.

    python benchmarks/writing.py STORE --valid spdx:valid --test spdx:test [--max-tokens 20000] [--continuations 3]
        [--json]

Greedy decoding writes the next n tokens of a text if and only if each of them is the likeliest after all that stands
before it in the text. So one pass over a text gives the exact match from every place of it, and nothing is generated.
The text is read in windows as `nearlm eval` reads it; a place counts if the n tokens after it are in its window.

"Writing": β is added to the log odds of the memory, p ∝ w_LM p_LM + e^β Σ_e w_e p_e, which turns one λ into another.
It is the best for the next 8 tokens on that part of the validation text from which the mixture did not learn.
Standard errors of differences are over documents. Continuations are really generated: from the beginnings of
documents that are spread evenly over the test text.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearlm.base import Doubles, Ints, Reporter, to_json
from nearlm.knnlm import KNNLM
from nearlm.mixing import Contexts, Known, Memory, perplexity, split_rows, standard_error
from nearlm.model.lm import LM, statistics_of
from nearlm.model.tap import capture
from nearlm.store import Datastore, SearchSettings
from nearlm.store.model_files import load_lm
from nearlm.text import TextSource, TokenText, fill_batch, read_once

LENGTHS = (1, 8, 16)
CHOSEN_BY = 8
LEANINGS = np.round(np.arange(-3, 5.01, 0.25), 2)
SHOWN = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
ROWS = 64  # of the whole vocabulary at a time
ALONE, ONE, MIXTURE = "LM alone", "one λ", "mixture"
MEMORIES = {ALONE: None, ONE: SearchSettings(mixture="none", gate="none"), MIXTURE: SearchSettings(mixture="default")}
HELD_OUT, TEST = "held out of the validation text", "test"
PROMPT_TOKENS = 96
WRITTEN_TOKENS = 48


@dataclass(frozen=True)
class Reach:
    """Of each token of a text: log p, and the bounds of e^β between which greedy decoding writes it."""

    log_p: Doubles
    low: Doubles
    high: Doubles

    def written(self, leaning: float, runs: Ints) -> Any:
        """Tell which runs of rows, [n, length], are written as they stand in the text."""
        raised = np.exp(leaning)
        return (self.low[runs].max(1) < raised) & (raised < self.high[runs].min(1))


@dataclass(frozen=True)
class Read:
    """A text as LM and memories see it: documents and windows of its targets, and the reach of each memory."""

    documents: Ints
    windows: Ints
    reaches: dict[str, Reach]

    def runs(self, length: int) -> Ints:
        """Return the rows of the next tokens of every place that has so many in its window, [n, length]."""
        first = np.arange(len(self.windows) - length + 1)
        return first[self.windows[first] == self.windows[first + length - 1], None] + np.arange(length)

    def exact(self, name: str, leaning: float, length: int) -> Doubles:
        """Tell of every place whether the next tokens are written as they stand."""
        return self.reaches[name].written(leaning, self.runs(length)).astype(np.float64)


@dataclass(frozen=True)
class Row:
    name: str
    leaning: float
    perplexity: float
    exact: dict[int, float]
    more_than_scoring: float
    error: float


def bounds_of(p_lm: Tensor, memory: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of b between which each target is the largest of p_lm + b memory, [n, vocabulary]."""
    mine = targets[:, None]
    by_lm = p_lm.gather(1, mine) - p_lm
    by_memory = memory.gather(1, mine) - memory
    bound = -by_lm / by_memory
    low = torch.where(by_memory > 0, bound, 0).amax(1)
    high = torch.where(by_memory < 0, bound, torch.inf).amin(1)
    never = ((by_memory == 0) & (by_lm < 0)).any(1)
    return low, torch.where(never, -torch.inf, high)


def read(
    lm: LM, text: TokenText, memories: dict[str, Memory | None], reporter: Reporter, documents: Ints | None = None
) -> Read:
    """Run the LM over a text, or some documents of it, window by window, and ask every memory."""
    chosen = text.windows
    if documents is not None:
        chosen = chosen[np.flatnonzero(np.isin(document_of(text, chosen.start), documents))]
    found: dict[str, list[Tensor]] = {name: [] for name in memories}
    with reporter.bar("reading", chosen.records, "tokens") as advance:
        for number in range(len(chosen)):
            one = chosen[np.array([number])]
            for log_lm, keys, known, targets in read_window(lm, text, one):
                for name, memory in memories.items():
                    found[name].append(reach_of(log_lm, keys, known, targets, memory))
            advance(one.records)
    reaches = {name: Reach(*torch.cat(parts, 1).double().numpy()) for name, parts in found.items()}
    windows = np.repeat(np.arange(len(chosen)), chosen.targets)
    return Read(document_of(text, chosen.target_positions), windows, reaches)


def document_of(text: TokenText, positions: Ints) -> Ints:
    return np.searchsorted(text.bounds, positions, side="right") - 1


def read_window(lm: LM, text: TokenText, window: Any) -> Iterator[tuple[Tensor, Any, Known, Tensor]]:
    """Run the LM over one window; yield log p of the vocabulary and what a memory asks for, some rows at a time."""
    batch = fill_batch(text.tokens, window)
    recorded = torch.from_numpy(batch.recorded)
    contexts = Contexts.of_text(text.tokens, text.bounds, window.target_positions)
    with torch.inference_mode(), capture(lm.tap, stop=False) as vectors:
        logits = lm.model(input_ids=torch.from_numpy(batch.ids).to(lm.device), use_cache=False).logits[recorded]
    keys = vectors[0].reshape(*batch.ids.shape, -1)[recorded].float().cpu().numpy()
    for start in range(0, len(keys), ROWS):
        rows = slice(start, start + ROWS)
        log_lm = logits[rows].float().cpu().log_softmax(-1)
        found = statistics_of(log_lm)
        known = Known(found.conf.numpy(), found.ent.numpy(), found.top.int().numpy(), contexts[rows])
        yield log_lm, keys[rows], known, torch.from_numpy(batch.targets[rows]).long()


def reach_of(log_lm: Tensor, keys: Any, known: Known, targets: Tensor, memory: Memory | None) -> Tensor:
    """Return log p of targets and the bounds of their e^β, [3, n]."""
    if memory is None:
        log_p = log_lm
        high = torch.where(torch.from_numpy(known.top) == targets, torch.inf, -torch.inf)
        bounds = (torch.zeros_like(high), high)
    else:
        prediction = memory.predict(keys, known)
        log_p = prediction.log_p_vocabulary(log_lm)
        of_lm = log_lm.exp() * torch.from_numpy(1 - prediction.lam).float()[:, None]
        bounds = bounds_of(of_lm, log_p.exp() - of_lm, targets)
    return torch.stack([log_p.gather(1, targets[:, None])[:, 0], *bounds])


def best_leaning(valid: Read, name: str) -> float:
    """Return the β at which most places of a text are written on exactly; of equals the nearest to 0."""
    runs = valid.runs(CHOSEN_BY)
    shares = {leaning: valid.reaches[name].written(leaning, runs).mean() for leaning in LEANINGS.tolist()}
    return max(shares, key=lambda leaning: (shares[leaning], -abs(leaning)))


def row_of(text: Read, name: str, label: str, leaning: float) -> Row:
    """Measure a memory at a β, and compare it with β = 0."""
    gain = text.exact(name, leaning, CHOSEN_BY) - text.exact(name, 0, CHOSEN_BY)
    error = standard_error(gain, text.documents[text.runs(CHOSEN_BY)[:, 0]])
    exact = {length: float(text.exact(name, leaning, length).mean()) for length in LENGTHS}
    return Row(label, leaning, perplexity(text.reaches[name].log_p), exact, float(gain.mean()), error)


def rows_of(text: Read, chosen: dict[str, float]) -> list[Row]:
    """Return the table of a text: each memory as it scores, and as it was chosen to write."""
    rows = []
    for name in text.reaches:
        rows.append(row_of(text, name, name, 0.0))
        if name in chosen:
            rows.append(row_of(text, name, f"{name}, writing", chosen[name]))
    return rows


def by_leaning(text: Read, name: str) -> dict[float, float]:
    """Return the share of places that are written on exactly, by β."""
    return {leaning: float(text.exact(name, leaning, CHOSEN_BY).mean()) for leaning in SHOWN}


def raise_odds(lam: float, leaning: float) -> float:
    """Return the λ that a β makes of another."""
    odds = lam / (1 - lam) * np.exp(leaning)
    return float(odds / (1 + odds))


def main() -> None:
    options = parse()
    reporter = Reporter()
    store = Datastore.open(options.store)
    lm = load_lm(store)
    memories = {name: one and Memory.open(store, one) for name, one in MEMORIES.items()}
    with read_once(options.valid, lm.tokenizer, store.reading(), reporter) as text:
        valid = read(lm, text, memories, reporter, held_out(text, memories[MIXTURE]))
    source = TextSource((options.test,), max_tokens=options.max_tokens)
    with read_once(source, lm.tokenizer, store.reading(), reporter) as text:
        test = read(lm, text, memories, reporter)
        passages = list(pick(text, options.continuations))
    chosen = {name: best_leaning(valid, name) for name in (ONE, MIXTURE)}
    writing = raise_odds(memories[ONE].lam, chosen[ONE])
    writers = {**MEMORIES, f"λ={writing:.2f}": SearchSettings(lam=writing)}
    written = [continuations(store, lm, *passage, writers) for passage in passages]
    found = {
        "tables": {HELD_OUT: rows_of(valid, chosen), TEST: rows_of(test, chosen)},
        "by_leaning": {HELD_OUT: by_leaning(valid, MIXTURE), TEST: by_leaning(test, MIXTURE)},
        "lam": {"scoring": memories[ONE].lam, "writing": writing},
        "continuations": written,
    }
    show(found, options.json)


def held_out(text: TokenText, memory: Memory) -> Ints:
    """Return the documents from which a mixture did not learn."""
    split = split_rows(text.documents, memory.mixture.info.seed)
    if split.unit != "documents" or text.sha256 != memory.mixture.info.text:
        raise SystemExit("the mixture was not trained on --valid, with whole documents held out; see nearlm gate")
    return np.unique(split.documents)


def pick(text: TokenText, count: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield beginnings of documents, and what follows them, spread evenly over those that are long enough."""
    long = np.flatnonzero(np.diff(text.bounds) >= PROMPT_TOKENS + WRITTEN_TOKENS)
    for document in long[np.linspace(0, len(long) - 1, count).round().astype(int)] if count else ():
        begin = int(text.bounds[document])
        middle = begin + PROMPT_TOKENS
        yield np.array(text.tokens[begin:middle]), np.array(text.tokens[middle : middle + WRITTEN_TOKENS])


def continuations(
    store: Datastore, lm: LM, prompt: Ints, rest: Ints, memories: dict[str, SearchSettings | None]
) -> dict[str, str]:
    """Write on from a prompt with each memory, beside the text itself."""
    typed = lm.tokenizer.decode(prompt, skip_special_tokens=True)
    written = {"prompt": typed, "text": lm.tokenizer.decode(rest)}
    for name, settings in memories.items():
        knnlm = KNNLM.load(store, lm, settings or SearchSettings(), knn=settings is not None)
        written[name] = knnlm.generate(typed, max_new_tokens=WRITTEN_TOKENS, do_sample=False)
    return written


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(to_json(found)))
        return
    print("λ of {scoring:g} for scoring, {writing:.2f} for writing".format(**found["lam"]))
    for title, table in found["tables"].items():
        heads = " | ".join(f"next {length}" for length in LENGTHS)
        print(f"\n{title}\n| | β | perplexity | {heads} | of {CHOSEN_BY}: more than at β=0 |")
        print("|---|---|---|" + "---|" * (len(LENGTHS) + 1))
        for row in table:
            exact = " | ".join(f"{share:.2%}" for share in row.exact.values())
            scoring = f"{row.perplexity:.3f}" if row.leaning == 0 else "–"
            more = f"{row.more_than_scoring:.2%} ± {row.error:.2%}"
            print(f"| {row.name} | {row.leaning:g} | {scoring} | {exact} | {more} |")
        shares = ", ".join(f"{share:.2%} at {leaning:g}" for leaning, share in found["by_leaning"][title].items())
        print(f"{MIXTURE}, next {CHOSEN_BY} by β: {shares}")
    for one in found["continuations"]:
        print("\n" + "\n".join(f"{name}: {text!r}" for name, text in one.items()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--valid", required=True, help="the text on which the mixture was trained")
    parser.add_argument("--test", required=True)
    parser.add_argument("--max-tokens", type=int, default=20_000, help="of the test text")
    parser.add_argument("--continuations", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
