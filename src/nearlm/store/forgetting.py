"""Forgetting documents: a list of them is written, and from then on nobody meets them."""

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, FileInfo, Ints, OptionError, Reporter, StoreError, files, read_record, store_folder
from nearlm.store.datastore import AnyStore, Datastore
from nearlm.store.layout import Layout
from nearlm.store.manifest import Forgotten, Manifest, stamped, write_manifest
from nearlm.store.writing import writing

SHOWN = 10  # names of documents or stores
Prepare = Callable[[Datastore], None]


@dataclass(frozen=True)
class Choice:
    """Which documents: those of a name, of a source that a pattern matches, or whose text a regular expression finds.

    A document has the name of its source, with `:` and the row for one of several in a file. If several are given, all
    must hold.
    """

    document: str | None = None
    """Name of a document, as `info --record` and the server show it."""
    source: str | None = None
    """Pattern of file names, as `manuals/*`: all documents of these sources."""
    matching: str | None = None
    """Regular expression that the document's text contains."""

    def __post_init__(self) -> None:
        if self.document is None and self.source is None and self.matching is None:
            raise OptionError("nothing says what to forget; give `document`, `source` or `matching`")
        if self.matching is not None:
            try:
                re.compile(self.matching)
            except re.error as error:
                raise OptionError(f"`matching={self.matching!r}` is no regular expression ({error})") from None


@dataclass(frozen=True)
class Gone:
    """Documents that are forgotten, or would be: names, tokens and records, and the stores that still hold them."""

    documents: list[str]
    tokens: int
    records: int
    derived: list[str]
    dry_run: bool = False

    def __str__(self) -> str:
        """Say it in a few lines."""
        verb = "would be forgotten" if self.dry_run else "forgotten"
        what = f"{len(self.documents):,} documents, {self.tokens:,} tokens, {self.records:,} records {verb}:"
        more = len(self.documents) - SHOWN
        names = [*self.documents[:SHOWN], *([f"… and {more:,} more"] if more > 0 else [])]
        lines = [what, *(f"  {name}" for name in names)]
        if self.derived:
            held = ", ".join(self.derived)
            lines.append(f"made from this store, and still holding them: {held}; make these again, or remove them")
        return "\n".join(lines)


def choose_documents(store: Datastore, choice: Choice) -> Ints:
    """Return the numbers of the documents that a choice means and that are not forgotten yet."""
    gone = set() if store.forgotten is None else set(store.forgotten.documents.tolist())
    found = [number for number in _named(store, choice) if number not in gone]
    if choice.matching is not None:
        found = list(_matching(store, found, re.compile(choice.matching)))
    return np.array(found, np.int64)


def _named(store: Datastore, choice: Choice) -> Iterator[int]:
    number = 0
    for segment in range(len(store.manifest.segments)):
        docs, sources = store.document_table(segment)
        for _, source, row in docs.tolist():
            name = sources[source]
            whole = name if row < 0 else f"{name}:{row}"
            fits = choice.document in (None, whole)
            if fits and (choice.source is None or fnmatch.fnmatchcase(name, choice.source)):
                yield number
            number += 1


def _matching(store: Datastore, numbers: list[int], wanted: re.Pattern[str]) -> Iterator[int]:
    bounds = store.document_bounds
    for number in numbers:
        tokens = store.tokens[int(bounds[number]) : int(bounds[number + 1])]
        if wanted.search(store.tokenizer.decode(tokens, skip_special_tokens=True)):
            yield number


def write_tombstones(
    store: AnyStore,
    choice: Choice,
    *,
    dry_run: bool = False,
    prepare: Prepare | None = None,
    reporter: Reporter = QUIET,
) -> Gone:
    """Forget documents by one rename; `prepare` is called with the store as it will be, before it becomes so."""
    folder = store.path if isinstance(store, Datastore) else store_folder(store)
    if dry_run:
        return _describe(Datastore.open(folder), choose_documents(Datastore.open(folder), choice), dry_run=True)
    opened = Datastore.open(folder)  # refuses what is no store
    with writing(folder, opened.layout.build_job):
        opened = Datastore.open(folder)
        _refuse_derived(opened)
        found = choose_documents(opened, choice)
        gone = _describe(opened, found)
        manifest = _with(opened, found)
        if prepare is not None:
            prepare(Datastore(folder, manifest))
        write_manifest(folder, manifest)
        _remove_others(opened.layout, manifest)
    return gone


