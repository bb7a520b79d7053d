"""Every way to name a model loads the right weights, and every wrong name gets one clear line."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from architectures import make_model
from nearlm.base.errors import MissingExtraError, ModelError, NearLMError, OptionError
from nearlm.model.lm import LM
from nearlm.model.pretrained import choose_device, choose_dtype, load_tokenizer
from nearlm.model.spec import ModelSpec
from nearlm.text.windows import Batch
from tiny import make_llama

IDS = np.random.default_rng(0).integers(0, 90, (1, 20))
EVERY = Batch(IDS, np.ones(IDS.shape, bool), np.zeros(IDS.size, np.int32))


def hooked(model: torch.nn.Module, module: torch.nn.Module, ids: np.ndarray = IDS) -> torch.Tensor:
    """Return a module's input in a plain forward pass: the oracle of keys."""
    seen: list[torch.Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(input_ids=torch.from_numpy(ids))
    handle.remove()
    return seen[0].reshape(ids.size, -1)


def refusal(**spec: Any) -> str:
    """Return the one line with which a spec is refused."""
    with pytest.raises(NearLMError) as caught:
        LM.load(ModelSpec(**spec))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    return message


@pytest.fixture
def copied(model_folder: Path, tmp_path: Path) -> Path:
    """The tiny model's folder, to be damaged."""
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


def test_a_folder_loads_in_float32_and_ready_for_inference(model_folder: Path) -> None:
    lm = LM.load(str(model_folder))
    assert (lm.tap.path, lm.dim, lm.dtype, lm.device.type) == ("model.layers.1.mlp", 32, "float32", "cpu")
    assert not lm.model.training
    assert not any(parameter.requires_grad for parameter in lm.model.parameters())
    want = make_llama()
    torch.testing.assert_close(lm.keys(EVERY), hooked(want, want.model.layers[1].mlp))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_a_folder_loads_in_other_dtypes(model_folder: Path, dtype: str) -> None:
    lm = LM.load(ModelSpec(str(model_folder), dtype=dtype))
    assert lm.dtype == dtype
    assert lm.keys(EVERY).dtype == getattr(torch, dtype)
    want = make_llama()
    torch.testing.assert_close(lm.keys(EVERY).float(), hooked(want, want.model.layers[1].mlp), rtol=0.05, atol=0.05)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/no/such/folder", "does not exist; expected a model folder"),
        ("./no-such-folder", "does not exist; expected a model folder"),
        ("no-such-org/no-such-model", "expected a hub id, a model folder, a .gguf file or one of: smollm2-135m"),
        ("no-such-model", "expected a hub id, a model folder, a .gguf file or one of: smollm2-135m"),
        ("no such model!", "expected a hub id, a model folder, a .gguf file or one of: smollm2-135m"),
        ("no-such-file.gguf", "GGUF file 'no-such-file.gguf' does not exist"),
    ],
)
def test_a_name_that_leads_nowhere(name: str, words: str) -> None:
    message = refusal(model=name)
    assert words in message
    assert repr(name) in message


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "holds no config.json; expected a saved Hugging Face model" in refusal(model=str(tmp_path))


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("text")
    (tmp_path / "x.gguf").write_text("text")
    assert "is a file but no .gguf" in refusal(model=str(tmp_path / "x.txt"))
    assert "not a GGUF file" in refusal(model=str(tmp_path / "x.gguf"))


def test_a_broken_config(copied: Path) -> None:
    (copied / "config.json").write_text("{")
    assert "not a valid JSON file" in refusal(model=str(copied))


def test_a_missing_tokenizer(copied: Path) -> None:
    for path in copied.glob("tokenizer*"):
        path.unlink()
    assert f"the tokenizer of '{copied}' cannot be loaded" in refusal(model=str(copied))


def test_missing_and_cut_weights(copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert f"model '{copied}' cannot be loaded" in refusal(model=str(copied))
    weights.unlink()
    assert "no file named model.safetensors" in refusal(model=str(copied))


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_weights_that_do_not_fill_the_model_are_not_made_up_at_random(copied: Path) -> None:
    change_config(copied, num_hidden_layers=3)
    message = refusal(model=str(copied))
    assert "lacks 9 of the weights that its config.json asks for, e.g. model.layers.2." in message


def test_weights_of_another_shape(copied: Path) -> None:
    change_config(copied, intermediate_size=48)
    message = refusal(model=str(copied))
    assert "other shapes than its config.json says" in message
    assert "64" in message
    assert "48" in message


def test_a_model_of_another_kind(copied: Path) -> None:
    change_config(copied, model_type="t5", architectures=["T5ForConditionalGeneration"])
    message = refusal(model=str(copied))
    assert "AutoModelForCausalLM" in message
    assert "BambaConfig" not in message


def test_tied_weights_are_not_missing(tmp_path: Path, tokenizer: Any) -> None:
    model = make_model("gpt2")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lm = LM.load(str(tmp_path))
    torch.testing.assert_close(lm.keys(EVERY), hooked(model, model.transformer.h[1].mlp))


@pytest.mark.parametrize("device", ["banana", "", "cuda:x", "meta", "cpu:-3"])
def test_a_device_that_cannot_be(device: str, model_folder: Path) -> None:
    with pytest.raises(OptionError, match=f"`device='{device}"):
        LM.load(ModelSpec(str(model_folder), device=device))


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError, match=f"`device='{device}'` .* no CUDA device here; use `device='cpu'`"):
        choose_device(device)
    assert choose_device("auto") == torch.device("cpu")


