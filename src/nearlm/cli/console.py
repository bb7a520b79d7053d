"""Generation as a person sees it in a terminal: the text as it comes, and what the memory had to do with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from nearlm.base import Json, OptionError, check_at_least, printable, to_json
from nearlm.cli.help import SAMPLING
from nearlm.cli.options import PLAIN, Output

if TYPE_CHECKING:
    from nearlm.knnlm import KNNLM, Continuation, Explanation
    from nearlm.knnlm.explanation import Suffix
    from nearlm.store import Context

MOST_EXPLAINED = 20
_SOURCES = {"knn": "neighbours", "ngram": "∞-gram", "text": "text so far"}
_Sampling = Parameter(group=SAMPLING)


@dataclass(frozen=True)
class Generation:
    """How a prompt is continued, and whether that is explained."""

    max_new_tokens: int = 60
    """How many tokens to add at most."""
    chat: bool = False
    """Put the prompt into the tokenizer's chat template."""
    beams: int = 1
    """Beams of a beam search."""
    draft: Annotated[bool, Parameter(negative="--no-draft")] = True
    """Draft tokens from the store's text and what was read, for fewer passes of the model; the same text is written."""
    explain: bool = False
    """Show what the memory contributed, for the 20 tokens that owe it most."""
    explain_all: bool = False
    """Show it for every token."""
    sample: Annotated[bool, _Sampling] = False
    """Sample instead of taking the likeliest token; any option below implies it."""
    temperature: Annotated[float | None, _Sampling] = None
    """Below 1 the likely tokens become likelier, above 1 all more alike. [default: the model's, or 1]"""
    top_k: Annotated[int | None, _Sampling] = None
    """Sample from the K likeliest tokens, 0: from all. [default: the model's, or 50]"""
    top_p: Annotated[float | None, _Sampling] = None
    """Sample from the likeliest tokens that together have this probability. [default: the model's, or 1]"""
    seed: Annotated[int, _Sampling] = 0
    """Seed of the sampling."""

    def __post_init__(self) -> None:
        check_at_least(1, max_new_tokens=self.max_new_tokens, beams=self.beams)
        check_at_least(0, top_k=self.top_k, seed=self.seed)
        if self.temperature is not None and not 0 < self.temperature < float("inf"):
            raise OptionError(f"`temperature` is {self.temperature}, expected more than 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise OptionError(f"`top_p` is {self.top_p}, expected more than 0, at most 1")

    @property
    def options(self) -> Json:
        """The options of transformers' `generate`."""
        chosen = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p")}
        given = {name: value for name, value in chosen.items() if value is not None}
        sample = self.sample or bool(given)
        return {"max_new_tokens": self.max_new_tokens, "num_beams": self.beams, "do_sample": sample, **given}

    @property
    def most_explained(self) -> int | None:
        """How many tokens are explained, None for all of them."""
        return None if self.explain_all else MOST_EXPLAINED * self.explain


GREEDY = Generation()


def write_continuation(knnlm: "KNNLM", prompt: str, generation: Generation, output: Output = PLAIN) -> None:
    """Print the continuation of a prompt, token by token where that is possible, and explain it if asked."""
    import torch

    torch.manual_seed(generation.seed)
    tokenizer = knnlm.lm.tokenizer
    options = generation.options
    streams = generation.beams == 1 and not output.as_json
    if streams:
        options["streamer"] = _streamer(tokenizer)
    made = knnlm.continuations([prompt], chat=generation.chat, draft=generation.draft, **options)[0]
    start = made.prompt
    new = made.tokens
    explained: list[Explanation] = []
    if generation.most_explained != 0:
        told = knnlm.explain([*start, *new], first=len(start))
        explained = [replace(one, drafted=drafted) for one, drafted in zip(told, made.drafted, strict=True)]
    shown = choose_explained(explained, generation.most_explained)
    text = tokenizer.decode(new, skip_special_tokens=True)
    if output.as_json:
        said = {"explanation": to_json(shown), "left_out": len(explained) - len(shown)} if explained else {}
        output.show({"prompt": prompt, "text": text, "tokens": new, **_speed(made), **said})
        return
    if not streams:
        print(printable(text))
    if explained:
        print("", *(printable(format_explanation(one)) for one in shown), sep="\n")
    if len(shown) < len(explained):
        print(f"{len(explained) - len(shown)} tokens that owe the memory less are left out; see --explain-all")
    drafted = f", {sum(made.drafted)} drafted" if generation.draft else ""
    speed = f"{made.tokens_per_second:,.1f} tokens/s, {made.tokens_per_pass:.2f} per pass of the model{drafted}"
    output.reporter.say(f"{len(new)} tokens at {speed}")


def _speed(made: "Continuation") -> Json:
    """Say how fast a continuation was written."""
    return {
        "drafted": sum(made.drafted),
        "passes": len(made.passes),
        "tokens_per_pass": round(made.tokens_per_pass, 3),
        "tokens_per_second": round(made.tokens_per_second, 2),
    }


def _streamer(tokenizer: Any) -> Any:
    """Return what prints a text as it comes, but for commands to the terminal in it."""
    from transformers import TextStreamer

    class Streamer(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            super().on_finalized_text(printable(text), stream_end)

    return Streamer(tokenizer, skip_prompt=True, skip_special_tokens=True)


def choose_explained(explained: "Sequence[Explanation]", most: int | None) -> "list[Explanation]":
    """Return those tokens that owe the memory most, in the order of the text."""
    owed = sorted(range(len(explained)), key=lambda place: explained[place].p_lm - explained[place].p)
    return [explained[place] for place in sorted(owed[:most])]


def format_explanation(one: "Explanation") -> str:
    """Write one token's explanation on a line, with a line for each of the nearest contexts."""
    kinds = {_kind(name) for name in one.sources}
    searched = "" if kinds and "knn" not in kinds else f"p_kNN {one.p_knn:.4f}  "
    drafted = "  (drafted)" if one.drafted else ""
    lines = [f"{one.token!r:18} p_LM {one.p_lm:.4f}  {searched}λ {one.lam:.2f}  p {one.p:.4f}{drafted}"]
    if one.sources:
        parts = [f"{_source(name)} {weight:.2f} of {p:.4f}" for name, (weight, p) in one.sources.items()]
        lines.append(f"{'':6}weights: {', '.join(parts)}")
    if one.suffix is not None:
        times = f"{one.suffix.count:,} times" if one.suffix.count > 1 else "once"
        lines.append(f"{'':6}the last {one.suffix.length} tokens occur {times}, e.g. in {_place(one.suffix)}")
    for distance, context in one.nearest:
        before = " ".join(context.text.split())[-60:]
        lines.append(f"{'':6}{distance:8.2f}  …{before} → {context.target!r}  ({_place(context)}, {context.position})")
    return "\n".join(lines)


def _kind(source: str) -> str:
    return source.rpartition("/")[2]


def _source(name: str) -> str:
    """Name a source, and the store whose it is where there are several."""
    store = name.rpartition("/")[0]
    return f"{store} {_SOURCES[_kind(name)]}".strip()


def _place(found: "Context | Suffix") -> str:
    """Name a document, and its store where there are several."""
    return f"{found.store}: {found.document}" if found.store else found.document
