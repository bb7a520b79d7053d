"""Groups of n-grams with like beginnings, small enough to be sorted in memory: finding them, and counting one."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nearlm.base import Int32s, Ints

MAX_N = 4


@dataclass(frozen=True)
class Group:
    """The n-grams whose first token is in [first, end), or, if that is one token, whose second is in [low, high)."""

    first: int
    end: int
    low: int = -1
    high: int = 1 << 62
    positions: int = 0


def plan_groups(counts: Ints, limit: int, followers: Callable[[int], Ints]) -> list[Group]:
    """Cut the first tokens into groups of at most `limit` positions; a token with more is cut by what follows it.

    `followers(token)` counts the tokens that follow one, shifted by one: its first entry counts where nothing follows.
    """
    groups: list[Group] = []
    for first, end, size in _runs(counts, limit):
        if size <= limit:
            groups.append(Group(first, end, positions=size))
        else:
            groups += [Group(first, end, low - 1, high - 1, part) for low, high, part in _runs(followers(first), limit)]
    return groups


def _runs(counts: Ints, limit: int) -> list[tuple[int, int, int]]:
    """Cut counts into runs (begin, end, sum) of at most `limit`, or one entry; runs of nothing are left out."""
    ends = np.concatenate(([0], np.cumsum(counts)))
    runs = []
    begin = 0
    while begin < len(counts):
        end = max(begin + 1, int(np.searchsorted(ends, ends[begin] + limit, side="right")) - 1)
        if ends[end] > ends[begin]:
            runs.append((begin, end, int(ends[end] - ends[begin])))
        begin = end
    return runs


def count_group(grams: Int32s, length: Ints) -> dict[str, Ints]:
    """Count the 2- to 4-grams that begin some 5-grams, [n, 5], of which `length` tokens are real, in sorted order.

    A gram's id is its place among those of its length here; (id, next token) sorts like the longer gram and fits in
    64 bits whatever the vocabulary. Returns the tables of this group and `parents`, the first token of each 2-gram.
    """
    tables: dict[str, Ints] = {}
    width = int(grams.max(initial=0)) + 1
    ids = grams[:, 0].astype(np.int64)
    for n in range(2, MAX_N + 2):
        longer = length >= n
        grams = grams[longer]
        length = length[longer]
        ids = ids[longer]
        chained, ids, counts = np.unique(ids * width + grams[:, n - 1], return_inverse=True, return_counts=True)
        parents = chained // width
        if n == 2:
            tables["parents"] = parents
        else:
            name = f"children-{n - 1}" if n <= MAX_N else f"fertility-{MAX_N}"
            tables[name] = np.bincount(parents, minlength=len(tables[f"tokens-{n - 1}"]))
        if n <= MAX_N:
            tables[f"tokens-{n}"] = chained % width
            tables[f"counts-{n}"] = counts
    return tables
