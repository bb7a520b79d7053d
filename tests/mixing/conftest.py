"""Stores to trace and to learn from, each with a validation text, and a gate."""

from dataclasses import replace

import pytest
from examples import QUICK

from calls import build, build_index
from nearlm.base import files
from nearlm.mixing.gate import Gate
from nearlm.mixing.infinigram_building import build_infinigram
from tiny import make_text


@pytest.fixture(scope="module")
def store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("tune")
    for number in range(3):
        (folder / f"train{number}.txt").write_text(make_text(300, seed=number))
    made = build(lm, str(folder), folder / "store", window=64, quiet=True)
    build_index(made, "IVF16,PQ8x4", nprobe=8, quiet=True)
    return made


@pytest.fixture(scope="module")
def bare(tmp_path_factory, lm):
    """A store without keys, with its suffix array."""
    folder = tmp_path_factory.mktemp("bare")
    for number in range(3):
        (folder / f"{number}.txt").write_text(make_text(120, seed=number))
    made = build(lm, str(folder), folder / "store", window=64, quiet=True, keys="none")
    build_infinigram(made)
    return made


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune-text") / "valid.txt"
    path.write_text(make_text(150, seed=50))
    return str(path)


@pytest.fixture(scope="module")
def tuned_store(tmp_path_factory, lm):
    folder = tmp_path_factory.mktemp("gate")
    for number in range(4):
        (folder / f"train{number}.txt").write_text(make_text(200, seed=number))
    made = build(lm, str(folder), folder / "store", window=64, quiet=True)
    build_index(made, "IVF16,Flat", nprobe=8, quiet=True)
    build_index(made, "flat", name="flat", quiet=True)
    settings = {"k": 32, "knn_temperature": 3.0, "lam": 0.3, "nprobe": 8, "distances": "index"}
    files.write_stamped(made.path / "index" / "default" / "settings.json", settings)
    return made


@pytest.fixture(scope="module")
def valid_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate-text")
    for number in range(12):
        (folder / f"valid{number}.txt").write_text(make_text(50 + number, seed=100 + number))
    return str(folder)


@pytest.fixture(scope="module")
def gate(lm, tuned_store, valid_folder):
    return Gate.train(tuned_store, valid_folder, lm, replace(QUICK, features="all"))
