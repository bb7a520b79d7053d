"""Sharing a store: what of it is passed on, and copies of it whose every byte is checked."""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlparse

from nearlm.base import (
    FileInfo,
    OptionError,
    Reporter,
    StoreError,
    files,
    from_json,
    size,
    store_folder,
    write_record,
)
from nearlm.base.progress import QUIET
from nearlm.store.card import card
from nearlm.store.datastore import AnyStore, Datastore
from nearlm.store.inventory import Inventory, check_shareable, read_inventory
from nearlm.store.layout import Layout, is_key_file
from nearlm.store.prepared import is_settled
from nearlm.store.settings import read_defaults

CARD = "README.md"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
Fetch = Callable[[str], Path]  # from the name of a shared file to a copy of it on this machine
Stated = dict[str, FileInfo | None]  # what is said of files; nothing of those that carry a checksum of their own


def take_inventory(store: Datastore, *, slim: bool = False, reporter: Reporter = QUIET) -> Inventory:
    """List what of a store is passed on: records, text, finished indexes, gates and mixtures, and their tables.

    A slim inventory leaves out the keys, which a search in an index needs none of. Every byte is compared with what was
    written, so that no damage is passed on.
    """
    store.refuse_forgotten("which would be passed on")
    if not is_settled(store):
        raise StoreError(f"an edit of {store.path} was cut off while it tidied up; repeat it, then push")
    layout = store.layout
    layout.check_described()
    read_defaults(layout)
    slim = slim or store.slim
    if slim and not store.indexes and len(store):
        raise StoreError(f"{store.path} has no index, and without keys none can be made: nearlm index {store.path}")
    stated: Stated = {layout.manifest.name: None, **store.manifest.files}
    stated |= _stamped(layout, layout.defaults, layout.optimized)
    for name in store.indexes:
        index = layout.index(name)
        stated |= _described(layout, index.description) | _stamped(layout, index.settings)
    for network in (*map(layout.gate, store.gates), *map(layout.mixture, store.mixtures)):
        stated |= _described(layout, network.description)
    for tables in (layout.ngrams, layout.suffixes):
        stated |= _described(layout, tables.description) if tables.description.exists() else {}
    wanted = {name: info for name, info in stated.items() if not (slim and is_key_file(name))}
    found = {}
    with reporter.bar("reading", len(wanted), "files") as advance:
        for name, info in wanted.items():
            found[name] = _read(store.path / name, info)
            advance(1)
    return Inventory(store.checksum, slim, found)


def _read(path: Path, stated: FileInfo | None) -> FileInfo:
    """Describe a file as it is, and refuse one that is not as it was written."""
    found = FileInfo.of(path)
    if stated not in (None, found):
        raise StoreError(f"{path} is damaged: its size or checksum differs, and it would be passed on; make it again")
    return found


def _stamped(layout: Layout, *paths: Path) -> Stated:
    """List those of some files that are there; each carries a checksum of its own, which is compared."""
    there = [path for path in paths if path.exists()]
    for path in there:
        files.read_stamped(path)
    return {_name(layout, path): None for path in there}


def _described(layout: Layout, description: Path) -> Stated:
    """List a description and the files that it names; what lies elsewhere is nothing to pass on."""
    noted = from_json(dict[str, FileInfo], files.read_stamped(description).get("files"), description)
    beside = _name(layout, description.parent)
    stated: Stated = {_name(layout, description): None, **{f"{beside}/{name}": info for name, info in noted.items()}}
    check_shareable(stated, description)
    return stated


def _name(layout: Layout, path: Path) -> str:
    return path.relative_to(layout.folder).as_posix()


def hub_id(place: str) -> str | None:
    """Return the id of a dataset repository (`user/name` or `hf:user/name`), None where a folder is meant."""
    name = place.removeprefix("hf:")
    if name != place and not _HUB_ID.fullmatch(name.partition("@")[0]):
        raise OptionError(f"{place!r} is no repository on the Hub; expected hf:user/name")
    local = place.startswith((".", "~")) or not _HUB_ID.fullmatch(name.partition("@")[0])
    return None if local else name


def local_folder(place: str) -> Path:
    """Return the folder that a path, `cache:NAME` or a `file://` address names."""
    if not place.startswith("file:"):
        return store_folder(place)
    address = urlparse(place)
    if address.netloc not in ("", "localhost") or not address.path.startswith("/"):
        raise OptionError(f"{place!r} names another machine or no whole path; expected file:///folder")
    return Path(unquote(address.path))


