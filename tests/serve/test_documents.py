"""The documents of a store."""

import pytest

from nearlm.serve import documents as module
from nearlm.serve.documents import Documents
from nearlm.serve.errors import APIError
from tiny import make_text


@pytest.fixture
def found(stores, chatty):
    return Documents(stores[0], lambda ids: chatty.decode(ids, skip_special_tokens=True))


def test_names_texts_and_records(found, stores):
    assert [name.rsplit("/")[-1] for name in found.names] == ["doc0.txt", "doc1.txt", "doc2.txt"]
    assert found.text(1).strip() == make_text(150, seed=1).strip()
    for number in range(3):
        one = found.describe(number)
        assert stores[0].context_of(one["first_record"]).document == one["name"]
    assert sum(found.describe(number)["tokens"] for number in range(3)) == len(stores[0].tokens)


def test_a_search_looks_at_names_and_texts_whatever_the_case(found):
    inside = make_text(150, seed=2)[200:240]
    assert found.search(inside.upper()).numbers == [2]
    assert found.search("DOC0").numbers == [0]
    assert found.search("").numbers == [0, 1, 2]
    assert found.search("not there at all") == ([], True)


def test_a_search_that_takes_too_long_says_so(found, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS", -1.0)
    assert found.search("the") == ([], False)
    assert found.search("doc") == ([0, 1, 2], True)


def test_a_number_that_is_none_is_refused(found):
    with pytest.raises(APIError, match="no document 3"):
        found.text(3)
