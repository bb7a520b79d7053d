"""Folders of small documents to fit a memory to, or to choose one with."""

from pathlib import Path

from tiny import make_text


def write_documents(folder: Path, numbers: range, words: int = 120) -> Path:
    """Write documents that share no sentences, or hardly any."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        (folder / f"{number}.txt").write_text(make_text(words, seed=number))
    return folder


def write_texts(folder: Path, words: int, valid_words: int) -> Path:
    """Write a text to train on, and twelve documents to validate with."""
    (folder / "train.txt").write_text(make_text(words, seed=1))
    (folder / "valid").mkdir()
    for number in range(12):
        (folder / "valid" / f"{number}.txt").write_text(make_text(valid_words, seed=2 + number))
    return folder


def stored_names(store) -> set[str]:
    """Return the names of the documents that a store holds."""
    return {store.document_of(int(begin))[0] for begin in store.document_bounds[:-1]}
