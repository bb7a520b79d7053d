"""What a pruning method decides: which records stay, and which of them stands for each of the parent's."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nearlm.base import ArrayFile, Ids, Int32s, Json
from nearlm.store import Datastore


class Centroids(NamedTuple):
    """Keys that replace the parent's: a file of them, and the row of each record that stays, -1 for its own key."""

    file: ArrayFile
    rows: Ids


@dataclass(frozen=True)
class Selection:
    """Records that stay (the parent's ids, ascending), and the new id that stands for each of the parent's records.

    `stands` is -1 for a record that is dropped. `result` is what the method reports.
    """

    kept: Ids
    stands: Int32s
    result: Json
    centroids: Centroids | None = None

    @classmethod
    def of_survivors(cls, kept: Ids, records: int, result: Json) -> "Selection":
        """Keep some records and drop all others."""
        return cls(kept, renumber(kept, records), result)

    @classmethod
    def of_leaders(cls, leaders: Ids, result: Json) -> "Selection":
        """Keep the records that lead themselves; each of the others is stood for by its leader."""
        kept = np.flatnonzero(leaders == np.arange(len(leaders)))
        return cls(kept, renumber(kept, len(leaders))[leaders], result)

    def weights(self, store: Datastore) -> Int32s:
        """Add up the parent's weights over what each record stands for."""
        stays = self.stands >= 0
        added = np.bincount(self.stands[stays], store.weights[:][stays], minlength=len(self.kept))
        return np.rint(added).astype(np.int32)


def renumber(kept: Ids, records: int) -> Int32s:
    """Return the new id of every record, -1 for those that are dropped."""
    numbers = np.full(records, -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    return numbers


def target(keep: float, records: int) -> int:
    """Return how many records a share is; at least one stays."""
    return max(1, math.floor(keep * records + 0.5))
