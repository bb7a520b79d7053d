"""Tiny random models of many architectures, made from their configs; nothing here needs the network."""

from typing import Any

import torch
import transformers

VOCAB = 97
_ANY = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
_GPT = {**_ANY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_WIDE = {**_ANY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_MHA = {**_WIDE, "intermediate_size": 48, "max_position_embeddings": 64}
_GQA = {**_MHA, "num_key_value_heads": 2}
_LOCAL = {**_GQA, "head_dim": 8, "sliding_window": 4}
_MOE = {**_GQA, "num_experts_per_tok": 2}
_OPT = {**_WIDE, "ffn_dim": 48, "max_position_embeddings": 64, "init_std": 0.3}
_FALCON = {**_WIDE, "max_position_embeddings": 64}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", _GPT),
    "gptj": ("GPTJ", {**_GPT, "rotary_dim": 4}),
    "gpt_neox": ("GPTNeoX", {**_MHA, "use_parallel_residual": True}),
    "gpt_neox_sequential": ("GPTNeoX", {**_MHA, "use_parallel_residual": False}),
    "opt": ("OPT", {**_OPT, "word_embed_proj_dim": 32}),
    "opt_post_norm_projected": ("OPT", {**_OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    "bloom": ("Bloom", {**_ANY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon_parallel": ("Falcon", {**_FALCON, "parallel_attn": True}),
    "falcon_new": ("Falcon", {**_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon_alibi": ("Falcon", {**_FALCON, "alibi": True, "parallel_attn": False, "multi_query": False}),
    "mpt": ("Mpt", {**_ANY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "expansion_ratio": 2}),
    "llama": ("Llama", _GQA),
    "mistral": ("Mistral", {**_GQA, "sliding_window": 4}),
    "qwen2": ("Qwen2", _GQA),
    "qwen3": ("Qwen3", {**_GQA, "head_dim": 8}),
    "gemma2": ("Gemma2", {**_LOCAL, "final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3Text", _LOCAL),
    "phi": ("Phi", _MHA),
    "phi3": ("Phi3", _GQA),
    "stablelm": ("StableLm", {**_GQA, "use_parallel_residual": False}),
    "stablelm_parallel": ("StableLm", {**_GQA, "use_parallel_residual": True}),
    "olmo2": ("Olmo2", _GQA),
    "mixtral": ("Mixtral", {**_MOE, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", {**_MOE, "num_experts": 4, "moe_intermediate_size": 24, "head_dim": 8}),
    "cohere": ("Cohere", {**_GQA, "logit_scale": 0.25}),
    "granite": ("Granite", {**_GQA, "logits_scaling": 3.0}),
    "recurrent_gemma": ("RecurrentGemma", {**_GQA, "num_hidden_layers": 3, "lru_width": 32, "logits_soft_cap": 2.0}),
}


def make_model(name: str, seed: int = 0) -> Any:
    """Make a random model; its norms and biases are random too, so that no two of its vectors are the same."""
    family, settings = ARCHITECTURES[name]
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def make_mamba() -> Any:
    """Make a random Mamba, which has no feed-forward networks."""
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4, initializer_range=0.3
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()
