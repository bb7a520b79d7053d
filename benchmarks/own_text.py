"""Text that a store's model writes by itself, to learn from when not to trust the memory.

    python benchmarks/own_text.py STORE --out samples [--pieces 72] [--seed 0]
    nearlm gate STORE valid/ samples/ --gate careful
    nearlm eval STORE unrelated/ --mixture careful

Pieces of up to 48, 96 and 192 tokens, drawn from the model alone (temperature 1), begin with the token that ends its
texts. A mixture that is learned on text of the store's kind alone expects that kind; what the model writes by itself is
text of any other, on which no memory can be better than the model.
"""

import argparse
from pathlib import Path

import torch

from nearlm.store import Datastore
from nearlm.store.model_files import load_lm

LENGTHS = (48, 96, 192)
TOGETHER = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pieces", type=int, default=72)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lm = load_lm(Datastore.open(options.store))
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    start = lm.tokenizer.eos_token_id
    for number, first in enumerate(range(0, options.pieces, TOGETHER)):
        rows = min(TOGETHER, options.pieces - first)
        begin = torch.full((rows, 1), start)
        how = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": start}
        made = lm.model.generate(
            begin,
            attention_mask=torch.ones_like(begin),
            max_new_tokens=LENGTHS[number % len(LENGTHS)],
            min_new_tokens=16,
            **how,
        )
        for row, tokens in enumerate(made[:, 1:]):
            text = lm.tokenizer.decode(tokens, skip_special_tokens=True)
            (options.out / f"{first + row:04d}.txt").write_text(text)
    print(f"{options.pieces} pieces in {options.out}")


if __name__ == "__main__":
    main()
