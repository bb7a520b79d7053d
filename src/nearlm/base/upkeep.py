"""What the cache holds, by kind, and how it is cleared."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nearlm.base import files
from nearlm.base.cache import cache_dir, store_folder
from nearlm.base.errors import OptionError, StoreError

KINDS = {  # what each folder of the cache holds; all but stores is made or downloaded again when it is needed
    "stores": "stores that were made as cache:NAME or pulled",
    "models": "models that were downloaded or trained",
    "corpora": "texts of the named corpora",
    "downloads": "packages that models and corpora come from",
    "traces": "passes of models over texts, for tuning and training",
    "weights": "hashes of models' weights",
    "verified": "which files were found sound",
}


@dataclass(frozen=True)
class Kept:
    """One kind of what is kept: how many entries, and their size."""

    kind: str
    entries: int
    bytes: int
    holds: str


def list_cache() -> list[Kept]:
    """Say what the cache holds, by kind, and what lies there that is of no known kind."""
    folder = cache_dir()
    there = sorted(path.name for path in _children(folder)) if folder.is_dir() else []
    kinds = [*KINDS, *(name for name in there if name not in KINDS)]
    found = []
    for kind in kinds:
        entries = list(_children(folder / kind)) if (folder / kind).is_dir() else []
        found.append(Kept(kind, len(entries), tree_bytes(folder / kind), KINDS.get(kind, "not nearlm's")))
    return found


def clear_cache(what: str) -> int:
    """Remove one kind of what is kept, or one store (`cache:NAME`), and return the bytes that are free now.

    Stores, which cannot be made again by themselves, are removed one by one. What another process writes is left.
    """
    if what.startswith("cache:"):
        entries = [store_folder(what)]
        if not entries[0].is_dir():
            raise OptionError(f"there is no {what}; `nearlm cache` lists what there is")
    elif what in KINDS and what != "stores":
        entries = list(_children(cache_dir() / what))
    else:
        kinds = ", ".join(kind for kind in KINDS if kind != "stores")
        raise OptionError(f"{what!r} cannot be cleared; expected cache:NAME for a store, or one of {kinds}")
    return sum(_remove(entry) for entry in entries)


def _remove(entry: Path) -> int:
    size = tree_bytes(entry)
    if entry.is_symlink() or not entry.is_dir():
        files.remove(entry)
        return size
    try:
        with files.lock(entry):
            files.remove(entry)
    except StoreError:  # in use
        return 0
    return size


def _children(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.name != ".lock")


def tree_bytes(folder: Path) -> int:
    """Return the size of a file or of all files below a folder, whatever others remove meanwhile."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size if folder.is_symlink() or folder.exists() else 0
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).lstat().st_size
            except OSError:  # it is gone
                continue
    return total
