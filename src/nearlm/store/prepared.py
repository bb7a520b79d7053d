"""Descriptions of what is prepared for the next state of a store, and take effect with its manifest.

An index, a suffix array or n-gram tables for a manifest that is yet to be written are described by `next.json`, beside
the description that is in use. The rename of the manifest makes it the valid one: whoever opens the store has the old
manifest with all that belongs to it, or the new one with all that belongs to that.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from nearlm.base import StoreError, files, read_record, write_record
from nearlm.store.datastore import Datastore
from nearlm.store.layout import Layout

Record = TypeVar("Record")


class Described(Protocol):
    """Files with a description, and a place for that of the next state."""

    description: Path
    prepared: Path


def current_description(place: Described, store: Datastore) -> Path:
    """Return where something is described for this state of a store: what was prepared for it, if anything was."""
    if place.prepared.exists():
        with contextlib.suppress(StoreError, FileNotFoundError):  # it may become the description just now
            if files.read_stamped(place.prepared).get("manifest") in (store.checksum, store.held):
                return place.prepared
    return place.description


def read_current(kind: type[Record], place: Described, store: Datastore) -> Record:
    """Read what is described for this state of a store."""
    path = current_description(place, store)
    try:
        return read_record(kind, path)
    except FileNotFoundError:
        if path == place.description:
            raise
    return read_record(kind, place.description)


def read_current_if_there(kind: type[Record], place: Described, store: Datastore) -> Record | None:
    """Read what is described for this state of a store, None if nothing is."""
    there = current_description(place, store).exists() or place.description.exists()
    return read_current(kind, place, store) if there else None


def prepare(place: Described, record: object) -> None:
    """Describe what will be used with the next state of a store."""
    write_record(place.prepared, record)


def is_settled(store: Datastore) -> bool:
    """Tell whether nothing that was prepared for this state still waits to become the description."""
    return all(current_description(place, store) != place.prepared for place in _places(store.layout))


def settle(store: Datastore) -> None:
    """Make the descriptions of what was prepared for this state the valid ones; those for any other state go."""
    for place in _places(store.layout):
        if current_description(place, store) == place.prepared:
            files.replace(place.prepared, place.description)
        files.remove(place.prepared)


def _places(layout: Layout) -> Iterator[Described]:
    for folder in sorted(layout.folder.glob("index/*/")):
        yield layout.index(folder.name)
    yield layout.suffixes
    yield layout.ngrams
