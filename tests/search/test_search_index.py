"""Searches in an index that is open."""

import faiss
import pytest

from calls import build_index
from nearlm.base.errors import OptionError, StoreError
from nearlm.search import Retriever, open_index


def test_nprobe_reaches_the_lists_below_a_transform(store, queries, monkeypatch):
    build_index(store, "PCAR16,IVF32,SQ8", name="below", quiet=True)
    few, all_ = Retriever(store, "below", nprobe=1), Retriever(store, "below", nprobe=32)
    assert faiss.extract_index_ivf(few.index.faiss).nprobe == 1
    many = (all_.search(queries, 100).ids >= 0).sum()
    assert (few.search(queries, 100).ids >= 0).sum() < many == queries.shape[0] * 100
    with pytest.raises(OptionError, match="has no lists"):
        build_index(store, "flat", name="exact", quiet=True)
        Retriever(store, "exact", nprobe=3)


def test_ids_that_faiss_makes_up_are_refused(store, queries):
    build_index(store, "IVF4,Flat", name="liar", nprobe=4, quiet=True)
    index, _ = open_index(store, "liar")
    index.faiss.ntotal = 1
    with pytest.raises(StoreError, match="returns record"):
        index.search(queries[:, : store.dim], 1)


def test_more_neighbours_than_memory_holds_are_refused(store, queries, monkeypatch):
    build_index(store, "flat", name="many", quiet=True)
    index, _ = open_index(store, "many")
    monkeypatch.setattr("nearlm.search.search_index._MANY", 1)
    monkeypatch.setattr("nearlm.search.search_index._FOUND_BYTES", 1 << 50)
    with pytest.raises(OptionError, match="neighbours of 20 queries at a time need"):
        index.search(queries, 9)