def _refuse_derived(store: Datastore) -> None:
    parent = store.manifest.parent
    if parent is not None:
        raise StoreError(
            f"{store.path} was made from the store {parent.name!r}, so nothing of it can be forgotten alone; "
            "forget it there, compact that one, and make this one again"
        )


def _describe(store: Datastore, found: Ints, dry_run: bool = False) -> Gone:
    """Say what goes; refuse what matches nothing, and what would leave nothing."""
    if not len(found):
        raise OptionError(f"no document of {store.path} is meant by that, so nothing was forgotten; see nearlm info")
    already = len(store.forgotten) if store.forgotten else 0
    if len(found) + already == store.manifest.documents:
        raise OptionError(f"these are all documents of {store.path}; remove the folder instead")
    names = store.document_names()
    bounds = store.document_bounds
    tokens = int((bounds[found + 1] - bounds[found]).sum())
    ends = np.stack([bounds[found], bounds[found + 1]])
    records = sum(int(np.diff(np.searchsorted(origin, ends), axis=0).sum()) for origin in store.origin.shards)
    return Gone([names[number] for number in found], tokens, records, derived_stores(store), dry_run)


def _with(store: Datastore, found: Ints) -> Manifest:
    """Write the list of all forgotten documents, and return a manifest that names it."""
    old = store.manifest
    numbers = np.union1d(found, store.forgotten.documents) if store.forgotten else found
    name = f"forgotten-{files.canonical_hash([old.held, numbers.tolist()])[:8]}.npy"
    file = store.layout.forgotten(name, len(numbers))
    file.write(numbers)
    before = {old.forgotten.file} if old.forgotten else set()
    listed = {each: info for each, info in old.files.items() if each not in before}
    said = Forgotten(name, len(numbers), old.held)
    return stamped(replace(old, forgotten=said, files={**listed, name: FileInfo.of(file.path)}))


def _remove_others(layout: Layout, manifest: Manifest) -> None:
    for path in layout.folder.glob("forgotten-*.npy"):
        if path.name not in manifest.files:
            files.remove(path)


def derived_stores(store: Datastore) -> list[str]:
    """Return the names of the stores beside a store that were made from it, or from one that was."""
    around = store.path.resolve().parent
    parents: dict[Path, Path] = {}
    for path in around.glob("*/manifest.json"):
        try:
            parent = read_record(Manifest, path).parent
        except (StoreError, OSError):
            continue
        if parent is not None:
            parents[path.parent] = (path.parent / parent.path).resolve()
    found: set[Path] = {store.path.resolve()}
    for _ in parents:
        found |= {child for child, parent in parents.items() if parent in found}
    return sorted(path.name for path in found - {store.path.resolve()})


def still_held(store: Datastore) -> list[str]:
    """Return the documents of a derived store that the store it was made from no longer has, if that can be found."""
    parent = store.manifest.parent
    if parent is None:
        return []
    try:
        origin = Datastore.open((store.path / parent.path).resolve())
    except (StoreError, OSError):
        return []
    if origin.checksum == parent.checksum:
        return []
    there = origin.document_names()
    if origin.forgotten is not None:
        there = [name for number, name in enumerate(there) if number not in origin.forgotten]
    left = list(there)
    counts: dict[str, int] = {}
    for name in left:
        counts[name] = counts.get(name, 0) + 1
    held = []
    for name in store.document_names():
        counts[name] = counts.get(name, 0) - 1
        if counts[name] < 0:
            held.append(name)
    return [*held, *still_held(origin)]
