"""How fast a memory writes: the LM alone, the plain kNN-LM, with drafts, and prompt lookup, on prompts of a text.

    python benchmarks/generation_speed.py STORE --text spdx:test [--prompts 20] [--tokens 128] [--part 1/3]
        [--variants "LM alone;kNN-LM drafting"] [--keep results.jsonl] [--show]
    python benchmarks/generation_speed.py STORE --text spdx:test --replay [--costs 1:47,2:52,8:67,16:90]

Every prompt is continued greedily by every variant in turn, and the order turns round from prompt to prompt, so that
noise meets all alike. Prompts are the beginnings of documents that are spread evenly over the text. `--part 1/3` takes
the first third of the prompts and `--keep` adds what was found to a file, so that a long run can be done in pieces; a
prompt that is there already is left out, and `--show` only shows what is there. Tokens per second include the reading
of the prompt. Outputs are compared with the plain variant of the same distribution: drafts must not change a token.

The second table does not depend on hardware: tokens per pass of the model if every draft has up to n tokens. It is
computed from the plain kNN-LM's own text and the neighbours that it found, without generating again. Where a pass over
n + 1 tokens takes as long as one over one token, it is the gain in speed. The last column is what `generate` does if
passes take the times of `--costs` (tokens:time, between which times are interpolated), and the third table the gain by
these times. `--replay` computes only these tables: all prompts are written as one batch, and nothing is timed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearlm.base import Doubles
from nearlm.knnlm import KNNLM, Attachment
from nearlm.knnlm.draft_length import Acceptance, Pace
from nearlm.knnlm.draft_votes import AHEAD, Chain
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.generation import continue_rows
from nearlm.knnlm.pass_costs import PassCosts, pass_costs
from nearlm.mixing import Prediction
from nearlm.model.passes import turn
from nearlm.search import Neighbors
from nearlm.store import Datastore
from nearlm.text import TextSource, read_once

ALONE, LOOKUP, LM_DRAFTS = "LM alone", "LM, prompt lookup", "LM, drafting"
PLAIN, DRAFTS = "kNN-LM plain", "kNN-LM drafting"
VARIANTS = (ALONE, PLAIN, DRAFTS, LOOKUP, LM_DRAFTS)
SAME_AS = {LOOKUP: ALONE, LM_DRAFTS: ALONE, DRAFTS: PLAIN}
PROMPT_TOKENS = 96
LOOKED_UP = 10  # tokens that prompt lookup drafts, as in transformers' documentation
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
LEARNED: dict[str, Acceptance] = {}  # by source: from one prompt to the next, as in `generate`
SOURCES = ("all sources", "without neighbours", "without ∞-gram", "the text so far alone")


@dataclass(frozen=True)
class Run:
    """What one variant made of one prompt."""

    prompt: int
    variant: str
    tokens: list[int]
    seconds: float
    passes: int
    drafts: list[tuple[int, int]] = field(default_factory=list)  # tokens drafted and written, of each pass
    replayed: dict[str, list[float]] = field(default_factory=dict)  # see `replay`


class Found(list[tuple[Neighbors | None, int]]):
    """The neighbours of each position that was read, and their row."""

    def watch(self, said: Prediction) -> None:
        rows = np.cumsum(said.retrieved) - 1
        for retrieved, row in zip(said.retrieved, rows, strict=True):
            self.append((said.near if retrieved else None, int(row)))


def prompts_of(store: Datastore, source: TextSource, count: int, tokens: int) -> list[list[int]]:
    """Return the beginnings of documents that are long enough, spread evenly over a text."""
    with read_once(source, store.tokenizer, store.reading()) as text:
        bounds = zip(text.bounds[:-1], text.bounds[1:], strict=True)
        long = [begin for begin, end in bounds if end - begin >= PROMPT_TOKENS + tokens]
        if not long:
            sys.exit(f"no document of the text has {PROMPT_TOKENS + tokens} tokens")
        chosen = np.unique(np.linspace(0, len(long) - 1, count).astype(int))
        return [np.asarray(text.tokens[long[i] : long[i] + PROMPT_TOKENS]).tolist() for i in chosen]


def run(knnlm: KNNLM, variant: str, number: int, prompt: list[int], tokens: int) -> Run:
    """Continue a prompt greedily by one variant."""
    options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    if variant == LOOKUP:
        options["prompt_lookup_num_tokens"] = LOOKED_UP
    memory = knnlm.memory if variant in (PLAIN, DRAFTS) else None
    drafter = knnlm.drafter if variant in (DRAFTS, LM_DRAFTS) else None
    counted = []
    hook = knnlm.lm.model.get_input_embeddings().register_forward_pre_hook(lambda *_: counted.append(1))
    made = continue_rows(knnlm.lm, memory, drafter, [prompt], options)[0]
    hook.remove()
    drafts = [tuple(one) for one in made.passes] if drafter is not None else []
    passes = len(drafts) or len(counted)  # those that only measure a pass do not count
    return Run(number, variant, made.tokens, made.seconds, passes, drafts)


def replay(knnlm: KNNLM, prompt: list[int], tokens: list[int], costs: Doubles) -> dict[str, list[float]]:
    """Return how many passes drafts of each length would take, by source, to write tokens that are known.

    After LENGTHS come the passes with drafts as long as they pay, those of them that draft, the tokens written there,
    and the time of all by the costs.
    """
    read = np.array([*prompt, *tokens], np.int32)
    near = neighbors_of(knnlm, read)[-len(tokens) :]
    with_suffixes = Drafter(knnlm.store, knnlm.drafter.infinigram)
    without = Drafter(knnlm.store, None)
    ways = zip(SOURCES, ((with_suffixes, True), (with_suffixes, False), (without, True), (without, False)), strict=True)
    passes: dict[str, list[float]] = {}
    for name, (drafter, neighbors) in ways:
        chains = [
            drafter.chain(read[: len(prompt) + place + 1], *(near[place] if neighbors else (None, 0)))
            for place in range(len(tokens))
        ]
        fixed = [len(passes_of(chains, tokens, lambda chain, length=length: length)) for length in LENGTHS]
        acceptance = LEARNED.setdefault(name, Acceptance())
        paying = Paying(acceptance, Pace(costs))
        made = passes_of(chains, tokens, paying.length, paying.learn)
        drafted = [written for length, written in made if length]
        passes[name] = [*fixed, len(made), len(drafted), sum(drafted), sum(float(costs[length]) for length, _ in made)]
    return passes


@dataclass(frozen=True)
class Paying:
    """Drafts as long as they pay, and learns from each, as `generate` does."""

    acceptance: Acceptance
    pace: Pace

    def length(self, chain: Chain) -> int:
        return self.pace.best_length([self.acceptance.rates(chain)])

    def learn(self, chain: Chain, drafted: int, written: np.ndarray) -> None:
        self.acceptance.learn(chain, written)
        self.pace.count(drafted + 1, len(written))


def neighbors_of(knnlm: KNNLM, read: np.ndarray) -> Found:
    """Read a text and return the neighbours before each of its tokens but the first."""
    found = Found()
    if knnlm.memory is None:
        return Found([(None, 0)] * (len(read) - 1))
    ids = torch.from_numpy(read[None, :-1].astype(np.int64)).to(knnlm.lm.device)
    with turn(knnlm.lm.model), Attachment(knnlm.lm, knnlm.memory, found.watch), torch.no_grad():
        knnlm.lm.model(input_ids=ids)
    return found


def passes_of(
    chains: list[Chain],
    tokens: list[int],
    length_of: Callable[[Chain], int],
    learn: Callable[[Chain, int, np.ndarray], None] = lambda *_: None,
) -> list[tuple[int, int]]:
    """Return the passes that write some tokens, as tokens drafted and written, if drafts have some lengths."""
    place = 0
    passes = [(0, 1)]  # which reads the prompt and writes the first token
    while place < len(tokens) - 1:
        chain = chains[place]
        draft = chain.tokens[: min(length_of(chain), len(tokens) - 2 - place)]
        coming = np.array(tokens[place + 1 : place + 2 + len(draft)], np.int32)
        same = draft == coming[: len(draft)]
        written = 1 + (len(draft) if same.all() else int(same.argmin()))
        learn(chain, len(draft), coming[:written])
        passes.append((len(draft), written))
        place += written
    return passes


def measure(
    knnlm: KNNLM, prompts: dict[int, list[int]], tokens: int, variants: list[str], keep: Path | None, costs: Doubles
) -> list[Run]:
    """Run all variants on each prompt in turn, and keep what was found after each."""
    runs = []
    for number, prompt in prompts.items():
        turned = number % len(variants)
        made = [run(knnlm, name, number, prompt, tokens) for name in variants[turned:] + variants[:turned]]
        plain = next((one for one in made if one.variant == PLAIN), None)
        if plain is not None:
            made[made.index(plain)] = replace(plain, replayed=replay(knnlm, prompt, plain.tokens, costs))
        if keep is not None:
            with keep.open("a") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in made)
        runs += made
        speeds = ", ".join(f"{one.variant} {len(one.tokens) / one.seconds:.1f}" for one in made)
        print(f"prompt {number}: {speeds} tokens/s", file=sys.stderr, flush=True)
    return runs


def kept(path: Path | None) -> list[Run]:
    """Return what was found before."""
    if path is None or not path.exists():
        return []
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()]


def table(runs: list[Run]) -> list[str]:
    """Compare the variants, over all prompts."""
    by = {name: {one.prompt: one for one in runs if one.variant == name} for name in VARIANTS}
    by = {name: found for name, found in by.items() if found}
    base = speed(by[ALONE].values()) if ALONE in by else float("nan")
    lines = [
        "| | tokens/s | of the LM's speed | tokens per pass | passes that draft | tokens per pass there | same output |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name, found in by.items():
        drafted = [written for one in found.values() for length, written in one.drafts if length]
        total = sum(len(one.drafts) for one in found.values())
        there = [f"{len(drafted) / total:.0%}", f"{np.mean(drafted or [0]):.2f}"] if total else ["", ""]
        other = by.get(SAME_AS.get(name, ""), {})
        same = [one.tokens == other[number].tokens for number, one in found.items() if number in other]
        per_pass = sum(len(one.tokens) for one in found.values()) / sum(one.passes for one in found.values())
        fast = speed(found.values())
        cells = [
            f"{fast:.1f}",
            f"{fast / base:.2f}",
            f"{per_pass:.2f}",
            *there,
            f"{sum(same)} of {len(same)}" if same else "",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def speed(runs: Iterable[Run]) -> float:
    """Return the tokens per second of all runs together."""
    found = list(runs)
    return sum(len(one.tokens) for one in found) / sum(one.seconds for one in found)


def by_length(runs: list[Run]) -> list[str]:
    """Show tokens per pass by the length of drafts, for each source, and what drafts that pay would gain."""
    replayed = [one for one in runs if one.replayed]
    if not replayed:
        return []
    lines = [f"| drafts of up to | {' | '.join(map(str, LENGTHS))} | as it pays |", "|---" * (len(LENGTHS) + 2) + "|"]
    paying = [
        "",
        "| drafts as they pay | passes that draft | tokens per pass there | gain by the costs |",
        "|---|---|---|---|",
    ]
    tokens = sum(len(one.tokens) for one in replayed)
    for name in SOURCES:
        *passes, drafting, written, took = np.sum([one.replayed[name] for one in replayed], 0)
        lines.append(f"| {name} | {' | '.join(f'{tokens / count:.2f}' for count in passes)} |")
        cells = f"{drafting / passes[-1]:.0%} | {written / max(drafting, 1):.2f} | {tokens / took:.2f}"
        paying.append(f"| {name} | {cells} |")
    return lines + paying


def write_together(knnlm: KNNLM, prompts: list[list[int]], tokens: int, costs: Doubles) -> list[Run]:
    """Write after all prompts as one batch, and replay drafts for it."""
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    made = continue_rows(knnlm.lm, knnlm.memory, None, prompts, options)
    return [
        Run(number, PLAIN, one.tokens, one.seconds, tokens, [], replay(knnlm, one.prompt, one.tokens, costs))
        for number, one in enumerate(made)
    ]


def costs_of(text: str) -> Doubles:
    """Return the times of passes over 1 to 17 tokens, in passes over one, from `tokens:time,…`."""
    pairs = [tuple(map(float, pair.split(":"))) for pair in text.split(",")]
    sizes, times = zip(*pairs, strict=True)
    return PassCosts(tuple(map(int, sizes)), tuple(time / times[0] for time in times)).by_tokens(AHEAD + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("store")
    parser.add_argument("--text", default="spdx:test", help="what prompts are the beginnings of documents of")
    parser.add_argument("--max-tokens", type=int, help="of the text")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128, help="to write after each")
    parser.add_argument("--part", default="1/1", help="which part of the prompts, e.g. 2/3")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="separated by semicolons")
    parser.add_argument("--keep", type=Path, help="a file to which results are added")
    parser.add_argument("--costs", default="1:1,17:1", help="times of passes to replay with, as tokens:time,…")
    parser.add_argument("--replay", action="store_true", help="only tokens per pass, nothing is timed")
    parser.add_argument("--show", action="store_true", help="show what is kept, measure nothing")
    options = parser.parse_args()
    runs = kept(options.keep)
    if not options.show:
        runs += run_all(options, {one.prompt for one in runs})
    print(f"{len({one.prompt for one in runs})} prompts", "", sep="\n")
    if not options.replay:
        print(*table(runs), "", sep="\n")
    print(*by_length(runs), sep="\n")


def run_all(options: argparse.Namespace, done: set[int]) -> list[Run]:
    """Measure what is not done yet of the part that was asked for."""
    knnlm = KNNLM.load(options.store)
    source = TextSource((options.text,), max_tokens=options.max_tokens)
    prompts = prompts_of(knnlm.store, source, options.prompts, options.tokens)
    costs = costs_of(options.costs)
    if options.replay:
        return write_together(knnlm, prompts, options.tokens, costs)
    part, parts = map(int, options.part.split("/"))
    mine = np.array_split(np.arange(len(prompts)), parts)[part - 1].tolist()
    left = {number: prompts[number] for number in mine if number not in done}
    variants = options.variants.split(";")
    warm_up(knnlm, prompts[0], variants)
    return measure(knnlm, left, options.tokens, variants, options.keep, costs)


def warm_up(knnlm: KNNLM, prompt: list[int], variants: list[str]) -> None:
    """Load all kernels, and measure what passes take, with the memory and without."""
    for name in variants:
        run(knnlm, name, 0, prompt, 4)
    for memory in (knnlm.memory, None):
        attached = nullcontext() if memory is None else Attachment(knnlm.lm, memory)
        with turn(knnlm.lm.model), knnlm.lm.packed(), attached:
            costs = pass_costs(knnlm.lm, memory)
        shown = ", ".join(f"{size}: {1e3 * took:.1f}" for size, took in zip(costs.sizes, costs.seconds, strict=True))
        print(f"ms of a pass over tokens{'' if memory is None else ', with the memory'}: {shown}", file=sys.stderr)


if __name__ == "__main__":
    main()
