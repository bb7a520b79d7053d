"""Tiny texts, tokenizers and models; nothing here needs the network."""

import numpy as np
import torch

WORDS = """
the a licence grants rights to any person who uses copies modifies merges software free of charge and
""".split()


def make_text(words: int, seed: int = 0) -> str:
    """Deterministic nonsense with sentences and paragraphs."""
    chosen = np.random.default_rng(seed).choice(WORDS, words)
    lines = [" ".join(chosen[i : i + 12]) + "." for i in range(0, words, 12)]
    return "\n".join(line + ("\n" if i % 4 == 3 else "") for i, line in enumerate(lines))


def make_tokenizer(vocab_size: int = 300, *, adds_bos: bool = True):
    """Train a small byte-level BPE tokenizer with BOS and EOS, which puts BOS before a text or does not."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [make_text(2000)], vocab_size=vocab_size, special_tokens=["<s>", "</s>"], show_progress=False
    )
    if adds_bos:
        bpe._tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>")


def make_llama(seed: int = 0, vocab_size: int = 300, **config):
    """Make a random Llama with 2 layers and 32 dimensions, in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **config})).eval()
