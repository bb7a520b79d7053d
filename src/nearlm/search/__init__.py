"""Indexes over a store's keys: kinds, building, the list scan, exact re-scoring, and the retriever."""

from nearlm.search.index import (
    DEFAULT,
    PAPER_K,
    SearchIndex,
    choose_index,
    index_folder,
    memory_needed,
    open_index,
    verify_index,
)
from nearlm.search.indexing import build_index
from nearlm.search.linear import linear_transform, matrix
from nearlm.search.retriever import Neighbors, Retriever
