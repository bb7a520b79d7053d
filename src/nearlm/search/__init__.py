"""Indexes over a store's keys: kinds, building, the list scan, exact re-scoring, and the retriever."""

from nearlm.search.index import (
    IndexInfo,
    faiss_index,
    open_index,
    read_index_info,
    read_settings,
    tune_again,
    verify_index,
    write_settings,
)
from nearlm.search.index_building import build_index
from nearlm.search.kinds import AUTO, PAPER, PAPER_K, choose_index
from nearlm.search.linear import linear_transform, matrix
from nearlm.search.retriever import Neighbors, Retriever
from nearlm.search.search_index import SearchIndex
