"""Packed layers compute what plain ones do, and leave no trace: not in weights, hashes or hooks, nor after errors."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from transformers.pytorch_utils import Conv1D

from architectures import ARCHITECTURES, VOCAB, make_mamba, make_model
from calls import build, build_index
from nearlm.base import OptionError
from nearlm.knnlm import KNNLM
from nearlm.mixing.traces import trace_text
from nearlm.model import ModelSpec, packing
from nearlm.model.lm import LM
from nearlm.model.packing import Packing, packed
from nearlm.model.passes import turn
from nearlm.model.tap import drift
from nearlm.model.weights import hash_weights
from tiny import make_llama, make_text

IDS = torch.arange(24).view(2, 12) * 31 % VOCAB
ROUNDING = 1e-5  # of the largest number


def logits(model: nn.Module, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


def replaced(model: nn.Module) -> set[str]:
    """Name the modules that have a `forward` of their own."""
    return {name for name, module in model.named_modules() if "forward" in vars(module)}


def linears(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if type(module) in (nn.Linear, Conv1D)}


@pytest.fixture
def numbers():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("name", [*ARCHITECTURES, "mamba"])
def test_logits_are_the_models_own_to_rounding(name):
    model = make_mamba() if name == "mamba" else make_model(name)
    before = logits(model)
    with packed(model):
        assert replaced(model) == linears(model) != set()
        assert drift(logits(model), before) < ROUNDING
        assert drift(logits(model, IDS[:1, :1]), before[:1, :1]) < ROUNDING
    assert replaced(model) == set() and torch.equal(logits(model), before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (1, 8), (3, 8), (2, 3, 8), (0, 8), (2, 2, 3, 8)])
def test_float16_rounds_the_weights_and_nothing_else(shape, bias, numbers):
    layer = nn.Sequential(nn.Linear(8, 24, bias=bias))
    x = torch.randn(shape, generator=numbers)
    weight = layer[0].weight.detach() if len(shape) == 1 else layer[0].weight.detach().half().float()
    expected = x.double() @ weight.double().t() + (layer[0].bias.detach().double() if bias else 0)
    with packed(layer, "float16"), torch.no_grad():
        found = layer(x)
    assert found.shape == expected.shape and found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("weights", ["float32", "float16"])
def test_the_layers_of_gpt2_are_packed_from_their_other_side(weights, numbers):
    layer = nn.Sequential(Conv1D(24, 8))
    x = torch.randn(2, 3, 8, generator=numbers)
    matrix = layer[0].weight.detach()
    expected = x @ (matrix.half().float() if weights == "float16" else matrix) + layer[0].bias.detach()
    with packed(layer, weights), torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=2e-6)


def test_a_weight_too_large_for_float16_stays_as_it_is(numbers):
    layer = nn.Sequential(nn.Linear(8, 4))
    x = torch.randn(2, 8, generator=numbers)
    with torch.no_grad():
        layer[0].weight[1, 2] = 1e5
        expected = layer(x)
        with packed(layer, "float16"):
            torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_an_error_ends_it():
    model = make_llama()
    with pytest.raises(ValueError, match="some error"), packed(model):
        assert replaced(model)
        raise ValueError("some error")
    assert replaced(model) == set()


def test_weights_their_hash_and_their_ties_are_as_they_were():
    model = make_llama(tie_word_embeddings=True)
    before = hash_weights(model)
    state = {name: value.data_ptr() for name, value in model.state_dict().items()}
    lm = LM(model, None)
    first = lm.fingerprint(), lm.weights_hash()
    with packed(model):
        assert {name: value.data_ptr() for name, value in model.state_dict().items()} == state
        assert hash_weights(model) == before and (lm.fingerprint(), lm.weights_hash()) == first
        assert model.lm_head.weight is model.model.embed_tokens.weight
    assert hash_weights(model) == before


def test_hooks_are_called():
    model = make_llama()
    seen = []
    with packed(model), model.lm_head.register_forward_pre_hook(lambda *_: seen.append("head")):
        logits(model)
    assert seen == ["head"]


def in_place(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def behind_its_back(layer: nn.Linear) -> None:
    layer.weight.data += 1


def replace(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(layer.weight.detach() + 1)


def add_bias(layer: nn.Linear) -> None:
    layer.bias = nn.Parameter(torch.ones(layer.out_features))


@pytest.mark.parametrize("change", [in_place, behind_its_back, replace, add_bias])
def test_weights_that_changed_are_packed_again(change, monkeypatch):
    made = []
    pack = packing._pack
    monkeypatch.setattr(packing, "_pack", lambda module, kind: made.append(module) or pack(module, kind))
    model = make_llama()
    kept = Packing("float32")
    for _ in range(2):
        with kept.in_use(model):
            logits(model)
    assert len(made) == len(linears(model))
    change(model.model.layers[0].mlp.up_proj)
    expected = logits(model)
    with kept.in_use(model):
        assert drift(logits(model), expected) < ROUNDING
    assert made[len(linears(model)) :] == [model.model.layers[0].mlp.up_proj]


def test_layers_inside_an_adapter_are_packed_and_those_of_the_adapter():
    peft = pytest.importorskip("peft")
    model = make_llama()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(model, config).eval()
    kept = Packing("float32")
    for change in (wrapped.merge_adapter, wrapped.unmerge_adapter):
        expected = logits(wrapped)
        with kept.in_use(wrapped):
            assert drift(logits(wrapped), expected) < ROUNDING
            assert "base_model.model.model.layers.0.mlp.up_proj.base_layer" in replaced(wrapped)
        change()


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def with_own_forward() -> nn.Linear:
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(8, 8).double(),
        lambda: nn.Linear(8, 8).bfloat16(),
        lambda: nn.Linear(8, 8, device="meta"),
        lambda: parametrizations.orthogonal(nn.Linear(8, 8)),
        lambda: Doubled(8, 8),
        with_own_forward,
    ],
    ids=["float64", "bfloat16", "meta", "parametrised", "subclass", "forward of its own"],
)
def test_other_layers_stay_as_they_are(make):
    layers = nn.Sequential(make(), nn.Linear(8, 8))
    before = dict(vars(layers[0]))
    with packed(layers):
        assert vars(layers[0]) == before and "forward" in vars(layers[1])
    assert vars(layers[0]) == before


def test_gradients_and_other_dtypes_go_through_the_plain_layer(numbers):
    layer = nn.Sequential(nn.Linear(8, 8))
    x = torch.randn(2, 8, generator=numbers)
    expected = layer(x)
    with packed(layer):
        found = layer(x)
        with pytest.raises(RuntimeError, match="dtype"), torch.no_grad():
            layer(x.double())
        with torch.no_grad():
            assert torch.equal(layer[0](input=x), expected)
    assert torch.equal(found, expected)
    found.sum().backward()
    torch.testing.assert_close(layer[0].weight.grad, x.sum(0).expand(8, 8))


def test_mixed_precision_stays_mixed():
    layer = nn.Sequential(nn.Linear(8, 8))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), packed(layer):
        assert layer(torch.ones(2, 8)).dtype == torch.bfloat16


def test_a_block_within_a_block_does_not_end_it():
    model = make_llama()
    with packed(model):
        outer = replaced(model)
        with Packing("float32").in_use(model):
            assert replaced(model) == outer
        assert replaced(model) == outer


def test_other_threads_wait_for_the_end():
    model = make_llama()
    seen = []

    def other() -> None:
        with turn(model):
            seen.append(replaced(model))

    with packed(model):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.1)
        assert not seen
    thread.join()
    assert seen == [set()]


def test_little_memory_leaves_the_weights_plain_unless_they_were_asked_for(monkeypatch):
    model = make_llama()
    needed = 4 * sum(model.get_submodule(name).weight.numel() for name in linears(model))
    monkeypatch.setattr(packing, "available_ram", lambda: 2 * needed - 1)
    with Packing().in_use(model):
        assert replaced(model) == set()
    monkeypatch.setattr(packing, "available_ram", lambda: 2 * needed)
    with Packing().in_use(model):
        assert replaced(model) == linears(model)
    monkeypatch.setattr("nearlm.base.ram.available_ram", lambda: needed - 1)
    with pytest.raises(OptionError, match=r"packed weights need .* of RAM"), packed(model):
        pass


@pytest.mark.parametrize("error", [None, AttributeError("no such kernel"), RuntimeError("not on this CPU")])
def test_a_cpu_without_the_kernels_or_with_wrong_ones_leaves_the_weights_plain(error, monkeypatch):
    def missing(matrix, bias):
        if error:
            raise error
        return lambda x: nn.functional.linear(x, matrix, bias) + 1

    monkeypatch.setitem(packing._MULTIPLY, "float32", missing)
    packing._works.cache_clear()
    model = make_llama()
    try:
        with Packing().in_use(model):
            assert replaced(model) == set()
        with pytest.raises(OptionError, match="`weights='float32'` needs an x86 CPU with AVX2; leave it out"):
            packed(model)
    finally:
        packing._works.cache_clear()


def test_wishes_that_cannot_be_granted_are_refused():
    with pytest.raises(OptionError, match="`weights` is 'int3', expected one of auto, float32, float16, plain"):
        Packing("int3")
    with pytest.raises(OptionError, match="for the linear layers of a float32 model on a CPU, and LlamaForCausalLM"):
        packed(make_llama().bfloat16(), "float16")


def test_only_models_that_nearlm_loads_are_packed(model_folder):
    loaded = LM.load(str(model_folder))
    plain = LM.load(ModelSpec(str(model_folder), weights="plain"))
    given = LM(make_llama(), loaded.tokenizer)
    with loaded.packed(), plain.packed(), given.packed():
        assert replaced(loaded.model) == linears(loaded.model)
        assert replaced(plain.model) == replaced(given.model) == set()


@pytest.fixture(scope="module")
def store(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packing")
    (folder / "text").write_text(make_text(400))
    found = build(str(model_folder), str(folder / "text"), folder / "store", quiet=True)
    build_index(found, "flat", quiet=True)
    return found


@pytest.mark.parametrize("weights", ["plain", "float16"])
def test_records_do_not_depend_on_how_weights_are_packed(weights, model_folder, store, tmp_path):
    (tmp_path / "text").write_text(make_text(400))
    spec = ModelSpec(str(model_folder), weights=weights)
    other = build(spec, str(tmp_path / "text"), tmp_path / "store", quiet=True)
    assert other.manifest.files == store.manifest.files


def test_a_trace_is_kept_for_the_weights_that_it_is_of(model_folder, store, tmp_path):
    (tmp_path / "text").write_text(make_text(60, seed=3))
    specs = [ModelSpec(str(model_folder), weights=weights) for weights in ("auto", "plain", "float32", "float16")]
    keys = [trace_text(LM.load(spec), store, str(tmp_path / "text")).key for spec in specs]
    assert keys[0] == keys[1] == keys[2] != keys[3]


@pytest.mark.parametrize("knn", [True, False])
def test_scores_and_texts_come_from_packed_weights(knn, model_folder, store, monkeypatch):
    used = []
    real = packing._pack
    spec = {name: ModelSpec(str(model_folder), weights=name) for name in ("plain", "float32", "float16")}
    monkeypatch.setattr(packing, "_pack", lambda module, kind: used.append(kind) or real(module, kind))
    found = {name: KNNLM.load(store, one, knn=knn) for name, one in spec.items()}
    layers = len(linears(found["plain"].lm.model))
    assert used == ["float32"] * layers + ["float16"] * layers
    scores = {name: torch.from_numpy(one.score("the licence grants rights").logp) for name, one in found.items()}
    assert len(used) == 2 * layers
    assert drift(scores["float32"], scores["plain"]) < ROUNDING < drift(scores["float16"], scores["plain"]) < 0.01
    texts = {name: one.generate("the licence", max_new_tokens=8, do_sample=False) for name, one in found.items()}
    assert texts["float32"] == texts["plain"]
    assert all(replaced(one.lm.model) == set() for one in found.values())
