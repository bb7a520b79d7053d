"""A small LM that was trained without interruption, and pages without drawings."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from trainings import TINY

from calls import train_lm
from nearlm.paper.report import page


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Leave what was imported out of the garbage collection that every training begins with."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three documents that say the same again and again."""
    folder = tmp_path_factory.mktemp("repetitive")
    for number, times in enumerate((130, 3, 20)):
        (folder / f"{number}.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * times)
    return folder


@pytest.fixture(scope="session")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained without interruption."""
    return train_lm(str(text), tmp_path_factory.mktemp("trained") / "model", TINY)


@pytest.fixture(scope="session")
def trained_tokenizer(trained: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(trained)


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: figures are not what these tests look at."""
    sketch = '<svg width="1" height="1"></svg>'
    monkeypatch.setattr(page, "save", lambda figure, path: path.write_text(sketch))
