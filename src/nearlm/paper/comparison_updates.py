"""How long it takes to add one document to what a method made, and to remove one."""

import time

from nearlm.mixing import add, forget
from nearlm.model.lm import LM
from nearlm.store import Datastore
from nearlm.text import TextSource, passages


def typical_document(source: TextSource) -> TextSource:
    """Return the document of a text that is longer than half of them."""
    texts = sorted((passage.text for passage in passages(source.open())), key=len)
    return TextSource.from_strings(texts[len(texts) // 2])


def time_adding(store: Datastore, lm: LM, document: TextSource) -> float:
    """Add a document to a store, with index and suffix array, and return the seconds that it took."""
    started = time.perf_counter()
    add(store, document, lm)
    return time.perf_counter() - started


def time_removing(store: Datastore) -> float:
    """Forget the first document of a store, and return the seconds that it took."""
    name = store.document_of(0)[0]
    started = time.perf_counter()
    forget(store, document=name)
    return time.perf_counter() - started
