"""Show where every token of a text comes from, as a page.

Usage: python examples/explain.py mem "the text" page.html
"""

import sys
from pathlib import Path

import nearlm
from nearlm.knnlm import memory_share

store, text, page = sys.argv[1:4]
knnlm = nearlm.KNNLM.load(store)
tokens = knnlm.explain(knnlm.prompt_ids(text))  # in a notebook, this shows itself
Path(page).write_text(f"<!doctype html><meta charset=utf-8>{tokens._repr_html_()}")

most = max(tokens, key=memory_share)
print(f"{most.token!r} owes the memory most: {memory_share(most):.0%} of its probability")
for distance, context in most.nearest:
    print(f"{distance:8.2f}  …{context.text[-60:]!r} → {context.target!r}  ({context.document})")
