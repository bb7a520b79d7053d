"""Links of graphs and ids of lists in FAISS files: as FAISS makes them they pass, those that lead nowhere do not."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from nearlm.base import StoreError
from nearlm.store.faiss_contents import check_faiss_contents

DIM = 8
KEYS = np.random.default_rng(0).normal(size=(600, DIM)).astype(np.float32)
KINDS = ["Flat", "IVF4,Flat", "IVF16_HNSW4,SQ8", "HNSW4", "HNSW4_SQ8", "PCA4,IVF4,SQ8"]
KINDS += ["IVF4,PQ2x4fs,RFlat", "IMI2x2,Flat", "PQ4x4", "SQ8"]
PATH = Path("index.faiss")


def make(kind: str, records: int = len(KEYS)) -> faiss.Index:
    index = faiss.index_factory(DIM, kind)
    index.train(KEYS)
    if records:
        index.add(KEYS[:records])
    return index


def change(vector, place: int, value: int) -> None:
    array = faiss.vector_to_array(vector)
    array[place] = value
    faiss.copy_array_to_vector(array, vector)


@pytest.mark.parametrize("kind", KINDS)
def test_what_faiss_makes_passes(kind):
    check_faiss_contents(make(kind), PATH)
    check_faiss_contents(make(kind, records=0), PATH)


@pytest.mark.parametrize(
    ("field", "place", "value"),
    [
        ("neighbors", 5, 600),
        ("neighbors", 5, -2),
        ("neighbors", 5, 2**31 - 1),
        ("levels", 7, 9999),
        ("levels", 7, 0),
        ("levels", 7, -1),
        ("offsets", 3, 1 << 40),
        ("offsets", 0, 8),
        ("cum_nneighbor_per_level", 1, 1 << 20),
        ("cum_nneighbor_per_level", 1, -4),
    ],
)
@pytest.mark.parametrize("kind", ["HNSW4", "IVF64_HNSW4,Flat"])
def test_a_graph_of_levels_leads_to_its_own_nodes(kind, field, place, value):
    index = make(kind)
    graph = (faiss.downcast_index(index.quantizer) if kind.startswith("IVF") else index).hnsw
    change(getattr(graph, field), place, value)
    with pytest.raises(StoreError, match=r"index\.faiss does not hold a graph whose links lead to its own nodes"):
        check_faiss_contents(index, PATH)


@pytest.mark.parametrize("entry", [-1, 600, 1 << 30])
def test_a_graph_is_entered_at_one_of_its_nodes(entry):
    index = make("HNSW4")
    index.hnsw.entry_point = entry
    with pytest.raises(StoreError, match="links lead to its own nodes"):
        check_faiss_contents(index, PATH)


def test_a_link_stays_in_its_level():
    index = make("HNSW4")
    levels = faiss.vector_to_array(index.hnsw.levels)
    above = faiss.vector_to_array(index.hnsw.offsets)[index.hnsw.entry_point] + 8  # links of level 1 follow 2 · 4
    change(index.hnsw.neighbors, int(above), int(np.flatnonzero(levels == 1)[0]))
    with pytest.raises(StoreError, match="links lead to its own nodes"):
        check_faiss_contents(index, PATH)


@pytest.mark.parametrize("kind", ["IVF4,Flat", "IVF4,PQ2x4fs,RFlat", "PCA4,IVF4,Flat"])
@pytest.mark.parametrize("id", [600, -1, -(1 << 40), 1 << 62])
def test_lists_hold_ids_of_records(kind, id):
    index = make(kind)
    lists = faiss.extract_index_ivf(index.base_index if "RFlat" in kind else index).invlists
    faiss.rev_swig_ptr(lists.get_ids(1), lists.list_size(1))[0] = id
    with pytest.raises(StoreError, match=r"index\.faiss does not hold ids of records in its lists"):
        check_faiss_contents(index, PATH)


def test_there_is_a_vector_for_each_node():
    index = make("HNSW4")
    index.ntotal = 900
    with pytest.raises(StoreError, match="a vector for each node"):
        check_faiss_contents(index, PATH)
