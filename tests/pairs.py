"""Two stores of one model, each of a text of its own, indexed and with tuned settings."""

from calls import build, build_index
from nearlm.base import files
from tiny import make_text

TUNED = {"lam": 0.4, "knn_temperature": 3.0, "k": 16}


def make_pair(folder, lm):
    """Build the stores `licences` and `manuals` in a folder."""
    stores = []
    for number, name in enumerate(("licences", "manuals")):
        (folder / f"{name}.txt").write_text(make_text(160, seed=number))
        text = str(folder / f"{name}.txt")
        store = build(lm, text, folder / name, window=64, key_dtype="float32", quiet=True)
        build_index(store, "flat", quiet=True)
        files.write_stamped(store.path / "index" / "default" / "settings.json", TUNED)
        stores.append(store)
    return tuple(stores)


def write_valid(folder):
    """Write a validation text of several documents."""
    folder.mkdir()
    for number in range(6):
        (folder / f"valid{number}.txt").write_text(make_text(40, seed=60 + number))
    return str(folder)
