"""The hash of weights: it tells all models apart, is computed once, and is never that of earlier weights."""

import hashlib
import os
import shutil

import numpy as np
import pytest
import torch

from nearlm.base import files
from nearlm.model import ModelSpec, weights
from nearlm.model.lm import LM
from nearlm.model.weights import describe_origin, hash_weights
from tiny import make_llama


@pytest.fixture
def hashed(monkeypatch, tmp_path):
    """The models that were hashed, with a cache of their own."""
    models = []
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "hash_weights", lambda model: models.append(model) or hash_weights(model))
    return models


@pytest.fixture
def folder(model_folder, tmp_path):
    return shutil.copytree(model_folder, tmp_path / "model")


def change_head(model) -> None:
    with torch.no_grad():
        model.lm_head.weight[7, 3] += 1


def test_it_is_the_sha256_of_names_and_bytes():
    model = make_llama()
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.numpy().astype(np.float32).tobytes())
    assert hash_weights(model) == digest.hexdigest() == LM(model, None).weights_hash()


@pytest.mark.parametrize("part", ["lm_head", "model.norm", "model.layers.1.mlp.down_proj", "model.embed_tokens"])
def test_one_number_anywhere_makes_another_model(part):
    model = make_llama()
    before = hash_weights(model)
    with torch.no_grad():
        model.get_submodule(part).weight.view(-1)[5] += 1
    assert hash_weights(model) != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_dtype_has_a_hash_of_its_own(dtype):
    assert hash_weights(make_llama().to(dtype)) == hash_weights(make_llama().to(dtype)) != hash_weights(make_llama())


def test_weights_that_accelerate_has_put_elsewhere_count():
    accelerate = pytest.importorskip("accelerate")
    plain = LM(make_llama(), None).weights_hash()
    away = LM(accelerate.cpu_offload(make_llama(), torch.device("cpu")), None)
    other = LM(accelerate.cpu_offload(make_llama(seed=1), torch.device("cpu")), None)
    assert away.weights_hash() == plain != other.weights_hash()
    assert all(parameter.is_meta for parameter in away.model.parameters())


def fused_step(model) -> None:
    optimizer = torch.optim.AdamW(model.lm_head.parameters(), fused=True)
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    optimizer.step()


CHANGES = {
    "one number": change_head,
    "past autograd": lambda model: model.lm_head.weight.data.mul_(1.5),
    "by a fused optimizer": fused_step,
    "to another dtype": lambda model: model.to(torch.bfloat16),
    "by loading others": lambda model: model.load_state_dict(make_llama(seed=9).state_dict()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_in_memory_is_hashed_once_until_it_is_changed(hashed, change):
    lm = LM(make_llama(), None)
    before = lm.weights_hash()
    assert lm.weights_hash() == before and len(hashed) == 1
    CHANGES[change](lm.model)
    assert lm.weights_hash() == hash_weights(lm.model) != before
    assert lm.weights_hash() != before and len(hashed) == 2


def test_files_are_hashed_once_for_all_processes(hashed, folder):
    first = LM.load(str(folder)).weights_hash()
    assert len(hashed) == 1 and first == hash_weights(hashed[0])
    assert LM.load(str(folder / "..") + "/model").weights_hash() == first and len(hashed) == 1
    assert LM.load(ModelSpec(str(folder), dtype="bfloat16")).weights_hash() != first and len(hashed) == 2


def test_a_model_that_was_changed_after_loading_is_not_that_of_its_files(hashed, folder):
    first = LM.load(str(folder)).weights_hash()
    changed = LM.load(str(folder))
    change_head(changed.model)
    assert changed.weights_hash() == hash_weights(changed.model) != first
    assert LM.load(str(folder)).weights_hash() == first


def test_other_weights_in_the_same_files_are_hashed_anew(hashed, folder):
    loaded = LM.load(str(folder))
    first = LM.load(str(folder)).weights_hash()
    before = (folder / "model.safetensors").stat()
    make_llama(seed=1).save_pretrained(folder)
    os.utime(folder / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert (folder / "model.safetensors").stat().st_size == before.st_size
    second = LM.load(str(folder)).weights_hash()
    assert second == hash_weights(make_llama(seed=1)) != first
    assert loaded.weights_hash() == first  # it was read before


def test_a_damaged_note_is_no_hash(hashed, folder, tmp_path):
    first = LM.load(str(folder)).weights_hash()
    (note,) = tmp_path.glob("cache/weights/*.json")
    note.write_bytes(note.read_bytes()[:40])
    assert LM.load(str(folder)).weights_hash() == first and len(hashed) == 2
    for number, odd in enumerate(({}, {"sha256": [first]}, {"sha256": None}), 3):
        files.write_stamped(note, odd)
        assert LM.load(str(folder)).weights_hash() == first and len(hashed) == number


def test_what_is_not_on_this_machine_has_no_files(folder):
    assert describe_origin(ModelSpec("somebody/model")) is None
    assert describe_origin(ModelSpec(str(folder), adapter="somebody/adapter")) is None
    plain = describe_origin(ModelSpec(str(folder)))
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(b"x")
    adapted = describe_origin(ModelSpec(str(folder), adapter=str(folder / "adapter")))
    assert len(adapted["files"]) == len(plain["files"]) + 1
    assert describe_origin(ModelSpec(str(folder), quantization="8bit")) != plain