def push(
    store: AnyStore,
    to: str | Path,
    *,
    slim: bool = False,
    private: bool = False,
    license: str | None = None,
    reporter: Reporter = QUIET,
) -> str:
    """Pass a store on: to a dataset repository on the Hugging Face Hub (`user/name`), or to a folder.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        to: `user/name` or `hf:user/name` for the Hub; a folder (`./name`, `/shared/name`, `file:///shared/name`).
        slim: Leave out the keys: about half of the size or less. Searching, scoring and generating work without
            them, new indexes, pruning and appending do not.
        private: Make a new repository private.
        license: Licence of the texts, for the card (an identifier of the Hub, e.g. `mit`).
        reporter: Whom to tell of the progress.

    Returns:
        Where the store is now.
    """
    opened = Datastore.open(store)
    inventory = take_inventory(opened, slim=slim, reporter=reporter)
    repository = hub_id(str(to))
    place = f"./{local_folder(str(to)).name}" if repository is None else str(to)  # whose folder it is concerns nobody
    about = card(opened, inventory.bytes, slim=inventory.slim, license=license, place=place)
    reporter.say(f"{opened.path}: {len(inventory.files)} files, {size(inventory.bytes)}")
    if repository is not None:
        from nearlm.store.hub import upload

        return upload(opened.path, inventory, about, repository, private=private, reporter=reporter)
    if private:
        raise OptionError("`private` is for repositories on the Hub; a folder is as private as its permissions")
    folder = local_folder(str(to))
    receive(inventory, folder, lambda name: opened.path / name, reporter)
    files.write_bytes(folder / CARD, about.encode())
    return str(folder)


def pull(
    source: str | Path, out: str | Path | None = None, *, revision: str | None = None, reporter: Reporter = QUIET
) -> Datastore:
    """Get a store that was pushed, compare every byte of it with its checksum, and open it.

    Args:
        source: `user/name` or `hf:user/name` on the Hub, or a folder that a store was pushed to.
        out: Folder for the store, or `cache:NAME`. By default a folder of the cache, where `hf:user/name` finds it.
        revision: A branch, tag or commit of the repository.
        reporter: Whom to tell of the progress.
    """
    repository = hub_id(str(source))
    if repository is not None:
        from nearlm.store.hub import download

        name, _, marked = repository.partition("@")
        revision = revision or marked or None
        return download(name, pulled_folder(name, revision) if out is None else store_folder(out), revision, reporter)
    folder = local_folder(str(source))
    if revision is not None:
        raise OptionError("`revision` is for repositories on the Hub; a folder has none")
    if out is None:
        raise OptionError(f"{folder} is a folder, which can be used where it is; name a folder for the copy with `out`")
    shared = Layout(folder).shared
    files.check_links(folder)
    inventory = read_inventory(shared) if shared.exists() else take_inventory(Datastore.open(folder))
    return receive(inventory, store_folder(out), lambda name: folder / name, reporter)


def open_pulled(repository: str, revision: str | None = None, reporter: Reporter = QUIET) -> Datastore:
    """Open a repository's store in the cache, which it is pulled into if it is not there."""
    place = repository if repository.startswith("hf:") else f"hf:{repository}"
    name, _, marked = str(hub_id(place)).partition("@")
    folder = pulled_folder(name, revision or marked or None)
    if Layout(folder).is_store:
        return Datastore.open(folder)
    return pull(place, revision=revision, reporter=reporter)


def pulled_folder(repository: str, revision: str | None) -> Path:
    """Return where in the cache a repository's store lies."""
    mark = f"@{revision}".replace("/", "--") if revision else ""
    return store_folder(f"cache:hf--{repository.replace('/', '--')}{mark}")


def receive(
    inventory: Inventory, folder: Path, fetch: Fetch, reporter: Reporter = QUIET, *, move: bool = False
) -> Datastore:
    """Make a folder the store of an inventory, file by file and its manifest last; after a kill it resumes.

    What was fetched for this alone may be moved.
    """
    layout = Layout(folder)
    _refuse_other(layout, inventory)
    folder.mkdir(parents=True, exist_ok=True)
    with files.lock(folder):
        files.check_links(folder)
        write_record(layout.shared, inventory)
        manifest = layout.manifest.name
        rest = {name: file for name, file in inventory.files.items() if name != manifest}
        with reporter.bar("copying", inventory.bytes, "bytes") as advance:
            for name, file in (*rest.items(), (manifest, inventory.files[manifest])):
                _receive_file(folder / name, file, fetch, name, move)
                advance(file.bytes)
    return Datastore.open(folder)


def _refuse_other(layout: Layout, inventory: Inventory) -> None:
    """Refuse a folder that holds something else than (a part of) this very store."""
    if layout.folder.exists() and not layout.folder.is_dir():
        raise StoreError(f"{layout.folder} is a file, expected a folder for the store; choose another")
    begun = {".lock", f"{layout.shared.name}.part"}  # what a copy leaves that was killed as it began
    there = [path.name for path in layout.folder.iterdir()] if layout.folder.is_dir() else []
    there = [name for name in there if name not in begun]
    same = layout.shared.exists() and read_inventory(layout.shared) == inventory
    if there and not same:
        what = "another store" if layout.is_store or layout.shared.exists() else repr(sorted(there)[0])
        raise StoreError(f"{layout.folder} holds {what}; choose a new or empty folder, or remove it first")


def _receive_file(target: Path, file: FileInfo, fetch: Fetch, name: str, move: bool) -> None:
    """Copy one file, unless it is there as it should be, and refuse bytes that are not those that were pushed."""
    if target.is_file() and FileInfo.of(target) == file:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = fetch(name)
    part = source
    if not move:
        part = target.with_name(f"{target.name}.part")
        files.copy(source, part)
    if FileInfo.of(part) != file:
        files.remove(part)
        raise StoreError(f"{source} is not as it was pushed (its checksum differs); push the store again")
    files.replace(part, target)
