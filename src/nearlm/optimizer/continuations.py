"""One passage of unseen text, continued by the LM alone and with its memory, beside how it really goes on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nearlm.base import Doubles
from nearlm.knnlm import KNNLM, ScoredText
from nearlm.text import TokenText

_PROMPT_TOKENS = 64
_NEW_TOKENS = 60
_STEP = 16  # tokens from one candidate to the next
_MOST = 600  # candidates
_TYPICAL = 0.75  # the memory helps more than on three quarters of the passages
_SENTENCE = re.compile(r"(?:[.!?:]\s+|\n\s*\n\s*)(?=[A-Z])")
_PROSE = 0.9  # of letters, spaces and usual punctuation
_USUAL = re.compile(r"[\w ,.;:'\"()-]")
_OPENING = 24  # letters by which two prompts begin in the same place, or in copies of it
_TRIES = 8  # passages that are continued, until both texts are worth showing
_FLOWS = 0.8  # of the pairs of tokens in a text that does not go round in circles are different ones
WRITING: Any = {"max_new_tokens": _NEW_TOKENS, "do_sample": False, "repetition_penalty": 1.1}


@dataclass(frozen=True)
class Continuation:
    """A prompt from an unseen document, continued without and with the memory, and how the document goes on."""

    prompt: str
    alone: str
    memory: str
    truth: str

    def lines(self) -> list[str]:
        """Return all of it, for people."""
        texts = {
            "A prompt from an unseen document": self.prompt,
            "the model alone": self.alone,
            "with its memory": self.memory,
            "the document itself": self.truth,
        }
        return [f"{name}: {' '.join(text.split())} …" for name, text in texts.items()]


def continue_unseen(knnlm: KNNLM, text: TokenText, scored: ScoredText) -> Continuation | None:
    """Choose a passage of a scored text and continue it; None if the text is too short.

    The first passage is taken that both the LM alone and the memory write on without going round in circles; if they
    do after all that are tried, the one after which they do least.
    """
    alone = KNNLM(knnlm.lm, knnlm.store, None)
    best, best_flow = None, -1.0
    for prompt, truth in choose_passages(knnlm.lm.tokenizer, text, scored.logp - scored.log_lm)[:_TRIES]:
        memory, flow = _write(knnlm, prompt)
        if flow <= best_flow:
            continue
        plain, plain_flow = _write(alone, prompt)
        flow = min(flow, plain_flow)
        if flow > best_flow:
            best, best_flow = Continuation(prompt, plain, memory, truth), flow
        if flow >= 1:
            break
    return best


def _write(knnlm: KNNLM, prompt: str) -> tuple[str, float]:
    """Return a continuation, and how well it flows."""
    ((_, new),) = knnlm.generate_ids([prompt], **WRITING)
    text = knnlm.lm.tokenizer.decode(new, skip_special_tokens=True)
    return text, flow_of(new, text)


def flow_of(tokens: Sequence[int], text: str) -> float:
    """Return 1 for prose that does not repeat itself, and less the more it does, or the less it is prose."""
    pairs = list(pairwise(tokens))
    different = len(set(pairs)) / max(1, len(pairs))
    return min(1.0, different / _FLOWS, _prose(text) / _PROSE)


def choose_passages(tokenizer: Any, text: TokenText, gain: Doubles) -> list[tuple[str, str]]:
    """Return prompts and how they go on, the best first: prose from a sentence's beginning, where the memory helps.

    `gain` is what the memory adds to log p of each target. The first is where it adds more than on three quarters of
    them, and the next ones are those that are most like it. Without prose there is one, of what is most like it.
    """
    gains = np.zeros(len(text.tokens))
    gains[text.windows.target_positions] = gain
    found = []
    for place in _places(text):
        prompt = tokenizer.decode(text.tokens[place - _PROMPT_TOKENS : place], skip_special_tokens=True)
        truth = tokenizer.decode(text.tokens[place : place + _NEW_TOKENS], skip_special_tokens=True)
        start = _SENTENCE.search(prompt[: len(prompt) // 2])
        prose = min(_prose(prompt), _prose(truth))
        ready = start is not None and truth[:1] == " " and prose >= _PROSE
        begin = start.end() if start is not None else 0
        found.append((ready, prose, gains[place : place + _NEW_TOKENS].mean(), prompt[begin:].strip(), truth))
    good = sorted((one for one in found if one[0]), key=lambda one: one[2])
    typical = int(_TYPICAL * (len(good) - 1))
    ranked: dict[str, tuple[str, str]] = {}
    for rank in sorted(range(len(good)), key=lambda rank: (abs(rank - typical), rank)):
        ranked.setdefault(good[rank][3][:_OPENING], good[rank][3:])
    if ranked:
        return list(ranked.values())
    best = max(found, key=lambda one: one[1], default=None)  # nothing is prose
    return [] if best is None or not best[3] else [best[3:]]


def _places(text: TokenText) -> list[int]:
    """Return places with enough tokens of the same document before and after, some of them if there are very many."""
    places: list[int] = []
    for begin, end in zip(text.bounds[:-1], text.bounds[1:], strict=True):
        places += range(int(begin) + _PROMPT_TOKENS, int(end) - _NEW_TOKENS, _STEP)
    return places[:: max(1, len(places) // _MOST)]


def _prose(text: str) -> float:
    """Return which share of a text is letters, spaces and usual punctuation; line breaks of a list count against it."""
    lines = text.replace("\n\n", "\n \n")
    return len(_USUAL.findall(re.sub(r"(?<=\w)\n(?=\w)", " ", lines))) / max(1, len(lines))
