"""Small stores for the command line."""

from pathlib import Path

import pytest

from calls import build
from nearlm.store import builder
from tiny import make_text


@pytest.fixture(scope="session")
def store(tmp_path_factory, model_folder) -> Path:
    """A small finished store of documents with odd names; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    texts = folder / "te[bold]xts"
    texts.mkdir()
    (texts / "a[red] :smile:.txt").write_text("the licence grants rights to any person\nwho uses copies")
    builder.build(str(model_folder), [str(texts)], folder / "store")
    return folder / "store"


@pytest.fixture(scope="module")
def text_store(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("cli-knn")
    (folder / "train.txt").write_text(make_text(300, seed=1))
    (folder / "valid.txt").write_text(make_text(80, seed=2))
    build(str(model_folder), str(folder / "train.txt"), folder / "store", window=64, quiet=True)
    return folder / "store"


@pytest.fixture(scope="module")
def bare_store(tmp_path_factory, model_folder):
    """A store without keys, beside a text."""
    folder = tmp_path_factory.mktemp("cli-bare")
    (folder / "train.txt").write_text(make_text(100, seed=1))
    (folder / "valid.txt").write_text(make_text(40, seed=2))
    build(str(model_folder), str(folder / "train.txt"), folder / "store", window=64, quiet=True, keys="none")
    return folder / "store"
