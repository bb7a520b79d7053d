"""All that can be learned from one validation text, in one call."""

import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from examples import QUICK, Heard

from calls import build, build_index
from nearlm.base import NearLMWarning, OptionError, StoreError
from nearlm.mixing import Gate, Memory, Mixture, build_infinigram, catch_up, learn_all, verify_mixture
from nearlm.mixing.mixture import mixture_files
from nearlm.mixing.network_files import save_trained
from nearlm.store import Datastore, SearchSettings
from tiny import make_text

GATED = SearchSettings(mixture="default", gate="default", skip=0.5)


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
    suffixes = store.layout.suffixes.description
    kept = suffixes.rename(suffixes.with_name("kept"))
    with pytest.raises(StoreError, match=r"suffixes.json is missing, which mixture 'default' looks up"):
        verify_mixture(store, "default")
    kept.rename(suffixes)
    only = learn_all(store, valid_folder, lm, sources="knn,text", name="text")
    assert only.mixture.info.sources == ("text",)
    assert Memory.open(store, SearchSettings(mixture="text")).mixture.name == "text"


@pytest.fixture
def learned(lm, fresh, valid_folder):
    """A store with a mixture and a gate that are used whatever they are worth, and a text that they know nothing of."""
    made = learn_all(fresh, valid_folder, lm, QUICK)
    network = made.mixture.network
    save_trained(mixture_files(fresh, "default"), network, replace(made.mixture.info, better=True))
    Gate.train(fresh, valid_folder, lm, QUICK, mixture="default")
    more = fresh.path.parent / "more.txt"
    more.write_text(make_text(80, seed=77))
    return fresh, str(more)


def test_what_was_learned_lasts_when_store_and_index_only_grow(lm, learned):
    store, more = learned
    before = Memory.open(store, GATED)
    grown = build(lm, more, store.path, append=True, quiet=True)
    heard = Heard()
    catch_up(grown, heard)
    said = [line for line in heard.lines if "sorted" not in line]
    assert [" ".join(line.split()[:2]) for line in said] == [
        "index 'default'",
        "index 'flat'",
        "mixture 'default'",
        "gate 'default'",
    ]
    assert "lacks the new records; bring it up to date with: nearlm index" in said[0] and "nearlm gate" in said[2]
    build_index(grown, quiet=True)
    with pytest.warns(NearLMWarning, match=r"mixture 'default' was trained before .* got [\d,]+ of its") as warned:
        memory = Memory.open(grown, GATED)
    assert len(warned) == 1
    memory.check_model(lm.fingerprint())
    assert memory.mixture.hash == before.mixture.hash and memory.gate.skip == 0.5
    assert len(memory.mixture.infinigram.tokens) == len(grown.tokens) > len(before.mixture.infinigram.tokens)
    assert memory.retriever.info.records == len(grown) > before.retriever.info.records
    assert memory.settings == before.settings  # tuned T and k too


def test_what_was_learned_for_another_index_or_store_is_refused(lm, learned, tmp_path):
    store, more = learned
    grown = build(lm, more, store.path, append=True, quiet=True)
    build_index(grown, "IVF8,Flat", nprobe=8, quiet=True)  # trained again: other distances
    settings = SearchSettings(mixture="default")
    with pytest.warns(NearLMWarning), pytest.raises(OptionError, match="trained with an earlier index"):
        Memory.open(grown, settings).check_model(lm.fingerprint())
    other = build(lm, more, tmp_path / "other", window=64, quiet=True)
    build_infinigram(other)
    for name in ("mixture", "gate"):
        shutil.copytree(grown.path / name, other.path / name)
    for load in (Mixture.load, Gate.load):
        with pytest.raises(StoreError, match=r"'default' is of another state of .*; train it again: nearlm gate"):
            load(other, "default")


def test_an_outdated_suffix_array_is_used_and_said(lm, bare, tmp_path):
    store = Datastore.open(shutil.copytree(bare.path, tmp_path / "store"))
    (tmp_path / "more.txt").write_text(make_text(30, seed=5))
    grown = build(lm, str(tmp_path / "more.txt"), store.path, append=True, quiet=True)
    known = f"knows {len(store.tokens):,} of the {len(grown.tokens):,} tokens"
    with pytest.warns(NearLMWarning, match=known), pytest.warns(NearLMWarning, match="not tuned"):
        Memory.open(grown)
    catch_up(grown)
    with pytest.warns(NearLMWarning) as warned:
        memory = Memory.open(grown)
    assert len(warned) == 1 and len(memory.mixture.infinigram.tokens) == len(grown.tokens)


def test_keys_for_the_same_text_leave_what_was_learned_of_it(lm, bare, valid_folder, tmp_path):
    store = Datastore.open(shutil.copytree(bare.path, tmp_path / "store"))
    Mixture.train(store, valid_folder, lm, sources="ngram,text")
    keyed = build(lm, str(bare.path.parent), store.path, window=64, quiet=True)
    assert len(keyed) and keyed.state.tokens == store.state.tokens and keyed.state.lineage == store.state.lineage
    heard = Heard()
    broken = keyed.layout.gate("broken")
    broken.folder.mkdir(parents=True)
    broken.description.write_text("{}")  # as of another version
    catch_up(keyed, heard)
    assert len(heard.lines) == 1 and "got its keys, and is used as it is; nearlm gate trains again" in heard.lines[0]
    with pytest.warns(NearLMWarning, match="got its keys"):
        assert Memory.open(keyed, SearchSettings(mixture="default")).retriever is None
