"""The card of a shared store: what it holds, which model it is for, how to use it, what was measured."""

import json

from nearlm.base import files, printable, size
from nearlm.store.datastore import Datastore
from nearlm.store.settings import read_tuned

_USE = """## Use

```
pip install nearlm
nearlm pull {place}
nearlm generate {use} "…" --explain
```

```python
import nearlm

knnlm = nearlm.KNNLM.load("{use}")
print(knnlm.generate("…", max_new_tokens=40))
```
"""
_SLIM = "The keys are left out: it can be searched, scored and generated with, but not indexed anew or appended to."


def card(store: Datastore, size_bytes: int, *, slim: bool, license: str | None, place: str) -> str:
    """Write the card, which begins with what the Hub reads of it."""
    name = place.removeprefix("hf:")
    return "\n".join(
        [
            _front(store, license),
            f"# {_plain(name.rstrip('/').rsplit('/', 1)[-1])}",
            "",
            "A memory for a causal language model, made with [nearlm](https://github.com/nearlm/nearlm): records of "
            "contexts and the tokens that followed them (kNN-LM). It contains the text it was made from, as tokens.",
            "",
            *_table(store, size_bytes),
            "",
            *([_SLIM, ""] if slim else []),
            *_measured(store),
            _USE.format(place=name, use=f"hf:{name}" if name.count("/") == 1 and name[0] not in "./~" else name),
        ]
    )


def _front(store: Datastore, license: str | None) -> str:
    model = store.manifest.model
    lines = ["---", "library_name: nearlm", "tags: [nearlm, knn-lm, retrieval]"]
    if model.name_path is None and "/" in model.name:
        lines.append(f"base_model: {json.dumps(model.name)}")
    lines.append(f"license: {json.dumps(license or 'unknown')}")
    return "\n".join([*lines, "---", ""])


def _table(store: Datastore, size_bytes: int) -> list[str]:
    manifest = store.manifest
    model = manifest.model
    revision = f", revision {model.revision}" if model.revision else ""
    adapter = f" with adapter {model.adapter}" if model.adapter else ""
    rows = {
        "model": f"{model.name}{adapter}{revision}",
        "key tap": f"`{_plain(manifest.key_tap)}`, {store.dim} dimensions",
        "records": f"{len(store):,}" if len(store) else "none: text alone",
        "text": f"{manifest.tokens:,} tokens in {manifest.documents:,} documents",
        "made from": ", ".join(text for segment in manifest.segments for text in segment.texts),
        "made by": "; ".join(map(str, manifest.transforms)) or "build",
        "indexes": ", ".join(store.indexes) or "none",
        "size": size(size_bytes),
    }
    return ["| | |", "|---|---|", *(f"| {name} | {_plain(text)} |" for name, text in rows.items())]


def _measured(store: Datastore) -> list[str]:
    """Say what tuning and training found on their validation texts."""
    rows = []
    for index in store.indexes:
        tuned = read_tuned(store.layout, index)
        if tuned is not None:
            chosen = f"λ={tuned.lam:g}, T={tuned.knn_temperature:g}, k={tuned.k}" if tuned.lam is not None else ""
            rows.append((f"index {index}, {chosen}", tuned.perplexity, f"{tuned.tokens:,} tokens of validation text"))
    for name in store.mixtures:
        held = files.read_stamped(store.layout.mixture(name).description)
        if all(isinstance(held.get(number), float) for number in ("nlm", "searched")):
            where = f"{held.get('held_tokens', 0):,} held-out tokens"
            rows += [("the model alone", held["nlm"], where), (f"mixture {name}", held["searched"], where)]
    if not rows:
        return []
    table = [f"| {_plain(what)} | {perplexity:.3f} | {where} |" for what, perplexity, where in rows]
    return ["| | perplexity | on |", "|---|---|---|", *table, ""]


def _plain(text: str) -> str:
    """Write a name so that it stays in its cell and is no markup."""
    return printable(text).translate({ord("|"): "\\|", ord("\n"): " ", ord("<"): "&lt;"})
