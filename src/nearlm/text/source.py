"""Which text to read, and how: what everything that takes a text has in common."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from nearlm.base import OptionError, check_at_least
from nearlm.text.corpus import Corpus


@dataclass(frozen=True)
class TextSource:
    """A text, or several, and how to read them."""

    text: tuple[str, ...]
    """Files, folders, globs, hf:NAME[/CONFIG][:SPLIT], spdx:train, pydocs:train, wikitext2:train, or - for stdin."""
    _: KW_ONLY
    field: str = "text"
    """Field of JSON, Parquet and dataset rows that holds the text."""
    glob: str | None = None
    """Which files of a folder to read, e.g. '**/*.rst'."""
    strict: bool = False
    """Refuse undecodable, empty or unreadable documents."""
    max_tokens: int | None = None
    """Use only the first N tokens of the text."""

    def __post_init__(self) -> None:
        if isinstance(self.text, str):
            object.__setattr__(self, "text", (self.text,))
        check_at_least(2, max_tokens=self.max_tokens)

    @classmethod
    def of(cls, text: "Texts") -> "TextSource":
        """Return a source as it is; anything else names texts to be read as usual."""
        if isinstance(text, TextSource):
            return text
        names = (text,) if isinstance(text, str | Path) else text
        return cls(tuple(map(str, names)))

    @classmethod
    def from_strings(cls, *documents: str, max_tokens: int | None = None) -> "TextSource":
        """Return a source of texts in memory, each a document.

        Example:
            >>> text = nearlm.TextSource.from_strings("a first document", "a second one")
            >>> store = nearlm.build("smollm2-135m", text, "fromstrings")
        """
        other = next((one for one in documents if not isinstance(one, str)), None)
        if other is not None:
            raise OptionError(f"a document is a {type(other).__name__}, expected strings: from_strings(*documents)")
        return _Strings(documents, max_tokens=max_tokens)

    def open(self) -> Corpus:
        """Find what the texts stand for, ready to be read."""
        return Corpus(self.text, field=self.field, glob=self.glob, strict=self.strict)


class _Strings(TextSource):
    """Texts in memory, in place of their names."""

    def open(self) -> Corpus:
        """Return the texts, ready to be read."""
        return Corpus(("memory",), strings=self.text)


Texts = str | Path | Sequence[str | Path] | TextSource
