"""Random pruning: a seeded share of the records stays."""

import numpy as np

from nearlm.shrink.options import PruneOptions
from nearlm.shrink.selection import Selection, target
from nearlm.store import Derivation


def select(work: Derivation, options: PruneOptions) -> Selection:
    """Choose the records that stay; all others are dropped."""
    records = len(work.parent)
    rng = np.random.default_rng(options.seed or 0)
    chosen = rng.choice(records, target(options.keep or 1.0, records), replace=False)
    return Selection.of_survivors(np.sort(chosen), records, {})
