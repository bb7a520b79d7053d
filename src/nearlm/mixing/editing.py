"""Editing a store that is in use: text is added or forgotten with all that belongs to it, by one rename.

Indexes, suffix array and n-gram tables for the next state are made beside those in use (`store.prepared`). Gates,
mixtures and tuned settings stay: they were learned with a few documents more or less.
"""

import contextlib
from pathlib import Path

from nearlm.base import QUIET, Reporter, StoreError, files
from nearlm.mixing.infinigram_building import prepare_infinigram, settle_infinigram
from nearlm.mixing.ngrams import prepare_ngrams, settle_ngrams
from nearlm.model.lm import LM
from nearlm.model.spec import ModelSpec
from nearlm.search.index_building import prepare_index
from nearlm.search.removal import drop_kept, prepare_without, settle_index
from nearlm.store import AnyStore, BuildOptions, Datastore
from nearlm.store.builder import build
from nearlm.store.compaction import compact_store
from nearlm.store.forgetting import Choice, Gone, write_tombstones
from nearlm.store.prepared import settle
from nearlm.text import Texts


def add(
    store: AnyStore,
    text: Texts,
    model: str | ModelSpec | LM | None = None,
    *,
    restart: bool = False,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Add text to a store that is in use: its records, and with them indexes, suffix array and n-gram tables.

    Whoever opens the store has all of it or nothing; a running server takes it up with the next request. What was
    tuned and trained goes on being used.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        text: Names of texts, or a `TextSource`.
        model: The store's model, by default as it was built.
        restart: Throw an unfinished addition away first. Without it, the same call resumes where it stopped.
        reporter: Whom to tell of the progress.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "growing")
        >>> grown = nearlm.add(store, nearlm.TextSource.from_strings("the licence grants any person rights"))
        >>> len(grown) > len(store)
        True
    """
    opened = Datastore.open(store)

    def prepare(coming: Datastore) -> None:
        _settle(Datastore.open(coming.path))  # what a killed edit may have left
        for name in coming.indexes if len(coming) else ():
            prepare_index(coming, name, reporter)
        prepare_infinigram(coming, reporter)
        prepare_ngrams(coming, reporter)

    made = build(
        model, text, opened.path, BuildOptions(), append=True, restart=restart, prepare=prepare, reporter=reporter
    )
    _tidy(made.path)
    return made


def forget(
    store: AnyStore,
    *,
    document: str | None = None,
    source: str | None = None,
    matching: str | None = None,
    dry_run: bool = False,
    reporter: Reporter = QUIET,
) -> Gone:
    """Forget documents: from now on no search, count, trace or text shows them. `compact` takes them off the disk.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        document: Name of a document.
        source: Pattern of file names: all documents of these.
        matching: Regular expression that the text of a document contains. If several are given, all must hold.
        dry_run: Say what would go, and change nothing.
        reporter: Whom to tell of the progress.

    Returns:
        What is gone, and which stores that were made from this one still hold it.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "shrinking")
        >>> nearlm.forget(store, source="*1.txt").documents
        ['docs/1.txt']
    """
    folder = Datastore.open(store).path
    choice = Choice(document, source, matching)

    def prepare(coming: Datastore) -> None:
        _settle(Datastore.open(folder))  # what a killed edit may have left
        prepare_ngrams(coming, reporter)

    try:
        return write_tombstones(folder, choice, dry_run=dry_run, prepare=prepare, reporter=reporter)
    finally:
        if not dry_run:
            _tidy(folder)


def compact(store: AnyStore, *, reporter: Reporter = QUIET) -> Datastore:
    """Take forgotten documents off the disk: their keys, tokens and names, and all that indexes and tables hold.

    Indexes are not trained again: their records are taken out, and distances stay what they were.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        reporter: Whom to tell of the progress.

    Returns:
        The store, open.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "smaller")
        >>> gone = nearlm.forget(store, source="*1.txt")
        >>> len(store) - len(nearlm.compact(store)) == gone.records
        True
    """

    def prepare(old: Datastore, coming: Datastore) -> None:
        assert old.forgotten is not None
        for name in old.indexes if len(coming) else ():
            prepare_without(old, coming, name, old.forgotten.record_mask, reporter)
        prepare_infinigram(coming, reporter)
        prepare_ngrams(coming, reporter)
        if old.indexes or old.gates or old.mixtures:
            reporter.say("tuned settings, gates and mixtures are kept: they were learned with the forgotten documents")

    return compact_store(store, prepare, _clean, reporter)


def _tidy(folder: Path) -> None:
    """Make what was prepared for a store as it is now the valid one; another edit that is running does that itself."""
    with contextlib.suppress(StoreError, OSError), files.lock(folder):
        _settle(Datastore.open(folder))


def _settle(store: Datastore) -> None:
    """Make what was prepared the valid one, and remove what it replaces."""
    settle(store)
    for name in store.indexes:
        settle_index(store, name)
    settle_infinigram(store)
    settle_ngrams(store)


def _clean(store: Datastore) -> None:
    """Remove all that may hold something of documents that are gone."""
    layout = store.layout
    for folder in sorted(layout.folder.glob("index/*/")):
        place = layout.index(folder.name)
        if place.description.exists():
            drop_kept(place)
            settle_index(store, folder.name)
        else:  # an index that was never finished
            files.remove(folder)
    for tables in (layout.suffixes, layout.ngrams):
        if not tables.description.exists():
            files.remove(tables.folder)
    settle_infinigram(store)
    settle_ngrams(store)
    _drop_example(store)


def _drop_example(store: Datastore) -> None:
    """Remove the text that `fit` showed of a memory: it may recite what is gone."""
    path = store.layout.fit.description
    if path.exists():
        said = files.read_stamped(path)
        if isinstance(said.get("fit"), dict) and said["fit"].get("continuation") is not None:
            files.write_stamped(path, {**said, "fit": {**said["fit"], "continuation": None}})
