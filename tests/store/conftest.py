"""Stores to look into and to build."""

import shutil
from pathlib import Path

import pytest
from oracle import write_rows

from calls import build
from nearlm.store.datastore import Datastore
from tiny import make_text


@pytest.fixture
def make(lm, text_folder: Path, tmp_path: Path):
    """Build a store of the five documents with small windows."""

    def build_store(out: str = "store", text: Path | None = None, **options) -> Datastore:
        return build(
            options.pop("model", lm), str(text or text_folder), tmp_path / out, quiet=True, **{"window": 32, **options}
        )

    return build_store


@pytest.fixture(scope="module")
def kept(lm, tmp_path_factory) -> Path:
    """A store of two segments and several shards, for tests that copy it before they change it."""
    folder = tmp_path_factory.mktemp("kept")
    texts = folder / "texts"
    texts.mkdir()
    for number, words in enumerate((70, 3, 40)):
        (texts / f"doc{number}.txt").write_text(make_text(words, seed=number))
    rows = write_rows(folder / "rows.jsonl", [make_text(30, 7), "", "naïve café — 東京 🙂", make_text(20, 8)])
    build(lm, str(texts), folder / "store", quiet=True, window=16, shard_records=100)
    build(lm, rows, folder / "store", quiet=True, append=True, shard_records=16)
    return folder / "store"


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "store"))
