"""Text to tokens and back for several threads at once: a tokenizer itself is for one."""

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nearlm.serve.errors import refuse


class Vocabulary:
    """A tokenizer that threads take turns with; encoding, which may take long, never makes decoding wait."""

    def __init__(self, tokenizer: Any):
        self.size = len(tokenizer)
        self._reader = copy.deepcopy(tokenizer)
        self._writer = tokenizer
        self._reads = threading.Lock()
        self._writes = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without any that the tokenizer would add."""
        try:
            text.encode()
        except UnicodeError:
            raise refuse("the text has characters that are half of a surrogate pair; expected Unicode text") from None
        with self._reads:
            return list(self._reader(text, add_special_tokens=False, verbose=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        with self._writes:
            return str(self._writer.decode(ids, skip_special_tokens=True))

    def show(self, ids: Sequence[int]) -> str:
        """Return the text of tokens with special ones."""
        with self._writes:
            return str(self._writer.decode(ids, skip_special_tokens=False))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation in the tokenizer's chat template, up to where the answer begins."""
        if not getattr(self._reader, "chat_template", None):
            raise refuse("the model has no chat template; use /v1/completions", "model", "no_chat_template")
        try:
            with self._reads:
                text = self._reader.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates raise what they like
            why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise refuse(f"the model's chat template does not take these messages: {why}", "messages") from None
        return self.encode(str(text))
