"""What a store keeps of its model, and how it loads it again."""

import shutil
from pathlib import Path

import pytest
from oracle import check

from calls import build
from nearlm.base.errors import OptionError
from nearlm.model.lm import LM
from nearlm.model.pretrained import ModelSpec
from nearlm.store.datastore import Datastore
from nearlm.store.model_files import load_lm
from tiny import make_llama, make_text


def test_a_store_does_not_switch_on_remote_code_and_a_built_in_name_is_no_folder(tmp_path, lm, monkeypatch):
    (tmp_path / "t.txt").write_text("the licence grants rights")
    monkeypatch.setattr(lm, "spec", ModelSpec("smollm2-135m", trust_remote_code=True))
    monkeypatch.chdir(tmp_path)
    store = build(lm, "t.txt", "smollm2-135m", quiet=True)
    options = vars(store.model_spec())
    assert options["model"] == "smollm2-135m" and not options["trust_remote_code"]


def test_a_local_model_is_found_again_also_after_both_were_moved(model_folder: Path, tmp_path: Path, monkeypatch):
    home = tmp_path / "home"
    shutil.copytree(model_folder, home / "models" / "tiny")
    (home / "a.txt").write_text(make_text(30))
    monkeypatch.chdir(home)
    build("models/tiny", "a.txt", "stores/mine", quiet=True, window=16)
    options = vars(Datastore.open("stores/mine").model_spec())
    assert Path(options["model"]) == home / "models" / "tiny"
    monkeypatch.chdir(tmp_path)
    home.rename(tmp_path / "elsewhere")
    moved = Datastore.open(tmp_path / "elsewhere" / "stores" / "mine")
    found = moved.model_spec()
    assert Path(found.model) == tmp_path / "elsewhere" / "models" / "tiny"
    assert check(moved.path, LM.load(found)) is None
    assert not any(str(tmp_path) in text for text in (moved.path / "manifest.json").read_text().splitlines())


def test_a_model_that_is_no_folder_keeps_its_name(lm, tokenizer, tmp_path: Path):
    (tmp_path / "a.txt").write_text("the licence")
    for name, shown in (("org/model", "org/model"), ("/gone/away/model", "model")):
        store = build(LM(make_llama(), tokenizer, name=name), str(tmp_path / "a.txt"), tmp_path / shown, quiet=True)
        assert store.model_spec().model == shown


def test_the_stored_tokenizer_is_that_of_the_model(kept: Path, lm):
    from nearlm.model.lm import tokenizer_fingerprint

    assert tokenizer_fingerprint(Datastore.open(kept).tokenizer) == lm.tokenizer_fingerprint()


def test_a_bare_model_has_no_tokenizer_to_build_with(tmp_path: Path):
    (tmp_path / "a.txt").write_text("the licence")
    with pytest.raises(OptionError, match=r"`model` is a LlamaForCausalLM; .*nearlm.LM"):
        build(make_llama(), str(tmp_path / "a.txt"), tmp_path / "store", quiet=True)


def test_a_model_that_lies_elsewhere_is_loaded_aloud(model_folder: Path, tmp_path: Path, recwarn):
    (tmp_path / "a.txt").write_text(make_text(30))
    shutil.copytree(model_folder, tmp_path / "near")
    far = build(str(model_folder), str(tmp_path / "a.txt"), tmp_path / "far", quiet=True, window=16)
    near = build(str(tmp_path / "near"), str(tmp_path / "a.txt"), tmp_path / "beside", quiet=True, window=16)
    recwarn.clear()
    load_lm(near)
    load_lm(far, str(model_folder))
    assert not recwarn
    with pytest.warns(UserWarning, match=f"loading the model from {model_folder}, as .*far says"):
        load_lm(far)
