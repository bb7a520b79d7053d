"""Counting the n-grams of a store's corpus into the tables that `ngrams` describes.

The corpus is taken in groups of n-grams with like beginnings, small enough to be sorted in memory; the groups follow
each other in the order of the tables, so that each is appended to what is there and nothing needs merging.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, FileInfo, Job, Json, Reporter, duration, files, write_record
from nearlm.store import Datastore

MAX_N = 4
_BLOCK = 1 << 22
_APPENDED = ("tokens-2", "counts-2", "starts-2", "tokens-3", "counts-3", "starts-3", "tokens-4", "counts-4")
_GROWING = (*_APPENDED, "fertility-4")

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class NGramInfo:
    """What `ngrams.json` says of the tables: of which state of the store, their type, lengths and files."""

    manifest: str
    tokens: int
    dtype: str
    lengths: dict[str, int]
    files: dict[str, FileInfo]


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


class Counting:
    """N-gram tables under construction."""

    def __init__(self, store: Datastore, group_positions: int, reporter: Reporter):
        self.store = store
        self.group_positions = group_positions
        self.reporter = reporter
        self.place = store.layout.ngrams
        self.job = Job(self.place.folder, "ngrams")
        self.bounds = store.document_bounds
        self.dtype = np.dtype("int32" if len(store.tokens) < 2**31 else "int64")

    def run(self) -> None:
        """Count 1-grams, then group by group the longer ones, and write `ngrams.json` last."""
        started = time.monotonic()
        counts = self._count_tokens()
        self.vocabulary = len(counts)
        groups = plan_groups(counts, self.group_positions, self._followers)
        state = self._begin([[g.first, g.end, g.low, g.high] for g in groups])
        children = np.zeros(self.vocabulary, np.int64)  # of each 1-gram, in the groups that are done
        if state["groups"]:
            children += self._children_file(state["groups"]).open()
        done = sum(group.positions for group in groups[: state["groups"]])
        with self.reporter.bar("counting n-grams", len(self.store.tokens), "tokens", done) as advance:
            for number in range(state["groups"], len(groups)):
                state = self._add(groups[number], number, state, children)
                advance(groups[number].positions)
        self._finish(counts, children, state)
        self.reporter.say(f"counted n-grams in {duration(time.monotonic() - started)}")

    def _blocks(self) -> Iterator[tuple[int, Tokens]]:
        """Yield the corpus piece by piece, each with its first position and four tokens of the next."""
        for start in range(0, len(self.store.tokens), _BLOCK):
            yield start, self.store.tokens[start : start + _BLOCK + MAX_N]

    def _count_tokens(self) -> Ints:
        counts = np.zeros(1, np.int64)
        for _, tokens in self._blocks():
            found = np.bincount(tokens[:_BLOCK], minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
        return counts

    def _followers(self, token: int) -> Ints:
        counts = np.zeros(self.vocabulary + 1, np.int64)
        for grams, length in self._grams(Group(token, token + 1)):
            counts += np.bincount(np.where(length > 1, grams[:, 1] + 1, 0), minlength=len(counts))
        return counts

    def _grams(self, group: Group) -> Iterator[tuple[Tokens, Ints]]:
        """Yield the 5-grams of a group, [n, 5], and how many of their tokens are still in the document."""
        for start, tokens in self._blocks():
            here = tokens[:_BLOCK]
            places = np.flatnonzero((here >= group.first) & (here < group.end))
            ends = self.bounds[np.searchsorted(self.bounds, places + start, side="right")]
            length = np.minimum(ends - places - start, MAX_N + 1)
            padded = np.concatenate([tokens, np.zeros(MAX_N, np.int32)])
            grams = padded[places[:, None] + np.arange(MAX_N + 1)]
            if group.low > -1 or group.high < 1 << 62:
                second = np.where(length > 1, grams[:, 1], -1)
                kept = (second >= group.low) & (second < group.high)
                grams = grams[kept]
                length = length[kept]
            yield grams, length

    def _begin(self, groups: list[list[int]]) -> Json:
        """Return how far the tables have come: what an earlier run noted, or nothing."""
        plan = {"manifest": self.store.checksum, "groups": groups}
        state = self.job.state("fill") if self.job.resumes(plan) else {}
        grown = {name: self._table(name, state.get(name, 0)) for name in _GROWING}
        if state and all(file.path.exists() and file.path.stat().st_size >= file.bytes for file in grown.values()):
            for file in grown.values():
                files.truncate(file.path, file.bytes)
            self.reporter.say("going on with the unfinished n-gram tables")
            return state
        files.remove(self.place.description)
        for path in self.place.folder.glob("*.npy"):
            files.remove(path)
        self.job.begin(plan)
        for file in grown.values():
            files.write_bytes(file.path, bytes(files.NPY_HEADER))
        state = {"groups": 0, **dict.fromkeys(_GROWING, 0)}
        self.job.note("fill", state)
        return state

    def _table(self, name: str, length: int) -> ArrayFile:
        return self.place.table(name, self.dtype.name, length)

    def _children_file(self, groups: int) -> ArrayFile:
        return ArrayFile(self.job.folder / f"children-{groups}.npy", np.dtype("int64"), (self.vocabulary,))

    def _add(self, group: Group, number: int, state: Json, children: Ints) -> Json:
        """Count one group and append it to the tables."""
        parts = list(self._grams(group))
        tables = count_group(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
        children += np.bincount(tables.pop("parents"), minlength=self.vocabulary)
        for n in (2, 3):
            starts = np.cumsum(tables[f"children-{n}"]) - tables.pop(f"children-{n}")
            tables[f"starts-{n}"] = starts + state[f"tokens-{n + 1}"]
        after = {"groups": number + 1}
        for name in _GROWING:
            with open(self._table(name, 0).path, "ab") as file:
                files.append(file, tables[name].astype(self.dtype).data)
                files.sync(file)
            after[name] = state[name] + len(tables[name])
        self._children_file(number + 1).write(children)
        self.job.note("fill", after)
        files.remove(self._children_file(number).path)
        return after

    def _finish(self, counts: Ints, children: Ints, state: Json) -> None:
        """Close the tables, note their checksums, and forget the job."""
        lengths = {name: state[name] + name.startswith("starts") for name in _GROWING}
        for name, length in lengths.items():
            table = self._table(name, length)
            with open(table.path, "r+b") as file:
                if name.startswith("starts"):  # where the children of the last one end
                    end = state[f"tokens-{int(name[-1]) + 1}"]
                    files.write_at(file, np.array([end], self.dtype).data, table.offset(length - 1))
                files.write_at(file, table.header, 0)
                files.sync(file)
        first = {"counts-1": counts, "starts-1": np.concatenate(([0], np.cumsum(children)))}
        for name, column in first.items():
            lengths[name] = len(column)
            self._table(name, len(column)).write(column)
        paths = [self._table(name, length).path for name, length in lengths.items()]
        listed = {path.name: FileInfo.of(path) for path in paths}
        tokens = len(self.store.tokens)
        info = NGramInfo(self.store.checksum, tokens, self.dtype.name, lengths, listed)
        write_record(self.place.description, info)
        self.job.close()


def count_group(grams: Tokens, length: Ints) -> dict[str, Ints]:
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
