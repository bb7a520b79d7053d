"""The examples run as they are written, on a tiny model."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from calls import build, build_index
from nearlm.optimizer.fit_plan import Ways
from tiny import make_text

EXAMPLES = Path(__file__).parent.parent / "examples"
LONGEST = 40


@pytest.fixture(scope="module")
def ready(tmp_path_factory, model_folder) -> Path:
    """A folder of texts, and a store of them with an index."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "texts").mkdir()
    for number in range(6):
        (folder / "texts" / f"{number}.txt").write_text(make_text(120, seed=number))
    build(str(model_folder), str(folder / "texts"), folder / "store", window=64, quiet=True)
    build_index(folder / "store", "flat", quiet=True)
    return folder


@pytest.fixture
def run(monkeypatch, capfd):
    """Run an example in this process, which has imported already what takes long; return what it prints."""
    for name in ("TQDM_DISABLE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")

    def run(name: str, *arguments: object) -> str:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
        runpy.run_path(path, run_name="__main__")
        return capfd.readouterr().out

    return run


def test_adapt_to_folder(ready, model_folder, run, monkeypatch, quick_timing):
    monkeypatch.setattr("nearlm.optimizer.fit_plan.WAYS", (Ways((8,), (64,)),))
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)
    said = run("adapt_to_folder", ready / "texts", ready / "mem", model_folder)
    assert "perplexity" in said and (ready / "mem" / "manifest.json").exists()


def test_explain(ready, run):
    said = run("explain", ready / "store", make_text(20, seed=1), ready / "page.html")
    assert "of its probability" in said and ".txt)" in said
    assert "<span" in (ready / "page.html").read_text()


def test_serve_and_call(ready, run):
    pytest.importorskip("openai")
    pytest.importorskip("uvicorn")
    lines = run("serve_and_call", ready / "store", "the licence grants").splitlines()
    assert [line.split(": ")[0] for line in lines] == ["store", "store:off"]


def test_harness(ready, run):
    pytest.importorskip("lm_eval")
    lines = run("harness", ready / "store", ready / "texts" / "0.txt").splitlines()
    perplexities = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("memory")]
    assert len(perplexities) == 2 and perplexities[0] < perplexities[1], "the store holds this very text"


def test_own_index(ready, run):
    said = run("own_index", ready / "store")
    assert "HNSW16" in said
    nearest = dict(re.findall(r"^(\d) \[(\d+),", said, re.M))
    assert {row: nearest[row] for row in "123"} == {"1": "1", "2": "2", "3": "3"}, "the first is that of many documents"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_tested(path):
    assert len(path.read_text().splitlines()) <= LONGEST
    assert f"def test_{path.stem}(" in Path(__file__).read_text()
