"""The documents of a store: their names, their text, and a search over both."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nearlm.base import Ints
from nearlm.serve.errors import APIError
from nearlm.store import Datastore

SHOWN = 20_000  # characters of a document
_SECONDS = 3.0  # that a search may take
_KEPT = 32 << 20  # characters of text that are kept for the next search


class Hits(NamedTuple):
    """What a search found: the numbers of documents, and whether it has looked at all of them."""

    numbers: list[int]
    complete: bool


class Documents:
    """The documents of one store; texts are decoded when they are asked for."""

    def __init__(self, store: Datastore, decode: Callable[[Sequence[int]], str]):
        self._store = store
        self._decode = decode
        self._texts: dict[int, str] = {}
        self._kept = 0
        self._lock = threading.Lock()

    @cached_property
    def _bounds(self) -> Ints:
        """Where each document begins and ends in the store's text, [n, 2]."""
        bounds = self._store.document_bounds
        spans = np.stack([bounds[:-1], bounds[1:]], axis=1)
        gone = self._store.forgotten
        return spans if gone is None else np.delete(spans, gone.documents, axis=0)

    @cached_property
    def names(self) -> list[str]:
        """The names of all documents, in their order."""
        return [self._store.document_of(int(start))[0] for start in self._bounds[:, 0]]

    def describe(self, number: int) -> dict[str, Any]:
        """Say what a document is called, how long it is, and which record is its first."""
        begin, end = self._bounds[number].tolist()
        first = next((r for at in range(begin, min(end, begin + 8)) if (r := self._store.record_at(at)) >= 0), None)
        return {"number": number, "name": self.names[number], "tokens": end - begin, "first_record": first}

    def text(self, number: int, most: int = SHOWN) -> str:
        """Return the beginning of a document's text."""
        if not 0 <= number < len(self.names):
            raise APIError(404, f"there is no document {number}; the store has {len(self.names)}", code="no_document")
        begin, end = self._bounds[number].tolist()
        return self._decode(self._store.tokens[begin : min(end, begin + most)].tolist())[:most]

    def search(self, query: str) -> Hits:
        """Find the documents whose name or text contains a query, whatever the case of its letters."""
        wanted = query.casefold()
        if not wanted:
            return Hits(list(range(len(self.names))), True)
        until = time.monotonic() + _SECONDS
        found = []
        complete = True
        for number, name in enumerate(self.names):
            if wanted in name.casefold():
                found.append(number)
            elif time.monotonic() > until:
                complete = False
            elif wanted in self._folded(number):
                found.append(number)
        return Hits(found, complete)

    def _folded(self, number: int) -> str:
        """Return the whole text of a document for a search, and keep it if there is room."""
        kept = self._texts.get(number)
        if kept is not None:
            return kept
        begin, end = self._bounds[number].tolist()
        text = self._decode(self._store.tokens[begin:end].tolist()).casefold()
        with self._lock:
            if self._kept + len(text) <= _KEPT:
                self._kept += len(text)
                self._texts[number] = text
        return text
