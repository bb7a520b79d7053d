"""Options of pruning: the method, and what each method takes."""

from dataclasses import dataclass, fields
from typing import Any

from nearlm.base import Json, OptionError, check_at_least
from nearlm.search import PAPER_K
from nearlm.store import DEFAULT

MOST_NEIGHBORS = 101  # a record and the paper's 100 neighbours
TAKES: dict[str, dict[str, Any]] = {  # the options of each method, with their defaults
    "random": {"keep": None, "seed": 0},
    "kmeans": {"ratio": None, "keep": None, "top_tokens": 5000, "seed": 0},
    "merge": {"neighbors": None, "keep": None, "seed": 0, "index": DEFAULT},
    "rank": {"keep": None, "k": PAPER_K, "count_self": False, "index": DEFAULT},
}


@dataclass(frozen=True)
class PruneOptions:
    """Which records stay; a method refuses options that have no effect on it."""

    method: str
    """random, kmeans, merge or rank."""
    keep: float | None = None
    """Share of the records that stay."""
    neighbors: int | None = None
    """merge: neighbours to look at, the record itself included."""
    ratio: float | None = None
    """kmeans: records per cluster. [default: 20]"""
    top_tokens: int | None = None
    """kmeans: cluster the N most frequent targets. [default: 5000]"""
    k: int | None = None
    """rank: neighbours. [default: 1024]"""
    count_self: bool = False
    """rank: count a record as its own neighbour."""
    seed: int | None = None
    """Seed of random choices. [default: 0]"""
    index: str | None = None
    """merge, rank: which index. [default: default]"""

    def __post_init__(self) -> None:
        if self.method not in TAKES:
            raise OptionError(f"`method` is {self.method!r}, expected one of {', '.join(TAKES)}")
        takes = TAKES[self.method]
        for name in (field.name for field in fields(self) if getattr(self, field.name) not in (None, False)):
            if name != "method" and name not in takes:
                known = ", ".join(f"`{each}`" for each in takes)
                raise OptionError(f"`{name}` has no effect with `method={self.method!r}`; it takes {known}")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise OptionError(f"`keep` is {self.keep}, expected a share of the records: more than 0, at most 1")
        if self.keep is None and self.method in ("random", "rank"):
            raise OptionError(
                f"`method={self.method!r}` needs `keep`, the share of the records that stay, e.g. `keep=0.6`"
            )
        if self.ratio is not None and self.keep is not None:
            raise OptionError("`method='kmeans'` takes `ratio` or `keep`, not both")
        if self.ratio is not None and not 1 <= self.ratio < float("inf"):
            raise OptionError(f"`ratio` is {self.ratio}, expected at least 1 record per cluster")
        check_at_least(1, top_tokens=self.top_tokens)
        check_at_least(0, seed=self.seed)
        if self.method == "merge" and (self.neighbors is None) == (self.keep is None):
            raise OptionError("`method='merge'` takes `neighbors` or `keep`, one of the two")
        if self.neighbors is not None and not 2 <= self.neighbors <= MOST_NEIGHBORS:
            raise OptionError(
                f"`neighbors` is {self.neighbors}, expected 2 to {MOST_NEIGHBORS} (the record itself is one)"
            )
        if self.k is not None and not 2 <= self.k < 1 << 63:
            raise OptionError(f"`k` is {self.k}, expected at least 2 (the record itself is one)")

    def to_json(self) -> Json:
        """Return the method and the options that it takes, as they are noted in a store."""
        given = {name: getattr(self, name) for name in TAKES[self.method]}
        known = {name: value for name, value in given.items() if value is not None}
        return {"method": self.method, **TAKES[self.method], **known}
