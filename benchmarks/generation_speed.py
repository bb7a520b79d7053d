"""How fast a memory writes: the LM alone, the plain kNN-LM, with drafts, and prompt lookup, on prompts of a text.

    python benchmarks/generation_speed.py STORE --text spdx:test [--prompts 20] [--tokens 128] [--part 1/3]
        [--keep results.jsonl] [--json]
    python benchmarks/generation_speed.py STORE --keep results.jsonl --show

Every prompt is continued greedily by every variant in turn, so that noise meets all alike; the order turns round from
prompt to prompt. Prompts are the beginnings of documents that are spread evenly over the text. `--part 1/3` takes the
first third of the prompts and `--keep` appends what was found to a file, so that a long run can be done in pieces;
a prompt that is there already is left out. Tokens per second include the reading of the prompt. Outputs are compared
with the plain variant of the same distribution: drafts and prompt lookup must not change a token.

The second table is independent of hardware: tokens per pass of the model if every draft has (up to) n tokens. It is
computed from the plain kNN-LM's own text and the neighbours that it found, without running the model again: where a
pass over n + 1 tokens costs as much as one over one, it is the speed-up.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nearlm.knnlm import KNNLM, Attachment
from nearlm.knnlm.draft_length import Acceptance
from nearlm.knnlm.draft_votes import AHEAD, Chain
from nearlm.knnlm.drafting import Drafter
from nearlm.knnlm.pass_costs import pass_costs
from nearlm.mixing import Prediction
from nearlm.model.passes import turn
from nearlm.search import Neighbors
from nearlm.store import Datastore
from nearlm.text import TextSource, read_once

LM_ALONE, LOOKUP, LM_DRAFTS = "LM alone", "LM, prompt lookup", "LM, drafts of the store"
PLAIN, DRAFTS = "kNN-LM plain", "kNN-LM drafting"
SAME_AS = {LOOKUP: LM_ALONE, LM_DRAFTS: LM_ALONE, DRAFTS: PLAIN}
VARIANTS = (LM_ALONE, PLAIN, DRAFTS, LOOKUP, LM_DRAFTS)
PROMPT_TOKENS = 96
LOOKED_UP = 10  # tokens that prompt lookup drafts, as transformers' documentation does
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass
class Run:
    """What one variant made of one prompt."""

    variant: str
    tokens: list[int]
    seconds: float
    passes: int
    drafted_passes: int = 0
    written_there: int = 0
    by_length: dict[int, int] = field(default_factory=dict)  # passes that drafts of each length would take


def prompts_of(store: Datastore, source: TextSource, count: int, tokens: int) -> list[list[int]]:
    """Return the beginnings of documents that are long enough, spread evenly over a text."""
    with read_once(source, store.tokenizer, store.reading()) as text:
        bounds = zip(text.bounds[:-1], text.bounds[1:], strict=True)
        long = [begin for begin, end in bounds if end - begin >= PROMPT_TOKENS + tokens]
        if not long:
            raise SystemExit(f"no document has {PROMPT_TOKENS + tokens} tokens")
        chosen = np.unique(np.linspace(0, len(long) - 1, count).astype(int))
        return [text.tokens[long[i] : long[i] + PROMPT_TOKENS].tolist() for i in chosen]


class Found(list[tuple[Neighbors | None, int]]):
    """The neighbours of the last position of every pass of a plain generation."""

    def watch(self, said: Prediction) -> None:
        near = said.near if said.near is not None and said.retrieved[-1] else None
        self.append((near, 0 if near is None else len(near.tokens) - 1))


def generate(knnlm: KNNLM, variant: str, prompt: list[int], tokens: int) -> Run:
    """Continue a prompt greedily."""
    options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    if variant == LOOKUP:
        options["prompt_lookup_num_tokens"] = LOOKED_UP
    counted = [0]
    hook = knnlm.lm.model.get_input_embeddings().register_forward_pre_hook(lambda *_: counted.__setitem__(0, counted[0] + 1))
    made = knnlm.continuations([prompt], draft=variant in (DRAFTS, LM_DRAFTS), **options)[0]
    hook.remove()
    there = _drafted_passes(made.drafted) if variant in (DRAFTS, LM_DRAFTS) else (0, 0)
    return Run(variant, made.tokens, made.seconds, counted[0], *there)
