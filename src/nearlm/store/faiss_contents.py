"""What the numbers in a FAISS index may be: FAISS follows links of a graph and ids of lists without a look at them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import Array, check_that

_PARTS = ("index", "quantizer", "base_index", "refine_index", "storage")  # what an index may hold


def check_faiss_contents(index: Any, path: Path) -> None:
    """Refuse an index, or one inside it, with links or ids that lead to a vector which is not there."""
    import faiss

    for part in _all_parts(faiss.downcast_index(index)):
        if isinstance(part, faiss.IndexIVF):
            _check_lists(part, path)
        elif isinstance(part, faiss.IndexHNSW):
            check_that(part.storage.ntotal == part.ntotal, path, "a vector for each node of its graph")
            _check_hnsw(part.hnsw, part.ntotal, path)
        elif isinstance(part, faiss.IndexRefine):
            check_that(part.refine_index.ntotal == part.base_index.ntotal, path, "as many vectors to refine with")


def _all_parts(index: Any) -> Iterator[Any]:
    """Yield an index and those that it holds."""
    import faiss

    yield index
    for name in _PARTS:
        held = getattr(index, name, None)
        if isinstance(held, faiss.Index):
            yield from _all_parts(faiss.downcast_index(held))


def _check_lists(index: Any, path: Path) -> None:
    """Refuse ids of lists that are no record's."""
    import faiss

    lists = index.invlists
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    check_that(sum(sizes) in (0, index.ntotal), path, f"lists of {index.ntotal:,} records")
    for number in np.flatnonzero(sizes).tolist():
        ids = faiss.rev_swig_ptr(lists.get_ids(number), sizes[number])
        check_that(ids.min() >= 0 and ids.max() < index.ntotal, path, "ids of records in its lists")


def _check_hnsw(graph: Any, nodes: int, path: Path) -> None:
    """Refuse a graph of several levels with a link to no node, or to one that is not in the link's level."""
    import faiss

    levels, offsets, neighbors, places = (
        faiss.vector_to_array(getattr(graph, name))
        for name in ("levels", "offsets", "neighbors", "cum_nneighbor_per_level")
    )
    what = "a graph whose links lead to its own nodes"
    check_that(len(levels) == nodes and len(offsets) == nodes + 1, path, what)
    check_that(len(places) and places[0] == 0 and (np.diff(places) >= 0).all(), path, what)
    if not nodes:
        check_that(len(neighbors) == 0 and graph.entry_point == -1, path, what)
        return
    check_that(levels.min() >= 1 and levels.max() < len(places), path, what)
    offsets = offsets.astype(np.int64)
    check_that(offsets[0] == 0 and offsets[-1] == len(neighbors), path, what)
    check_that((np.diff(offsets) == places[levels]).all(), path, what)
    check_that(neighbors.min(initial=-1) >= -1 and neighbors.max(initial=-1) < nodes, path, what)
    check_that(0 <= graph.entry_point < nodes and levels[graph.entry_point] == graph.max_level + 1, path, what)
    for level in range(1, graph.max_level + 1):
        _check_level(level, levels, offsets, neighbors, places, path, what)


def _check_level(
    level: int, levels: Array, offsets: Array, neighbors: Array, places: Array, path: Path, what: str
) -> None:
    there = offsets[:-1][levels > level]
    linked = neighbors[there[:, None] + np.arange(places[level], places[level + 1])]
    check_that((levels[linked[linked >= 0]] > level).all(), path, what)
