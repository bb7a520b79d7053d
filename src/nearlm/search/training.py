"""Training of an index: axes, centroids of lists and codes, from a sample of keys."""

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from nearlm.base import Array, Floats, Ints, blocks
from nearlm.search.clustering import two_level_centroids
from nearlm.search.coarse import Coarse, group_count, refine
from nearlm.search.kinds import GROUPED_LISTS, IndexSpec, list_count, sample_size
from nearlm.search.linear import principal_axes
from nearlm.search.scan import can_scan
from nearlm.search.search_index import SearchIndex

Take = Callable[[Ints], Array]  # keys by their ids, which ascend

_SEED = 0
_AXES_SAMPLE = 1 << 17
_BLOCK = 1 << 15
_CLIP = 2.6  # standard deviations that a 4-bit code spans: what lies further out is rare, and would make steps coarse
_FAR = 64  # candidates of a search in a graph of centroids
_CODED = 100_000  # keys that the range of codes is learned from


def empty_index(spec: IndexSpec, dim: int) -> SearchIndex:
    """Make an index that is neither trained nor filled.

    FAISS shall not warn of few keys, which is all there is, nor spend minutes on an order of product codes that only
    Hamming distances (polysemous search) would use; other distances are the same in any order.
    """
    made: Any = faiss.index_factory(spec.pca or dim, spec.factory)
    if hasattr(made, "do_polysemous_training"):
        made.do_polysemous_training = False
    for part in (made, getattr(made, "pq", made)):
        if hasattr(part, "cp"):
            part.cp.min_points_per_centroid = 1
    if can_scan(made) and made.sq.qtype == faiss.ScalarQuantizer.QT_4bit:
        made.sq.rangestat = faiss.ScalarQuantizer.RS_meanstd
        made.sq.rangestat_arg = _CLIP
    return SearchIndex(spec, None, made)


def training_ram(spec: IndexSpec, records: int, dim: int) -> int:
    """Estimate how many bytes of RAM training needs."""
    axes = min(records, _AXES_SAMPLE) * dim * 4 if spec.pca else 0
    return int(1.5 * max(axes, sample_size(spec, records) * (spec.pca or dim) * 4))


def train_index(index: SearchIndex, take: Take, records: int) -> int:
    """Train transform and index on a random sample of keys; return how many they were."""
    count = sample_size(index.spec, records)
    rng = np.random.default_rng(_SEED)
    ids = np.sort(rng.choice(records, count, replace=False))
    if index.spec.pca and index.transform is None:
        some = ids[rng.choice(count, _AXES_SAMPLE, replace=False)] if count > _AXES_SAMPLE else ids
        axes = take(np.sort(some)).astype(np.float32)
        index.transform = principal_axes(axes, index.spec.pca, index.spec.eigen_power)
    if not index.faiss.is_trained:
        _train_faiss(index, _transformed(index, take, ids))
    return count


def _transformed(index: SearchIndex, take: Take, ids: Ints) -> Floats:
    """Return the keys of some ids as the index measures them, block by block, so that wide keys take no memory."""
    out = np.empty((len(ids), index.faiss.d), np.float32)
    for part in blocks(len(ids), _BLOCK):
        out[part] = index.transform_keys(take(ids[part]))
    return out


def _train_faiss(index: SearchIndex, keys: Floats) -> None:
    """Let FAISS train, but not the centroids of very many lists."""
    quantiser = faiss.downcast_index(index.faiss.quantizer) if can_scan(index.faiss) else None
    lists = list_count(index.spec)
    if quantiser is not None and GROUPED_LISTS < lists < len(keys):
        centroids, groups = two_level_centroids(keys, lists, group_count(lists))
        centroids = refine(keys, centroids, groups)
        quantiser.add(centroids)
        if isinstance(quantiser, faiss.IndexFlat):
            index.coarse = Coarse(centroids, groups)
            _train_codes(index.faiss, keys, centroids, index.coarse)
            return
    if isinstance(quantiser, faiss.IndexHNSW):
        quantiser.hnsw.efSearch = _FAR
    index.faiss.train(keys)


def _train_codes(index: Any, keys: Floats, centroids: Floats, coarse: Coarse) -> None:
    """Train codes as FAISS would, which looks for the list of each key among all."""
    some = keys[:: -(-len(keys) // _CODED)]
    index.sq.train(some - centroids[coarse.nearest(some, 1)[:, 0]])
    index.is_trained = True