def test_an_accelerator_that_torch_was_not_built_for() -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    with pytest.raises(OptionError, match="`device='mps'` cannot be used here") as caught:
        choose_device("mps")
    assert len(str(caught.value)) < 300


def test_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="`dtype` is 'int8', expected auto or one of float32"):
        choose_dtype("int8", torch.device("cpu"))
    assert choose_dtype("auto", torch.device("cpu")) is torch.float32
    for supported, dtype in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda supported=supported: supported)
        assert choose_dtype("auto", torch.device("cuda")) is dtype


def test_a_quantization_that_there_is_not(model_folder: Path) -> None:
    with pytest.raises(OptionError, match="`quantization` is '3bit', expected one of 8bit, 4bit"):
        LM.load(ModelSpec(str(model_folder), quantization="3bit"))


def test_a_revision_of_a_folder(model_folder: Path) -> None:
    with pytest.raises(OptionError, match="`revision='main'` is for models on the hub"):
        LM.load(ModelSpec(str(model_folder), revision="main"))


def test_remote_code_is_not_run_unless_trusted(copied: Path) -> None:
    (copied / "evil.py").write_text("raise SystemExit('remote code was run')")
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    change_config(copied, model_type="evil", auto_map=classes)
    assert "`trust_remote_code=True`" in refusal(model=str(copied))


