"""A dialogue with an LM that stays loaded: what was said so far, and whether the memory takes part."""

from dataclasses import dataclass, field
from typing import Unpack

from nearlm.base import OptionError
from nearlm.knnlm.knnlm import KNNLM, Explanation, GenerateOptions


@dataclass
class Dialogue:
    """What was said so far; a model without a chat template continues each text by itself."""

    knnlm: KNNLM
    memory: bool = True
    messages: list[dict[str, str]] = field(default_factory=list)
    last: tuple[list[int], list[int]] | None = None

    @property
    def chats(self) -> bool:
        """Whether the model takes messages; otherwise it continues texts."""
        return bool(getattr(self.knnlm.lm.tokenizer, "chat_template", None))

    @property
    def speaker(self) -> KNNLM:
        """The LM as it speaks now, with its memory or without."""
        return self.knnlm if self.memory else KNNLM(self.knnlm.lm, self.knnlm.store, None)

    def answer(self, text: str, **options: Unpack[GenerateOptions]) -> str:
        """Answer a message, or continue a text."""
        asked = [*self.messages, {"role": "user", "content": text}]
        self.last = self.speaker.generate_ids([asked if self.chats else text], **options)[0]
        said = str(self.knnlm.lm.tokenizer.decode(self.last[1], skip_special_tokens=True))
        if self.chats:
            self.messages = [*asked, {"role": "assistant", "content": said}]
        return said

    def explain(self) -> list[Explanation]:
        """Explain the tokens of the last answer."""
        if self.last is None:
            raise OptionError("nothing was said yet; write something first")
        start, new = self.last
        return list(self.speaker.explain([*start, *new], first=len(start)))

    def forget(self) -> None:
        """Begin anew."""
        self.messages = []
        self.last = None
