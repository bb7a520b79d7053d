"""One passage of unseen text, continued by the LM alone and with its memory, beside how it really goes on."""

import re
from dataclasses import dataclass
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
    """Choose a passage of a scored text and continue it; None if the text is too short."""
    chosen = choose_passage(knnlm.lm.tokenizer, text, scored.logp - scored.log_lm)
    if chosen is None:
        return None
    prompt, truth = chosen
    alone = KNNLM(knnlm.lm, knnlm.store, None)
    return Continuation(prompt, _write(alone, prompt), _write(knnlm, prompt), truth)


def _write(knnlm: KNNLM, prompt: str) -> str:
    return knnlm.generate(prompt, **WRITING)


def choose_passage(tokenizer: Any, text: TokenText, gain: Doubles) -> tuple[str, str] | None:
    """Return a prompt and how it goes on: prose from a sentence's beginning, where the memory's gain is above most.

    `gain` is what the memory adds to log p of each target.
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
    if good:
        return good[int(_TYPICAL * (len(good) - 1))][3:]
    best = max(found, key=lambda one: one[1], default=None)  # nothing is prose
    return None if best is None or not best[3] else best[3:]


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
