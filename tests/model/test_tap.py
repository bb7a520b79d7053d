"""The tap is the input of the last feed-forward network in every architecture; other places on request."""

import pytest
import torch

from architectures import ARCHITECTURES, VOCAB, make_mamba, make_model
from nearlm.base.errors import ModelError
from nearlm.model.lm import LM
from nearlm.model.tap import FFN, LAST_HIDDEN, Tap, capture, find_body, find_tap
from tiny import make_llama

LAST_FFN = {
    "gpt2": "transformer.h.1.mlp",
    "gptj": "transformer.h.1.mlp",
    "gpt_neox": "gpt_neox.layers.1.mlp",
    "gpt_neox_sequential": "gpt_neox.layers.1.mlp",
    "opt": "model.decoder.layers.1.fc1",
    "opt_post_norm_projected": "model.decoder.layers.1.fc1",
    "bloom": "transformer.h.1.mlp",
    "falcon_parallel": "transformer.h.1.mlp",
    "falcon_new": "transformer.h.1.mlp",
    "falcon_alibi": "transformer.h.1.mlp",
    "mpt": "transformer.blocks.1.ffn",
    "llama": "model.layers.1.mlp",
    "mistral": "model.layers.1.mlp",
    "qwen2": "model.layers.1.mlp",
    "qwen3": "model.layers.1.mlp",
    "gemma2": "model.layers.1.mlp",
    "gemma3": "model.layers.1.mlp",
    "phi": "model.layers.1.mlp",
    "phi3": "model.layers.1.mlp",
    "stablelm": "model.layers.1.mlp",
    "stablelm_parallel": "model.layers.1.mlp",
    "olmo2": "model.layers.1.mlp",
    "mixtral": "model.layers.1.mlp",
    "qwen3_moe": "model.layers.1.mlp",
    "cohere": "model.layers.1.mlp",
    "granite": "model.layers.1.mlp",
    "recurrent_gemma": "model.layers.2.mlp_block",
}
IDS = torch.randint(0, VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_tap_is_the_last_feed_forward_network(name: str, dtype: torch.dtype) -> None:
    lm = LM(make_model(name).to(dtype), None)
    assert (lm.tap.path, lm.dim) == (LAST_FFN[name], 32)
    assert lm.tap.module is lm.model.get_submodule(LAST_FFN[name])


@pytest.mark.parametrize("scale", [0.02, 1.0])
@pytest.mark.parametrize("name", ["gpt2", "opt_post_norm_projected", "falcon_parallel", "llama", "mixtral"])
def test_the_tap_is_found_whatever_the_size_of_the_weights(name: str, scale: float) -> None:
    model = make_model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale / 0.3)
    assert LM(model, None).tap.path == LAST_FFN[name]


def test_mamba_is_refused_and_told_of_last_hidden() -> None:
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*`key_tap='last_hidden'`"):
        LM(make_mamba(), None)


def test_mamba_can_be_tapped_at_its_last_hidden_state_and_at_a_module() -> None:
    model = make_mamba()
    with torch.no_grad():
        want = model.backbone(input_ids=IDS)[0]
    for wish in (LAST_HIDDEN, "lm_head"):
        lm = LM(model, None, key_tap=wish)
        assert lm.tap.path == "lm_head"
        with torch.inference_mode():
            torch.testing.assert_close(lm._vectors(IDS), want)
    assert LM(model, None, key_tap="backbone.layers.1.mixer").dim == 32


def test_a_module_path_taps_that_modules_input() -> None:
    model = make_model("llama")
    seen = []
    handle = model.model.layers[0].mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    lm = LM(model, None, key_tap="model.layers.0.mlp.down_proj")
    assert lm.dim == 48
    with torch.inference_mode():
        torch.testing.assert_close(lm._vectors(IDS), seen[0])


@pytest.mark.parametrize("wish", ["model.layers.7.mlp", "nonsense", "model..mlp", "last-hidden"])
def test_a_path_that_is_no_module_is_refused_with_an_example(wish: str) -> None:
    with pytest.raises(
        ModelError, match=r"`key_tap=.*` is no module of LlamaForCausalLM.*last_hidden.*model\.layers\.1"
    ):
        LM(make_model("llama"), None, key_tap=wish)


@pytest.mark.parametrize("wish", ["", "model", "model.layers", "model.embed_tokens"])
def test_a_module_that_is_given_no_vectors_is_refused(wish: str) -> None:
    with pytest.raises(ModelError, match=r"not reached|one vector per token"):
        LM(make_model("llama"), None, key_tap=wish)


def test_a_module_that_is_never_called_is_refused() -> None:
    model = make_model("llama")
    model.unused = torch.nn.Linear(32, 32)
    with pytest.raises(ModelError, match="unused was not reached"):
        LM(model, None, key_tap="unused")


def test_a_module_without_one_vector_a_token_is_refused() -> None:
    class Pooled(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module):
            super().__init__()
            self.inner, self.pool = inner, torch.nn.Linear(32, 32)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            self.pool(hidden.mean(1))
            return self.inner(hidden)

    model = make_model("llama")
    model.model.layers[1].mlp = Pooled(model.model.layers[1].mlp)
    with pytest.raises(ModelError, match=r"gives \[2, 32\] for \[2, 8\] tokens, expected one vector per token"):
        LM(model, None, key_tap="model.layers.1.mlp.pool")


def test_a_constant_tap_is_refused() -> None:
    model = make_model("llama")
    torch.nn.init.zeros_(model.model.layers[1].post_attention_layernorm.weight)
    with pytest.raises(ModelError, match="same vector for every token"):
        LM(model, None)


def test_a_non_finite_tap_is_refused() -> None:
    model = make_model("llama")
    torch.nn.init.constant_(model.model.layers[1].post_attention_layernorm.weight, float("inf"))
    with pytest.raises(ModelError, match="non-finite vectors; try `dtype='float32'`"):
        LM(model, None)


def test_a_model_that_looks_ahead_is_refused() -> None:
    from transformers import BertConfig, BertLMHeadModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with pytest.raises(ModelError, match=r"looks ahead.*expected a causal LM"):
        LM(BertLMHeadModel(config), None, name="bert")
    config.is_decoder = True
    assert LM(BertLMHeadModel(config), None).tap.path == "bert.encoder.layer.1.intermediate"


def test_a_model_in_training_mode_is_put_to_rest() -> None:
    model = make_llama(attention_dropout=0.5).train()
    lm = LM(model, None)
    assert not model.training
    assert (lm.probe() == lm.probe()).all()


def test_looking_leaves_no_hook_behind() -> None:
    model = make_model("opt")
    find_tap(model, FFN, IDS, 32)
    find_body(model, IDS)
    with pytest.raises(ZeroDivisionError), capture(Tap("lm_head", model.lm_head), stop=True):
        raise ZeroDivisionError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
