"""Tiny models and texts that every test can share; nothing here needs the network."""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("nearlm", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("nearlm")

WORDS = """
the a licence grants rights to any person who uses copies modifies merges software free of charge and
""".split()


def make_text(words: int, seed: int = 0) -> str:
    """Deterministic nonsense with sentences and paragraphs."""
    chosen = np.random.default_rng(seed).choice(WORDS, words)
    lines = [" ".join(chosen[i : i + 12]) + "." for i in range(0, words, 12)]
    return "\n".join(line + ("\n" if i % 4 == 3 else "") for i, line in enumerate(lines))


def make_tokenizer(vocab_size: int = 300):
    """Train a small byte-level BPE tokenizer with BOS and EOS."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [make_text(2000)], vocab_size=vocab_size, special_tokens=["<s>", "</s>"], show_progress=False
    )
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


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """A saved tiny Llama with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    make_llama().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lm(model_folder: Path):
    from nearlm.model.lm import LM

    return LM.load(str(model_folder))


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Five documents of unlike lengths."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, words in enumerate((300, 20, 5, 150, 61)):
        (folder / f"doc{number}.txt").write_text(make_text(words, seed=number))
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request) -> None:
    """Keep tests out of the user's cache, except those that may use the network."""
    if "network" not in request.keywords:
        monkeypatch.setenv("NEARLM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def nearlm(monkeypatch, capfd):
    """Run a command in this process; return exit code, stdout and stderr."""
    from nearlm import cli

    monkeypatch.delenv("NEARLM_DEBUG", raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nearlm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return exit.value.code, *capfd.readouterr()

    return run


@pytest.fixture
def quick_paper_index(monkeypatch):
    """Give the paper's index codes of 4 bits, which are trained at once."""
    monkeypatch.setattr("nearlm.search.kinds.paper_code_bytes", lambda dim: "4x4")


@pytest.fixture
def quick_timing(monkeypatch):
    """Let experiments time no longer than they must."""
    monkeypatch.setattr("nearlm.optimizer.bench._SECONDS", 0.0)
