"""Each method on a tiny model: what it makes in its folder, and that it predicts all targets."""

import numpy as np
import pytest
from comparisons import tiny_setting

from nearlm.model import ModelSpec
from nearlm.paper.comparison_budgets import Made, Task
from nearlm.paper.comparison_methods import ALONE, FULL_NAME, INSTANT, LORA_NAME, LORA_NEARLM, METHODS, NEARLM, RAG
from nearlm.paper.comparison_reading import reading_of
from nearlm.store import Datastore
from nearlm.text import TextSource, read_text

pytest.importorskip("peft")
pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def setting(model_folder, tmp_path_factory):
    return tiny_setting(model_folder, tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def test_text(setting, lm, tmp_path_factory):
    return read_text(setting.test_source, lm.tokenizer, reading_of(lm), tmp_path_factory.mktemp("test"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)


def task_of(setting, folder, seconds=2.0):
    folder.mkdir(exist_ok=True)
    train = TextSource(setting.train)
    return Task(ModelSpec(setting.model), train, setting.valid_source, seconds, folder)


@pytest.mark.parametrize("name", [FULL_NAME, LORA_NEARLM, RAG])
def test_a_method_makes_something_that_predicts_otherwise_than_the_lm(setting, test_text, tmp_path, name):
    method = METHODS[name]
    task = task_of(setting, tmp_path / "made")
    made = method.make(task)
    assert made.seconds > 0 and made.tokens > 0 and made.chosen and method.disk(task) > 1000
    alone = METHODS[ALONE].open(task).predict(test_text)
    found = method.open(task).predict(test_text)
    assert len(found.logp) == len(test_text.targets) and np.isfinite(found.logp).all()
    assert np.abs(found.logp - alone.logp).max() > 1e-4
    assert method.add(task, made, TextSource.from_strings("any zebra")) > 0 and method.remove(task, made) > 0


def test_a_memory_after_an_adapter_has_the_keys_of_the_adapted_model(setting, tmp_path):
    task = task_of(setting, tmp_path / "made")
    METHODS[LORA_NEARLM].make(task)
    store = Datastore.open(task.folder / "store")
    assert store.model_spec().adapter and (task.folder / "adapter" / "adapter_config.json").exists()
    assert str(tmp_path) not in (task.folder / "adapter" / "adapter_config.json").read_text()


def test_an_instant_memory_holds_all_text_and_no_keys(setting, tmp_path):
    task = task_of(setting, tmp_path / "made")
    METHODS[INSTANT].make(task)
    store = Datastore.open(task.folder / "store")
    assert not len(store) and store.manifest.documents == 12 and not (task.folder / "adapter").exists()


def test_time_to_change_what_was_trained_is_that_of_training(setting, tmp_path):
    made = Made(90.0, 5000, window_seconds=2.0)
    task = task_of(setting, tmp_path / "made")
    assert METHODS[LORA_NAME].remove(task, made) == 90.0
    assert METHODS[LORA_NEARLM].remove(task, made) == 90.0
    long = TextSource.from_strings("a " * 5120)
    assert METHODS[LORA_NAME].add(task, made, long) >= 20.0
    assert METHODS[ALONE].add(task, made, long) is METHODS[ALONE].remove(task, made) is None
    assert METHODS[ALONE].disk(task) == 0 and list(METHODS)[3] == NEARLM
