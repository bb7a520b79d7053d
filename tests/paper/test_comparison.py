"""The comparison end to end on a tiny model: rows, resuming, refusals, and the page."""

import csv

import pytest
from comparisons import tiny_setting

from nearlm.base.errors import MissingExtraError, OptionError
from nearlm.base.progress import QUIET
from nearlm.knnlm import KNNLM, evaluate
from nearlm.model.lm import LM
from nearlm.paper import comparison as comparing
from nearlm.paper.comparison import Comparer, check_methods
from nearlm.paper.comparison_methods import ALONE, INSTANT, METHODS, VANILLA
from nearlm.paper.report import write_report
from nearlm.paper.reproduction import COMPARED_PARTS, Reproduction

pytest.importorskip("bm25s")


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("nearlm.mixing.mixture_training._EPOCHS", 2)
    monkeypatch.setattr("nearlm.paper.comparison_reading._ROUNDS", 1)


@pytest.fixture
def setting(model_folder, tmp_path):
    return tiny_setting(model_folder, tmp_path / "texts")


def test_rows_are_measured_once_and_put_into_one_table_and_page(setting, tmp_path, quick, monkeypatch):
    out = tmp_path / "out"
    Reproduction(setting, out, QUIET, methods=(ALONE, INSTANT)).run(COMPARED_PARTS)
    results = Reproduction(setting, out, QUIET, methods=("RAG",), command="nearlm x").run(COMPARED_PARTS)
    found = results.load("comparison")
    assert [(row.method, row.minutes) for row in found.rows] == [(ALONE, None), (INSTANT, 0.05), ("RAG", 0.05)]
    alone = found.rows[0]
    store = KNNLM.load(_store(setting, tmp_path), LM.load(setting.model), knn=False)
    want = evaluate(store, setting.test_source)
    assert alone.test.perplexity == pytest.approx(want.perplexity, rel=1e-4)
    assert alone.test.bits_per_byte == pytest.approx(want.bits_per_byte, rel=1e-4)
    assert alone.test_tokens == want.tokens and alone.unrelated is not None and alone.written.rare.count > 5
    with open(out / "comparison.csv") as file:
        assert [line["method"] for line in csv.DictReader(file)] == [row.method for row in found.rows]
    assert "| LM alone | – |" in (out / "comparison.md").read_text()
    assert sorted(path.name for path in (out / "comparison").iterdir() if path.suffix == ".json") == [
        "instant-memory-0.05.json",
        "lm-alone.json",
        "rag-0.05.json",
    ]
    monkeypatch.setattr(Comparer, "_measure", lambda *_: pytest.fail("measured again"))
    assert Reproduction(setting, out, QUIET, methods=(ALONE, "RAG")).run(COMPARED_PARTS).load("comparison") == found
    page = write_report(results).read_text()
    assert "Equal time, equal text" in page and "Tiny &lt;rows&gt;" in page and "figure-comparison" in page
    assert "records of" not in page and results.load("about").command == "nearlm x"


def _store(setting, tmp_path):
    from calls import build

    return build(setting.model, setting.train, tmp_path / "plain", keys="none").path


def test_what_was_made_is_not_made_again_and_what_was_not_finished_is(setting, tmp_path, quick, monkeypatch):
    out = tmp_path / "out"
    comparer = Comparer(setting, setting.model, out, QUIET)
    made = []
    whole = METHODS[INSTANT].make

    def make(self, task):
        made.append(sorted(path.name for path in task.folder.iterdir()))
        (task.folder / "left").touch()
        if len(made) == 1:
            raise KeyboardInterrupt
        return whole(task)

    monkeypatch.setattr(comparing, "typical_document", _kill)
    monkeypatch.setattr(type(METHODS[INSTANT]), "make", make)
    with pytest.raises(KeyboardInterrupt):
        list(comparer.run([INSTANT]))
    with pytest.raises(KeyboardInterrupt):
        list(comparer.run([INSTANT]))
    assert made == [[], []]  # the second began anew, and was killed while it was measured
    monkeypatch.undo()
    monkeypatch.setattr(type(METHODS[INSTANT]), "make", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr(Comparer, "_read", lambda *_: pytest.fail("read again"))
    (found,) = [known.rows for known in comparer.run([INSTANT])][-1]
    assert found.method == INSTANT and not (out / "comparison" / "instant-memory-0.05").exists()


def _kill(*_):
    raise KeyboardInterrupt


def test_methods_that_do_not_exist_or_lack_an_extra_are_refused(monkeypatch):
    with pytest.raises(OptionError, match="`methods` has 'lora'"):
        check_methods(["lora"])
    check_methods([ALONE, VANILLA])
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match=r"nearlm\[compare\]"):
        check_methods([])
    check_methods([VANILLA])
