"""Adding a document to a store, and the document that is added."""

import pytest

from calls import build_index
from nearlm.mixing import build_infinigram
from nearlm.paper.comparison_updates import time_adding, time_removing, typical_document
from nearlm.search import Retriever
from nearlm.store import BuildOptions, Datastore
from nearlm.store.builder import build
from nearlm.text import TextSource
from tiny import make_text


def test_the_typical_document_is_of_middle_length():
    assert typical_document(TextSource.from_strings("a b c d e", "a", "a b c")).text == ("a b c",)


@pytest.mark.parametrize("keys", [None, "none"])
def test_an_added_document_is_found(lm, tmp_path, keys):
    (tmp_path / "docs").mkdir()
    for number in range(4):
        (tmp_path / "docs" / f"{number}.txt").write_text(make_text(60, seed=number))
    store = build(lm, str(tmp_path / "docs"), tmp_path / "store", BuildOptions(keys=keys))
    build_infinigram(store)
    if keys is None:
        build_index(store)
    assert time_adding(store, lm, TextSource.from_strings("software of any zebra")) > 0
    grown = Datastore.open(store.path)
    assert grown.manifest.documents == store.manifest.documents + 1
    if keys is None:
        assert len(Retriever(grown).store) == len(grown) > len(store)
    assert time_removing(grown) > 0
    left = Datastore.open(store.path)
    assert left.manifest.documents - len(left.forgotten or ()) == store.manifest.documents  # one more, one less
