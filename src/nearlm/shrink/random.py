"""Random pruning: a seeded share of the records stays."""

import numpy as np

from nearlm.shrink.options import PruneOptions
from nearlm.shrink.selection import Selection, Work, target


def select(work: Work, options: PruneOptions) -> Selection:
    """Choose the records that stay; all others are dropped."""
    records = len(work.store)
    rng = np.random.default_rng(options.seed or 0)
    chosen = rng.choice(records, target(options.keep or 1.0, records), replace=False)
    return Selection.of_survivors(np.sort(chosen), records, {})
