"""Random pruning: a seeded share of the records stays."""

from dataclasses import dataclass

import numpy as np

from nearlm.shrink.selection import Selection, Work, check_keep, target
from nearlm.store import Datastore


@dataclass(frozen=True)
class RandomOptions:
    """Which share stays."""

    keep: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_keep(self.keep)

    def ram(self, store: Datastore) -> float:
        """Return what it takes beside the records' ids."""
        return 0.0


def select(work: Work, options: RandomOptions) -> Selection:
    """Choose the records that stay; all others are dropped."""
    records = len(work.store)
    chosen = np.random.default_rng(options.seed).choice(records, target(options.keep, records), replace=False)
    return Selection.of_survivors(np.sort(chosen), records, {})
