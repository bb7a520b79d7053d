"""Compare a store that has forgotten a document with one that was built without it: perplexities, and bytes on disk.

    python benchmarks/forgetting.py [--model smollm2-135m] [--train spdx:train] [--test spdx:test] [--documents 300]

Documents are the beginnings of those of a text. Both stores are built from scratch with the same model, indexed and
given a suffix array; perplexities are of the test text's first tokens with one λ. "left" are the files that hold the
document's name, its tokens or one of its keys, of those that the store built without it does not hold.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import nearlm
from nearlm.base import Reporter
from nearlm.store import Datastore, SearchSettings
from nearlm.text import TextSource

CHARACTERS = 500  # of a document
KINDS = ("flat", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--train", default="spdx:train")
    parser.add_argument("--test", default="spdx:test")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=3000, help="of the test text")
    options = parser.parse_args()
    lm = nearlm.LM.load(options.model)
    with tempfile.TemporaryDirectory(prefix="nearlm-forgetting-") as name:
        folder = Path(name)
        found = ["".join(document.pieces)[:CHARACTERS] for document in TextSource((options.train,)).open().documents()]
        texts = {f"{number:03d}.txt": text for number, text in enumerate(found[: options.documents])}
        gone = unlike_others(texts)
        stores = {}
        for kind, left in (("whole", texts), ("without", {name: text for name, text in texts.items() if name != gone})):
            (folder / kind).mkdir()
            for file, text in left.items():
                (folder / kind / file).write_text(text)
            stores[kind] = make(lm, folder / kind, folder / f"{kind}-store")
        test = TextSource((options.test,), max_tokens=options.tokens)
        records = len(stores["whole"]) - len(stores["without"])
        print(f"{len(texts)} documents, {len(stores['whole']):,} records, {records} of them of {gone}")
        others = [path.read_bytes() for path in stores["without"].path.rglob("*") if path.is_file()]
        traces = [one for one in traces_of(stores["whole"], records, gone) if not any(one in data for data in others)]
        print(f"{len(traces)} traces: name, tokens and keys that are in no other document")
        show("with the document", stores["whole"].path, test, lm, traces)
        show("built without it", stores["without"].path, test, lm, traces)
        nearlm.forget(stores["whole"].path, source=f"*{gone}")
        show("forgotten", stores["whole"].path, test, lm, traces)
        nearlm.compact(stores["whole"].path)
        show("compacted", stores["whole"].path, test, lm, traces)


def unlike_others(texts: dict[str, str]) -> str:
    """Return the first of the second half whose end no other text holds: licences are variants of each other."""
    for name in list(texts)[len(texts) // 2 :]:
        end = texts[name][-CHARACTERS // 4 :]
        if not any(end in text for other, text in texts.items() if other != name):
            return name
    raise SystemExit("every text ends like another")


def make(lm: nearlm.LM, texts: Path, out: Path) -> Datastore:
    """Build a store with an index of each kind and a suffix array."""
    store = nearlm.build(lm, str(texts), out, reporter=Reporter())
    for kind in KINDS:
        nearlm.build_index(store, kind, name=kind)
    nearlm.build_infinigram(store)
    return Datastore.open(out)


def traces_of(store: Datastore, records: int, name: str) -> list[bytes]:
    """Return what the document left: its tokens as the store keeps them, its name, and its keys, as bytes."""
    number = next(i for i, known in enumerate(store.document_names()) if known.endswith(name))
    begin, end = store.document_bounds[number : number + 2]
    first = int(np.searchsorted(store.document_bounds, begin))  # each document before has one token without a record
    keys = store.keys[begin - first : begin - first + records]
    return [store.tokens[begin:end].tobytes(), name.encode(), *(key.tobytes() for key in keys)]


def show(what: str, store: Path, test: TextSource, lm: nearlm.LM, traces: list[bytes]) -> None:
    """Print perplexities with each index, and how many files hold something of the document."""
    row = []
    for kind in KINDS:
        settings = SearchSettings(index=kind, lam=0.4, knn_temperature=2.0, k=256)
        row.append(nearlm.evaluate(store, test, lm, settings=settings).perplexity)
    held = (path for path in store.rglob("*") if path.is_file() and any(one in path.read_bytes() for one in traces))
    left = sorted(path.relative_to(store).as_posix() for path in held)
    print(f"{what:18}", *(f"{kind} {value:.6f}  " for kind, value in zip(KINDS, row, strict=True)), f"left: {left}")


if __name__ == "__main__":
    main()
