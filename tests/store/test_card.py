"""The card: it is valid for the Hub, says what the store holds, and lets no name break out of it."""

import dataclasses

import yaml

from nearlm.search import build_index
from nearlm.store import Datastore, Tuned, write_tuned
from nearlm.store.card import card
from nearlm.store.manifest import SegmentInfo, write_manifest
from synthetic import skewed_store


def front(text: str) -> dict:
    return yaml.safe_load(text.split("---")[1])


def test_it_says_what_the_store_holds(tmp_path):
    store = skewed_store(tmp_path / "store")
    build_index(store, "flat")
    tuned = Tuned(index="default", lam=0.25, knn_temperature=2.0, k=64, perplexity=9.5, tokens=1000)
    write_tuned(store.layout, tuned)
    text = card(store, 12_345_678, slim=True, license="cc-by-4.0", place="hf:user/memory")
    assert front(text) == {"library_name": "nearlm", "tags": ["nearlm", "knn-lm", "retrieval"], "license": "cc-by-4.0"}
    for said in ("# memory", "| records | 500 |", "12.3 MB", "λ=0.25, T=2, k=64 | 9.500 | 1,000 tokens", "left out"):
        assert said in text, said
    assert 'KNNLM.load("hf:user/memory")' in text and "nearlm pull user/memory" in text


def test_names_stay_in_their_cells(tmp_path):
    store = skewed_store(tmp_path / "store")
    model = dataclasses.replace(store.manifest.model, name="evil/mo|del\n# <script>\x1b[2J")
    texts = [SegmentInfo(["a|b", "<img>"], [], 0, store.manifest.tokens, 1, "")]
    write_manifest(store.path, dataclasses.replace(store.manifest, model=model, segments=texts))
    text = card(Datastore.open(store.path), 1, slim=False, license='x"\ny: z', place="./out")
    assert front(text)["base_model"] == model.name and front(text)["license"] == 'x"\ny: z'
    body = text.split("---", 2)[2]
    assert "<script>" not in body and "\x1b" not in text.replace(front(text)["base_model"], "") and "a\\|b" in body