@pytest.mark.parametrize(
    ("module", "spec", "extra"),
    [
        ("bitsandbytes", {"quantization": "8bit"}, "quantized"),
        ("peft", {"adapter": "anything"}, "peft"),
    ],
)
def test_a_missing_extra_is_named(
    module: str, spec: dict[str, str], extra: str, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'nearlm\[{extra}\]'"):
        LM.load(ModelSpec(str(model_folder), **spec))


@pytest.fixture(params=["llama", "opt"])
def base(request: pytest.FixtureRequest, tmp_path: Path, tokenizer: Any) -> tuple[Path, Any, str]:
    """A saved model, another instance of it, and the path of its tap."""
    folder = tmp_path / "base"
    make_model(request.param).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = {"llama": "model.layers.1.mlp", "opt": "model.decoder.layers.1.fc1"}[request.param]
    return folder, make_model(request.param), path


def lora(model: Any, folder: Path, layers: Any = "all-linear") -> Any:
    """Put random LoRA matrices, none of them zero, into the linear layers, and save them."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, target_modules=layers, init_lora_weights=False, task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, config).eval()
    wrapped.save_pretrained(folder)
    return wrapped


def test_keys_with_an_adapter_are_those_of_the_peft_model(base: tuple[Path, Any, str], tmp_path: Path) -> None:
    folder, model, path = base
    wrapped = lora(model, tmp_path / "adapter")
    lm = LM.load(ModelSpec(str(folder), adapter=str(tmp_path / "adapter")))
    plain = LM.load(str(folder))
    assert lm.tap.path == plain.tap.path == path
    want = hooked(wrapped, wrapped.get_base_model().get_submodule(path))
    torch.testing.assert_close(lm.keys(EVERY), want, rtol=1e-5, atol=1e-5)
    assert (plain.keys(EVERY) - want).abs().mean() > 0.1
    with torch.no_grad():
        logp = wrapped(input_ids=torch.from_numpy(IDS)).logits[0].log_softmax(-1)
    torch.testing.assert_close(lm.score(EVERY).logp, logp[:, 0], rtol=1e-5, atol=1e-5)
    assert lm.fingerprint() != plain.fingerprint()


def test_adapters_that_do_not_fit(model_folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    name = str(model_folder)
    lora(make_llama(hidden_size=64), tmp_path / "wide")
    assert "size mismatch" in refusal(model=name, adapter=str(tmp_path / "wide"))
    lora(make_llama(num_hidden_layers=1), tmp_path / "short", ["q_proj", "up_proj"])
    assert "missing adapter keys" in refusal(model=name, adapter=str(tmp_path / "short"))
    assert f"adapter '{tmp_path / 'none'}' cannot be loaded" in refusal(model=name, adapter=str(tmp_path / "none"))
    prompts = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    peft.get_peft_model(make_llama(), prompts).save_pretrained(tmp_path / "prompts")
    assert "adds prompt tokens; expected LoRA" in refusal(model=name, adapter=str(tmp_path / "prompts"))


def test_an_adapter_in_place_of_a_model(tmp_path: Path) -> None:
    lora(make_llama(), tmp_path / "adapter")
    assert "holds a PEFT adapter" in refusal(model=str(tmp_path / "adapter"))


@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_a_quantised_model(bits: str, tmp_path: Path, tokenizer: Any, capfd: Any) -> None:
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    model_folder = tmp_path / "full"  # on CPUs with AVX512-BF16 rows of 4-bit weights are packed by 64
    make_llama(hidden_size=64, intermediate_size=128).save_pretrained(model_folder)
    tokenizer.save_pretrained(model_folder)
    lm = LM.load(ModelSpec(str(model_folder), quantization=bits))
    assert (lm.tap.path, lm.dim) == ("model.layers.1.mlp", 64)
    assert type(lm.model.model.layers[1].mlp.up_proj).__module__.startswith("bitsandbytes")
    keys = lm.keys(EVERY)
    torch.testing.assert_close(keys, hooked(lm.model, lm.tap.module), rtol=1e-4, atol=1e-4)
    full = LM.load(str(model_folder)).keys(EVERY)
    assert not torch.equal(keys, full)
    assert torch.cosine_similarity(keys, full).median() > {"8bit": 0.99, "4bit": 0.7}[bits]
    with torch.no_grad():
        logp = lm.model(input_ids=torch.from_numpy(IDS)).logits[0].log_softmax(-1)
    torch.testing.assert_close(lm.score(EVERY).logp, logp[:, 0], rtol=1e-4, atol=1e-4)

    saved = tmp_path / "quantised"  # in its own config
    lm.model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    again = LM.load(str(saved))
    assert again.tap.path == lm.tap.path
    keys = lm.keys(EVERY)  # again: where rows are packed, bitsandbytes rounds 4-bit scales when it unpacks them to save
    torch.testing.assert_close(again.keys(EVERY), keys, rtol=1e-4, atol=1e-4)
    assert again.fingerprint() == lm.fingerprint()
    assert "MatMul8bitLt" not in capfd.readouterr().err


def write_gguf(path: Path, model: Any, tokenizer: Any) -> None:
    """Write a Llama as llama.cpp's converter does, which orders the rows of q and k in its own way."""
    gguf = pytest.importorskip("gguf")
    config, vocabulary = model.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in ("<s>", "</s>") else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:
            value = value.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(value.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_loads_as_an_ordinary_model(tmp_path: Path, tokenizer: Any) -> None:
    model = make_llama()
    write_gguf(tmp_path / "tiny.gguf", model, tokenizer)
    lm = LM.load(str(tmp_path / "tiny.gguf"))
    assert lm.tap.path == "model.layers.1.mlp"
    torch.testing.assert_close(lm.keys(EVERY), hooked(model, model.model.layers[1].mlp))
    text = "the licence grants rights."
    assert lm.tokenizer(text)["input_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id) == (0, 1)
    lm.model.save_pretrained(tmp_path / "saved")  # no trace of GGUF is left in it
    lm.tokenizer.save_pretrained(tmp_path / "saved")
    assert LM.load(str(tmp_path / "saved")).fingerprint() == lm.fingerprint()
    assert "cannot be loaded" in refusal(model=str(tmp_path / "tiny.gguf"), quantization="8bit")


def test_errors_are_all_of_the_right_kind(model_folder: Path) -> None:
    with pytest.raises(ModelError):
        load_tokenizer(ModelSpec("/no/such/folder"))
    with pytest.raises(OptionError):
        LM.load(ModelSpec(str(model_folder), dtype="float8"))


@pytest.mark.network
def test_the_built_in_model() -> None:
    lm = LM.load("smollm2-135m")
    assert (lm.tap.path, lm.dim, lm.dtype) == ("model.layers.29.mlp", 576, "float32")
    text = "The quick brown fox jumps over the lazy dog, and then it runs back into the forest to find its family."
    ids = np.array([lm.tokenizer.bos_token_id, *lm.tokenizer(text)["input_ids"]])
    batch = Batch(ids[None, :-1], np.ones((1, len(ids) - 1), bool), ids[1:].astype(np.int32))
    scores = lm.score(batch)
    assert -6 < float(scores.logp.mean()) < -0.5
    torch.testing.assert_close(lm.keys(batch), scores.keys)
    torch.testing.assert_close(lm.keys(batch), hooked(lm.model, lm.tap.module, ids[None, :-1]), rtol=1e-4, atol=1e-4)
