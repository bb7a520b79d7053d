"""What a store was made from: opening its parent, and finding its records there."""

import numpy as np

from nearlm.base import Ints, OptionError, StoreError
from nearlm.store.datastore import Datastore


def open_parent(store: Datastore) -> Datastore:
    """Open the store that this one was made from, if it is still where it was and as it was."""
    parent = store.manifest.parent
    if parent is None:
        raise OptionError(f"{store.path} was built from text and has no parent; use `distances='store'`")
    path = (store.path / parent.path).resolve()
    if not path.exists():
        raise StoreError(f"the parent of {store.path} is no longer at {path}; put it back or use `distances='store'`")
    opened = Datastore.open(path)
    if opened.checksum != parent.checksum:
        raise StoreError(f"{path} has changed since {store.path} was made from it; make that one again")
    return opened


def parent_records(store: Datastore, parent: Datastore) -> Ints:
    """Return the id in the parent of every record: the one with the same origin, and, but for PCA, the same key."""
    if store.manifest.transforms[-1].options.get("method") == "kmeans":
        raise OptionError(
            f"the records of {store.path} are centroids, which its parent does not hold; use `distances='store'`"
        )
    ids = np.empty(len(store), np.int64)
    origin = parent.origin[:]
    for first, shard in store.origin.parts():
        ids[first : first + len(shard)] = np.searchsorted(origin, shard)
    return ids
