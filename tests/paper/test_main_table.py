"""The main table: speeds that can be compared, and memories that search nothing."""

from pathlib import Path

import pytest

from calls import build, evaluate
from nearlm.base import QUIET
from nearlm.knnlm import KNNLM
from nearlm.mixing import Memory, Mixture
from nearlm.paper import main_table
from nearlm.paper.results import ALL, NLM, VANILLA
from nearlm.store import SearchSettings
from nearlm.text import TextSource
from tiny import make_text


def test_speeds_are_compared_within_a_round():
    rounds = {NLM: [100.0, 200.0, 400.0], VANILLA: [50.0, 120.0, 200.0], ALL: [90.0, 170.0, 380.0]}
    assert main_table.compare(rounds) == pytest.approx({NLM: 200.0, VANILLA: 100.0, ALL: 180.0})


@pytest.fixture
def memories(lm, model_folder, tmp_path):
    texts = {}
    for seed, name in enumerate(("train", "valid", "test")):
        path: Path = tmp_path / f"{name}.txt"
        path.write_text(make_text(200, seed=seed))
        texts[name] = TextSource((str(path),))
    store = build(str(model_folder), texts["train"].text, tmp_path / "store", window=64, quiet=True)
    return main_table.Memories(lm, store, main_table.TestTexts(texts["valid"], texts["test"], 20), tmp_path, QUIET)


def test_a_memory_without_a_search_has_a_row_of_its_own(memories, lm):
    mixture = Mixture.train(memories.store, memories.texts.valid, lm, sources="ngram,text")
    memory = Memory(memories.store, None, SearchSettings(mixture="default"), None, mixture)
    row = memories.row("instant", memory, 0.001)
    evaluated = evaluate(KNNLM(lm, memories.store, memory), memories.texts.test.text)
    assert row.perplexity == pytest.approx(evaluated.perplexity, rel=1e-5)
    assert row.perplexity != pytest.approx(evaluated.nlm_perplexity, rel=1e-3)
    assert row.skipped == 1 and row.searches_per_second is None and row.setup.records == 0
    assert row.tokens_per_second == pytest.approx(1 / (0.001 + row.microseconds / 1e6)) and row.microseconds > 0
    assert row.setup.index_bytes == mixture.bytes


def test_rounds_are_in_orders_that_begin_with_each(memories, lm, monkeypatch):
    told = []
    monkeypatch.setattr("nearlm.paper.main_table.evaluate_tokens", lambda knnlm, text: told.append(knnlm) or Timed())
    memories.time({name: name for name in (NLM, VANILLA, ALL)}, 3)
    assert sorted(told[::3]) == sorted((NLM, VANILLA, ALL)) and sorted(told) == sorted(3 * [NLM, VANILLA, ALL])


class Timed:
    """A run that took no time to measure."""

    tokens_per_second = 1.0
