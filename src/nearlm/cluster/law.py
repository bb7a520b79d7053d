"""The law of growth: what was measured of indexes of several sizes, and what follows for others.

All numbers are of two CPU cores; docs/scale.md and docs/results.md say how they were measured. To update the law,
replace the rows of `MEASURED`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """An `auto` index of some size: seconds to make it, if timed, and µs per query in batches of 1024 and alone.

    Keys and queries are in the index's space already; the transform of queries takes 1 to 2 µs in batches, 17 alone.
    """

    records: int
    seconds: float | None
    batch: float
    alone: float


MEASURED: tuple[Row, ...] = (
    Row(500_000, 2.2, 21.0, 79.5),
    Row(2_000_000, 17.2, 28.0, 117.7),
    Row(8_000_000, 61.2, 33.5, 127.1),
    Row(32_000_000, 289.8, 43.3, 135.9),
    Row(50_000_000, 527.9, 46.7, 149.0),
)
CPU_FLOPS = 441 * 2 * 106.2e6  # a second: SmolLM2-135M reads 441 tokens, each two operations for a weight of its body
SUFFIX_BYTES = 9  # of the ∞-gram on disk, for each token
SUFFIX_RAM = 18  # while it is made
SUFFIX_SECONDS = 20.4 / 100e6  # for each token
TOKEN_BYTES = 16  # of a record beside its key: value, origin, and the token itself


@dataclass(frozen=True)
class Law:
    """Straight lines through what was measured: seconds over records, and µs over their logarithm."""

    rows: tuple[Row, ...] = MEASURED

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest size that was measured."""
        sizes = [row.records for row in self.rows]
        return min(sizes), max(sizes)

    def index_seconds(self, records: int) -> float:
        """Say how long it takes to make an index on two cores."""
        timed = [(row.records, row.seconds) for row in self.rows if row.seconds is not None]
        if len(timed) == 1:
            return timed[0][1] * records / timed[0][0]
        slope, first = np.polyfit([one[0] for one in timed], [one[1] for one in timed], 1)
        return max(0.0, float(first)) + float(slope) * records

    def microseconds(self, records: int, *, alone: bool = False) -> float:
        """Say how long a query takes, in batches or one at a time: a constant, and so much for each doubling."""
        times = [row.alone if alone else row.batch for row in self.rows]
        sizes = [math.log2(row.records) for row in self.rows]
        slope = max(0.0, float(np.polyfit(sizes, times, 1)[0]))
        return max(min(times), float(np.mean(times)) + slope * (math.log2(records) - float(np.mean(sizes))))

    def is_measured(self, records: int) -> bool:
        """Tell whether a size lies within what was measured."""
        least, most = self.range
        return least <= records <= most


LAW = Law()
