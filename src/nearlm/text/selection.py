"""Some documents of a text, chosen by their keys, as a text of its own."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nearlm.text.corpus import Corpus, Document
from nearlm.text.pieces import text_pieces
from nearlm.text.sections import inner
from nearlm.text.source import TextSource
from nearlm.text.split import passages


@dataclass(frozen=True)
class Selection(TextSource):
    """The documents of another text that have some keys; blocks of one may lose what borders on others."""

    base: TextSource | None = None
    keys: frozenset[bytes] = frozenset()
    block: int | None = None
    gaps: bool = False

    @classmethod
    def of_text(cls, base: TextSource, keys: frozenset[bytes], block: int | None = None, *, gaps: bool = False) -> Any:
        """Choose documents of a text."""
        how: Any = {"field": base.field, "glob": base.glob, "strict": base.strict}
        return cls(base.text, **how, base=base, keys=keys, block=block, gaps=gaps and block is not None)

    def open(self) -> Corpus:
        """Find what the text stands for, ready to be read."""
        return _SelectedCorpus(self)


class _SelectedCorpus(Corpus):
    """The chosen documents of a corpus, in its order; what else it holds is passed over in silence."""

    def __init__(self, selection: Selection):
        self._selection = selection
        assert selection.base is not None
        self._base = selection.base.open()
        self.texts = self._base.texts
        self.field = self._base.field
        self.glob = self._base.glob
        self.strict = False  # it was read before
        self.repeatable = self._base.repeatable
        self.skipped = Counter()
        self.reset()

    def documents(self) -> Iterator[Document]:
        """Yield every chosen document; its pieces must be read before the next one is asked for."""
        self.reset()
        selection = self._selection
        for passage in passages(self._base, selection.block):
            if passage.key not in selection.keys:
                continue
            text = inner(passage.text) if selection.gaps else passage.text
            number = passage.document.text
            pieces = text_pieces(text, passage.name, self.note)
            yield Document(number, passage.name, passage.row, self._watch(number, passage.name, passage.row, pieces))
