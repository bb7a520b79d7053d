"""All that can be learned from one validation text, in one call."""

import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from examples import QUICK, Heard

from nearlm.base import NearLMWarning
from nearlm.mixing import Memory, learn_all, verify_mixture
from nearlm.mixing.mixture import mixture_files
from nearlm.mixing.network_files import save_trained
from nearlm.store import Datastore, SearchSettings


@pytest.fixture
def fresh(tuned_store, tmp_path):
    """The store with an index that nobody has tuned."""
    shutil.copytree(tuned_store.path, tmp_path / "store")
    for name in ("gate", "mixture", "index/default/settings.json"):
        path = tmp_path / "store" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return Datastore.open(tmp_path / "store")


def test_an_index_is_tuned_and_a_mixture_and_its_gate_are_trained(lm, fresh, valid_folder):
    heard = Heard()
    made = learn_all(fresh, valid_folder, lm, QUICK, reporter=heard)
    assert [line.split()[-1] for line in heard.lines if "few to learn from" in line] == ["mixture", "gate"]
    assert fresh.mixtures == fresh.gates == ["default"]
    better = made.mixture.info.better
    assert made.gate.info.mixture == (made.mixture.hash if better else "")
    assert (Memory.open(fresh).mixture is not None) == better
    assert "held-out perplexity" in made.table() and made.gate.inputs.suffix == better


def test_without_sources_it_is_the_papers_gate_alone(lm, fresh, valid_folder):
    made = learn_all(fresh, valid_folder, lm, replace(QUICK, features="conf,ent"), sources="none", name="paper")
    assert made.mixture is None and fresh.mixtures == [] and made.gate.info.mixture == ""
    assert Memory.open(fresh).constant


def test_a_stride_reaches_all_that_is_trained(lm, fresh, valid_folder, monkeypatch):
    from nearlm.mixing import traces

    seen = []
    real = traces.trace_lm
    monkeypatch.setattr(
        traces,
        "trace_lm",
        lambda lm, text, reading, *rest: seen.append(reading.stride) or real(lm, text, reading, *rest),
    )
    learn_all(fresh, valid_folder, lm, QUICK, stride=16)
    assert len(seen) == 3 and set(seen) == {16}  # tuning, mixture, gate


def test_for_a_store_without_keys_a_mixture_of_its_text_is_all_there_is(lm, bare, valid_folder, tmp_path):
    store = Datastore.open(shutil.copytree(bare.path, tmp_path / "store"))
    shutil.rmtree(store.layout.suffixes.folder)  # it is made where it is missing
    heard = Heard()
    made = learn_all(store, valid_folder, lm, reporter=heard)
    assert made.gate is None and made.mixture.info.sources == ("ngram", "text") and store.gates == []
    assert any("has no keys: learning to weigh ngram,text, and no gate" in line for line in heard.lines)
    assert [line.split()[-1] for line in heard.lines if "few to learn from" in line] == ["mixture"]
    assert "constant" not in made.table() and "mixture" in made.table()
    for better in (True, False):
        place = mixture_files(store, "default")
        save_trained(place, made.mixture.network, replace(made.mixture.info, better=better))
        with nullcontext() if better else pytest.warns(NearLMWarning, match="not tuned"):
            assert Memory.open(store).mixture.name == ("default" if better else "none")
    memory = Memory.open(store, SearchSettings(mixture="default"))
    assert memory.mixture.hash == made.mixture.hash and memory.retriever is None
    assert Memory.open(store, SearchSettings(mixture="none")).mixture.info.sources == ("ngram", "text")
    verify_mixture(store, "default")
    only = learn_all(store, valid_folder, lm, sources="knn,text", name="text")
    assert only.mixture.info.sources == ("text",)
    assert Memory.open(store, SearchSettings(mixture="text")).mixture.name == "text"
