"""Training of axes, lists and codes."""

import faiss
import numpy as np

from nearlm.search import training
from nearlm.search.kinds import IndexSpec
from nearlm.search.training import empty_index, train_index, training_ram


def some_keys(records=4000, dim=24):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(records, dim)) * np.geomspace(3, 0.2, dim)).astype(np.float16)


def test_many_lists_are_trained_in_two_levels(monkeypatch):
    monkeypatch.setattr(training, "GROUPED_LISTS", 30)
    keys = some_keys()
    index = empty_index(IndexSpec("IVF64,SQ8", 8, 16, -0.25), 24)
    split = []
    real = training.two_level_centroids
    monkeypatch.setattr(training, "two_level_centroids", lambda *a: (split.append(a[1]), real(*a))[1])
    assert train_index(index, keys.__getitem__, len(keys)) == len(keys)
    assert split == [64]
    index.add(keys)
    assert index.faiss.quantizer.ntotal == 64 and index.records == len(keys)
    lengths = [index.faiss.invlists.list_size(number) for number in range(64)]
    assert max(lengths) < 8 * len(keys) / 64
    x = index.transform_keys(keys)
    truth = faiss.knn(x[:50], x, 10)[1]
    found = index.search(keys[:50], 10)[1]
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)]) > 0.8


def test_a_sample_is_read_in_blocks_and_decides_alone(monkeypatch):
    monkeypatch.setattr(training, "_BLOCK", 500)
    keys = some_keys()
    read = []

    def take(ids):
        read.append(len(ids))
        return keys[ids]

    made = []
    for _ in range(2):
        index = empty_index(IndexSpec("IVF8,SQ8", 4, 16, -0.25), 24)
        train_index(index, take, len(keys))
        made.append(index.transform_keys(keys[:5]))
    assert max(read[1 : len(read) // 2]) == 500
    np.testing.assert_array_equal(*made)


def test_four_bits_span_what_is_usual_not_what_is_rare():
    keys = some_keys().astype(np.float32)
    keys[0] *= 100
    index = empty_index(IndexSpec("IVF4,SQ4", 4), 24)
    train_index(index, keys.__getitem__, len(keys))
    _, span = faiss.vector_to_array(index.faiss.sq.trained).reshape(2, -1)
    assert (span < 60 * keys[1:].std(0)).all()


def test_training_needs_no_more_memory_than_its_sample():
    wide = training_ram(IndexSpec("IVF65536_HNSW32,SQ8", 8, 192, -0.25), 50_000_000, 4096)
    assert wide < 4e9
