"""Generation as a person sees it in a terminal: the text as it comes, and what the memory had to do with it."""

from typing import Any

import torch

from nearlm.base import OptionError
from nearlm.knnlm import KNNLM, Explanation


def write_continuation(knnlm: KNNLM, prompt: str, *, chat: bool, seed: int, explain: bool, **options: Any) -> None:
    """Print the continuation of a prompt, token by token where that is possible, and explain it if asked."""
    if options["max_new_tokens"] < 1 or options["num_beams"] < 1:
        raise OptionError("--max-new-tokens and --beams must be at least 1")
    torch.manual_seed(seed)
    streams = options["num_beams"] == 1
    if streams:
        from transformers import TextStreamer

        options["streamer"] = TextStreamer(knnlm.lm.tokenizer, skip_prompt=True, skip_special_tokens=True)
    start, new = knnlm.generate_ids([prompt], chat=chat, **options)[0]
    if not streams:
        print(knnlm.lm.tokenizer.decode(new, skip_special_tokens=True))
    if explain:
        print()
        for one in knnlm.explain([*start, *new], first=len(start)):
            print(format_explanation(one))


def format_explanation(one: Explanation) -> str:
    """Write one token's explanation on a line, with a line for each of the nearest contexts."""
    lines = [f"{one.token!r:18} p_LM {one.p_lm:.4f}  p_kNN {one.p_knn:.4f}  λ {one.lam:.2f}  p {one.p:.4f}"]
    for distance, context in one.nearest:
        before = " ".join(context.text.split())[-60:]
        lines.append(f"{'':6}{distance:8.2f}  …{before} → {context.target!r}  ({context.document}, {context.position})")
    return "\n".join(lines)
