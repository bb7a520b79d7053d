"""Contexts: places in an array of tokens."""

import numpy as np

from nearlm.mixing.contexts import Contexts


def test_contexts_end_where_their_document_begins():
    tokens, bounds = np.arange(10, 20, dtype=np.int32), np.array([0, 4, 5, 10])
    found = Contexts.of_text(tokens, bounds, np.array([0, 1, 3, 4, 5, 6, 9])).last(4)
    assert found.tolist() == [
        [-1, -1, -1, -1],
        [-1, -1, -1, 10],
        [-1, 10, 11, 12],
        [-1, -1, -1, -1],
        [-1, -1, -1, -1],
        [-1, -1, -1, 15],
        [15, 16, 17, 18],
    ]


def test_some_contexts_of_many():
    tokens, bounds = np.arange(10, 20, dtype=np.int32), np.array([0, 4, 10])
    whole = Contexts.of_text(tokens, bounds, np.arange(1, 10))
    some = whole[np.array([0, 5])]
    assert len(some) == 2 and some.last(3).tolist() == [[-1, -1, 10], [-1, 14, 15]]
    assert Contexts.none(3).last(2).tolist() == [[-1, -1]] * 3
