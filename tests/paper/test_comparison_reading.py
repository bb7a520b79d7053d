"""Readers: the numbers of `nearlm eval`, and which tokens were the likeliest."""

import numpy as np
import pytest

from calls import build_index
from nearlm.knnlm import KNNLM, score_tokens
from nearlm.mixing import Memory
from nearlm.model.lm import LM
from nearlm.paper.comparison_reading import MemoryReader, reading_of, tokens_per_second
from nearlm.store import SearchSettings
from nearlm.store.builder import build
from nearlm.text import TextSource, read_text
from tiny import make_text


@pytest.fixture(scope="module")
def store(model_folder, tmp_path_factory):
    text = TextSource.from_strings(*(make_text(60, seed=seed) for seed in range(4)))
    made = build(str(model_folder), text, tmp_path_factory.mktemp("reading") / "store")
    build_index(made)
    return made


def test_a_reader_gives_the_log_probabilities_of_eval_and_the_likeliest_tokens(store, model_folder, tmp_path):
    lm = LM.load(str(model_folder))
    text = read_text(TextSource.from_strings(make_text(70, seed=9)), lm.tokenizer, reading_of(lm), tmp_path)
    memory = Memory.open(store, SearchSettings(lam=0.5, k=8, knn_temperature=10.0))
    for mixed in (None, memory):
        found = MemoryReader(lm, mixed).predict(text)
        want = score_tokens(KNNLM(lm, store, mixed), text)
        np.testing.assert_allclose(found.logp, want.logp, atol=1e-4)
        assert (found.hit <= (found.logp > np.log(1 / 300))).all()  # the likeliest of 300 has at least 1/300
        assert (found.logp[found.hit > 0] <= 0).all() and (found.hit | (found.logp < np.log(0.5 + 1e-6))).all()
    assert reading_of(lm) == store.reading()
    assert tokens_per_second(MemoryReader(lm), text) > 0
