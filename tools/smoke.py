"""Build, index, tune, gate, eval and generate with a tiny model, to see that an installed nearlm works without extras.

python tools/smoke.py            with the Python in whose environment nearlm is installed
"""

import json
import math
import random
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

WORDS = "the a licence grants rights to any person who uses copies modifies merges software free of charge and".split()
SHOWN = "nearlm torch transformers tokenizers numpy faiss-cpu numba msgspec cyclopts".split()


def main() -> None:
    print(", ".join(f"{name} {version(name)}" for name in SHOWN))
    with tempfile.TemporaryDirectory(prefix="nearlm-smoke-") as name:
        folder = Path(name)
        make_model(folder / "model")
        for split, documents in (("train", 40), ("valid", 20), ("test", 6)):
            write_texts(folder / split, documents)
        run(folder, "build", "train", "--model", "model", "--out", "store", "--window", "64")
        run(folder, "index", "store")
        run(folder, "tune", "store", "valid")
        run(folder, "gate", "store", "valid")
        found = json.loads(run(folder, "eval", "store", "test", "--json"))
        assert 1 < found["perplexity"] < found["nlm_perplexity"] < math.inf, found
        assert run(folder, "generate", "store", "the licence grants", "--max-new-tokens", "5").strip()
        run(folder, "build", "train", "--model", "model", "--out", "instant", "--keys", "none")
        run(folder, "eval", "instant", "test")
        run(folder, "verify", "store")
    print(f"ok: perplexity {found['perplexity']:.2f}, the model alone {found['nlm_perplexity']:.2f}")


def run(folder: Path, *arguments: str) -> str:
    """Run a command of nearlm as a user does, away from any checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "nearlm", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"nearlm {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    print(f"nearlm {arguments[0]} …")
    return done.stdout


def write_texts(folder: Path, documents: int) -> None:
    """Write documents that say the same things in other orders."""
    folder.mkdir()
    chance = random.Random(documents)
    phrases = [" ".join(random.Random(seed).choices(WORDS, k=6)) for seed in range(12)]
    for number in range(documents):
        (folder / f"{number}.txt").write_text(". ".join(chance.choices(phrases, k=15)) + ".\n")


def make_model(folder: Path) -> None:
    """Save a random Llama of two layers with a tokenizer of its own."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    texts = [" ".join(random.Random(0).choices(WORDS, k=2000))]
    bpe.train_from_iterator(texts, vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
