"""Texts to read, and what was read of them."""

import json
import random
import re
from pathlib import Path

from nearlm.text.corpus import Corpus

ALL = ["docs/Z.TXT", "docs/a.md", "docs/b.txt", "docs/sub/c.rst", "docs/sub/deep/d.py", "docs/x.txt/inner.txt"]


def make_folder(tmp_path: Path) -> Path:
    """Make a folder with all sorts of things in it; its text files are `ALL`."""
    root = tmp_path / "docs"
    for name in ("b.txt", "a.md", "sub/c.rst", "sub/deep/d.py", "Z.TXT"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"text of {name}")
    (root / "x.txt").mkdir()
    (root / "x.txt" / "inner.txt").write_text("inside a folder named x.txt")
    for name in (".hidden.txt", ".git/e.txt", "picture.png", "Makefile"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not to be read")
    return root


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def unreadable(path: Path) -> Path:
    path.symlink_to(path.parent / "gone")
    return path


def read(corpus: Corpus) -> dict[str, str]:
    """Return every document by its name."""
    found: dict[str, str] = {}
    for document in corpus.documents():
        name = document.source if document.row < 0 else f"{document.source}:{document.row}"
        assert name not in found
        found[name] = "".join(document.pieces)
    return found


def undecodable(problems: dict[str, int]) -> bool:
    return any("undecodable" in problem for problem in problems)


class NoSpecials:
    """A tokenizer without BOS and EOS."""

    bos_token_id = eos_token_id = None

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __call__(self, *args, **options):
        return self._tokenizer(*args, **{**options, "add_special_tokens": False})


def prose(seed: int, words: int) -> str:
    """Return made-up text that shares no shingle with that of another seed."""
    return " ".join(f"w{seed}x{random.Random(seed * 7919 + i).randrange(10**9)}" for i in range(words))


def brute_overlap(one: str, other: str) -> float:
    """Return the overlap of two texts, written from its definition, with lists and strings only."""

    def runs(text: str) -> set[str]:
        words = re.sub(r"\W+", " ", text.lower()).split()
        return {" ".join(words[i : i + 8]) for i in range(len(words)) if i + 8 <= len(words) or i == 0}

    small, large = sorted((runs(one), runs(other)), key=len)
    return sum(run in large for run in small) / len(small)
