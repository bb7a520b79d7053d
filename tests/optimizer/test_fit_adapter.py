"""`fit` with an adapter: trained on what is stored, the memory built with it, more text, resuming, refusals."""

import pytest
from fits import write_documents

from calls import load_knnlm
from nearlm.base.errors import ModelError, OptionError, TextError
from nearlm.knnlm import evaluate
from nearlm.model import ModelSpec
from nearlm.model.adaptation import Adaptation, AdaptPace, AdaptPlan
from nearlm.model.lm import LM
from nearlm.optimizer.fit_adapter import adapter_folder, spec_of, with_adapter
from nearlm.optimizer.fit_plan import FitOptions
from nearlm.optimizer.fitting import fit
from nearlm.store import BuildOptions, Datastore
from nearlm.text import TextSource
from tiny import make_text

pytest.importorskip("peft")
pytestmark = [pytest.mark.usefixtures("few_ways"), pytest.mark.timeout(300)]
SHORT = BuildOptions(window=64)
LORA = FitOptions(lora=1.0)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Plan the same few steps whatever the machine's speed."""
    monkeypatch.setattr(Adaptation, "measure", lambda self: AdaptPace(1.0, 1.0))
    monkeypatch.setattr(AdaptPace, "plan", lambda *_: AdaptPlan(trial=1, steps=4, every=2, judged=2))


def test_a_memory_is_built_with_the_adapter_that_was_trained_first(model_folder, tmp_path, monkeypatch):
    docs, out = write_documents(tmp_path / "docs", range(30)), tmp_path / "mem"
    found = fit(str(model_folder), str(docs), out, LORA, SHORT)
    store = Datastore.open(out)
    adapter = adapter_folder(out)
    assert adapter.is_dir() and store.model_spec().adapter and any("adapter: 4 steps" in note for note in found.notes)
    assert (
        found.unseen.alone.perplexity
        < fit(str(model_folder), str(docs), tmp_path / "b", build_options=SHORT).unseen.alone.perplexity
    )
    adapted = LM.load(ModelSpec(str(model_folder), adapter=str(adapter)))
    test = TextSource.from_strings(make_text(60, seed=999))
    assert evaluate(load_knnlm(out), test).perplexity == evaluate(load_knnlm(out, adapted), test).perplexity
    with pytest.raises(ModelError):
        load_knnlm(out, LM.load(str(model_folder)))

    monkeypatch.setattr(Adaptation, "run", lambda *_: pytest.fail("trained again"))
    assert fit(str(model_folder), str(docs), out, LORA, SHORT) == found
    write_documents(docs, range(30, 36))
    assert fit(str(model_folder), str(docs), out, LORA, SHORT).records > found.records  # with the store's adapter
    assert fit(None, str(docs), out, LORA, SHORT).records > found.records


def test_a_killed_fit_goes_on_with_what_was_trained(model_folder, tmp_path, monkeypatch):
    docs, out = write_documents(tmp_path / "docs", range(24)), tmp_path / "mem"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("nearlm.optimizer.fitting.make_memory", _kill)
        fit(str(model_folder), str(docs), out, LORA, SHORT)
    monkeypatch.setattr(Adaptation, "run", lambda *_: pytest.fail("trained again"))
    assert fit(str(model_folder), str(docs), out, LORA, SHORT).records == len(Datastore.open(out))
    assert not (tmp_path / "mem.fit").exists()


def _kill(*_):
    raise KeyboardInterrupt


def test_what_cannot_be_adapted_is_refused(lm, model_folder, tmp_path):
    for options in ({"lora": 0.0}, {"lora": -1.0}, {"lora": 5.0, "minutes": 4.0}, {"lora": float("nan")}):
        with pytest.raises(OptionError, match="`lora` is"):
            FitOptions(**options)
    assert FitOptions(lora=2.0, minutes=8.0).memory_minutes == 6.0 and FitOptions(lora=2.0).memory_minutes is None
    with pytest.raises(OptionError, match="by name or folder"):
        spec_of(lm)
    with pytest.raises(OptionError, match="by name or folder"):
        spec_of(None)
    with pytest.raises(TextError, match="too little text"):
        fit(str(model_folder), TextSource.from_strings("a few words"), tmp_path / "mem", LORA, SHORT)


def test_an_adapter_beside_the_store_is_named_with_its_model(lm, tmp_path):
    adapter = adapter_folder(tmp_path / "mem")
    assert with_adapter("m", adapter) == "m"
    adapter.mkdir()
    assert adapter == tmp_path / "mem.adapter" and with_adapter("m", adapter) == ModelSpec("m", adapter=str(adapter))
    own = ModelSpec("m", adapter="mine")
    assert with_adapter(own, adapter) is own and with_adapter(lm, adapter) is lm and with_adapter(None, adapter) is None
