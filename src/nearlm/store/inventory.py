"""What was passed on of a store: kept in its folder, so that a copy without keys is known for one."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nearlm.base import FileInfo, StoreError, read_record
from nearlm.store.layout import Layout, is_plain

_SHAREABLE = re.compile(
    r"(manifest|defaults|optimize)\.json|(probe|assign|scales)\.npy|transform\.faiss|tokenizer/[^/]+"
    r"|(keys|values|origin|weights|tokens|docs)-[0-9]{5}\.(npy|json)"
    r"|(index|gate|mixture)/[^/]+/[^/]+\.(json|safetensors)|index/[^/]+/data-[0-9]+(-new)?/[^/]+\.(npy|faiss)"
    r"|(ngrams|suffixes)/(data-[0-9a-f]+/)?[^/]+\.(npy|json)"
)


@dataclass(frozen=True)
class Inventory:
    """What was passed on of a store: the state it was in, whether without its keys, and every file."""

    manifest: str
    slim: bool
    files: dict[str, FileInfo]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())


def read_inventory(path: Path) -> Inventory:
    """Read what was passed on; a name that no store has is refused."""
    inventory = read_record(Inventory, path)
    check_shareable(inventory.files, path)
    if Layout(path.parent).manifest.name not in inventory.files:
        raise StoreError(f"{path} names no manifest.json; it is damaged: push the store again")
    return inventory


def check_shareable(names: Iterable[str], where: Path) -> None:
    """Refuse names that no file of a store has: they could lie outside of its folder."""
    for name in names:
        if not (_SHAREABLE.fullmatch(name) and all(map(is_plain, name.split("/")))):
            raise StoreError(f"{where} names a file {name!r}, which no store has; it is damaged or hostile")


def is_slim(layout: Layout, manifest: str) -> bool:
    """Tell whether a store of this manifest was passed on without its keys."""
    if not layout.shared.exists():
        return False
    inventory = read_inventory(layout.shared)
    return inventory.slim and inventory.manifest == manifest
