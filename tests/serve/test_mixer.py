"""Rows of several memories, mixed as the library mixes each."""

import numpy as np
import torch

from calls import load_knnlm
from nearlm.mixing import Contexts
from nearlm.serve.decoder import Decoder, Reading, Said
from nearlm.serve.mixer import Mixed


def test_rows_of_unlike_memories_get_what_each_memory_gives_alone(stores, served_lm):
    full, bare = (load_knnlm(store, served_lm).memory for store in stores)
    other = load_knnlm(stores[0], served_lm, lam=0.9, k=4).memory
    prompts = [[0, 60, 70, 80], [0, 61, 71, 81], [0, 62, 72, 82], [0, 60, 70, 80]]
    said = Decoder(served_lm).read(Reading(prompts))
    contexts = Contexts(np.array(prompts, np.int32).reshape(-1), np.arange(4) * 4, np.arange(1, 5) * 4)
    mixed = Mixed(said, [full, None, bare, other], contexts)
    for row, memory in enumerate([full, None, bare, other]):
        one = Mixed(Said(said.logits[row : row + 1], said.keys[row : row + 1]), [memory], contexts[slice(row, row + 1)])
        assert torch.allclose(mixed.log_p[row], one.log_p[0])
        assert torch.allclose(mixed.log_p[row].exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    assert torch.equal(mixed.log_p[1], mixed.log_lm[1])
    assert not torch.allclose(mixed.log_p[0], mixed.log_p[3])


def test_only_rows_that_ask_are_explained(stores, served_lm):
    memory = load_knnlm(stores[0], served_lm).memory
    said = Decoder(served_lm).read(Reading([[0, 60], [0, 61], [0, 62]]))
    mixed = Mixed(said, [memory, memory, None], Contexts.none(3))
    first, second, third = mixed.traces(np.array([5, 6, 7], np.int32), [2, None, 3])
    assert second is None
    assert len(first.neighbors) == 2
    assert (third.neighbors, third.p) == ((), third.p_lm)
    assert np.isclose(first.p, float(mixed.log_p[0, 5].exp()))
