"""Answers as OpenAI's clients read them, whole or in chunks, with what the memory did beside them."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from nearlm.serve.catalog import Served
from nearlm.serve.tasks import Delta, Token

Json = dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """How many tokens were read and written."""

    prompt: int
    completion: int

    def to_json(self) -> Json:
        """Return it as clients read it."""
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


@dataclass(frozen=True)
class Style:
    """How an answer is written: as a completion or as a chat, for which model, and with what beside the text."""

    served: Served
    model: str
    chat: bool
    logprobs: bool = False
    explain: bool = False
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, served: Served, model: str, *, chat: bool, logprobs: bool, explain: bool) -> "Style":
        """Make a style with an id of its own."""
        kind = "chatcmpl" if chat else "cmpl"
        return cls(served, model, chat, logprobs, explain, f"{kind}-{secrets.token_hex(12)}")

    def whole(self, choices: list[Json], usage: Usage) -> Json:
        """Write an answer."""
        name = "chat.completion" if self.chat else "text_completion"
        return {**self._head(name), "choices": choices, "usage": usage.to_json()}

    def chunk(self, choices: list[Json], usage: Usage | None = None) -> Json:
        """Write a part of a stream."""
        made = {**self._head("chat.completion.chunk" if self.chat else "text_completion"), "choices": choices}
        return made if usage is None else {**made, "usage": usage.to_json()}

    def _head(self, name: str) -> Json:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def choice(self, index: int, delta: Delta, *, part: bool, shift: int = 0) -> Json:
        """Write one choice, or a part of it; offsets of its tokens are moved by `shift`."""
        made: Json = {"index": index}
        if self.chat:
            made["delta" if part else "message"] = self._message(delta, part=part)
        else:
            made["text"] = delta.text
        made["logprobs"] = self._logprobs(delta.tokens, shift) if self.logprobs else None
        made["finish_reason"] = delta.finish
        if self.explain:
            made["nearlm"] = {"tokens": self.explained(delta.tokens)}
        return made

    def opening(self, index: int) -> Json:
        """Write the part that begins an answer of a chat."""
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def _message(self, delta: Delta, *, part: bool) -> Json:
        if part:
            return {"content": delta.text} if delta.text else {}
        return {"role": "assistant", "content": delta.text, "refusal": None}

    def explained(self, tokens: list[Token]) -> list[Json]:
        """Explain tokens."""
        show = self.served.vocabulary.show
        stores = self.served.shown
        return [token.trace.to_json(token.id, stores, show) for token in tokens if token.trace is not None]

    def _logprobs(self, tokens: list[Token], shift: int) -> Json:
        return {"content": [self._chat_logprob(token) for token in tokens]} if self.chat else self._lists(tokens, shift)

    def _chat_logprob(self, token: Token) -> Json:
        best = token.alternatives
        pairs = zip(best.ids, best.logps, strict=True) if best is not None else ()
        return {**self._named(token.id, token.logp), "top_logprobs": [self._named(*pair) for pair in pairs]}

    def _named(self, token: int, logp: float | None) -> Json:
        text = self.served.vocabulary.show([token])
        return {"token": text, "logprob": _finite(logp), "bytes": list(text.encode("utf-8", "replace"))}

    def _lists(self, tokens: list[Token], shift: int) -> Json:
        show = self.served.vocabulary.show
        top: list[Json | None] = []
        for token in tokens:
            best = token.alternatives
            pairs = zip(best.ids, best.logps, strict=True) if best is not None else ()
            top.append({show([each]): _finite(logp) for each, logp in pairs} if token.logp is not None else None)
        return {
            "tokens": [show([token.id]) for token in tokens],
            "token_logprobs": [_finite(token.logp) for token in tokens],
            "top_logprobs": top if any(top) else None,
            "text_offset": [token.offset + shift for token in tokens],
        }


def _finite(logp: float | None) -> float | None:
    """Return log p as JSON can write it."""
    return None if logp is None else max(logp, -9999.0)
