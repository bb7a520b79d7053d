"""How often an n-gram occurs in a store's corpus and how many tokens follow it, n = 1 to 4: exact tables on disk.

The tables are a trie in flat arrays. The 1-grams are the token ids themselves; an n-gram of n > 1 is a place in
`tokens-n`, where the children of one (n-1)-gram stand together, sorted by token: those of gram i are
`tokens-n[starts-(n-1)[i] : starts-(n-1)[i + 1]]`. Its frequency is `counts-n`, its fertility the number of its
children; that of 4-grams is kept as `fertility-4`. N-grams do not cross documents.

The build takes the corpus in groups of n-grams with like beginnings, small enough to be sorted in memory; the groups
follow each other in the order of the tables, so that each is appended to what is there and nothing needs merging.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import QUIET, ArrayFile, Int32s, Ints, Job, Json, Reporter, StoreError, check_that, duration, files
from nearlm.base.records import FileInfo, check_files, check_names, write_record
from nearlm.base.verification import check_before_use
from nearlm.mixing.ngram_groups import MAX_N, Group, count_group, plan_groups
from nearlm.store import Datastore, NGramFiles, StoreState, check_places
from nearlm.store.prepared import read_current_if_there

GROUP_POSITIONS = 1 << 22
_BLOCK = 1 << 22
_APPENDED = ("tokens-2", "counts-2", "starts-2", "tokens-3", "counts-3", "starts-3", "tokens-4", "counts-4")
_GROWING = (*_APPENDED, "fertility-4")
_TABLES = (*_GROWING, "counts-1", "starts-1")


class Counts(NamedTuple):
    """Frequency and fertility of the last n tokens of some contexts, [contexts, 4] each: column n - 1 is of n."""

    frequency: Ints
    fertility: Ints


@dataclass(frozen=True)
class NGramInfo:
    """What `ngrams.json` says of the tables: of which state of the store, their type, lengths and files."""

    manifest: str
    tokens: int
    dtype: str
    lengths: dict[str, int]
    files: dict[str, FileInfo]
    state: StoreState | None = None  # none in older files
    data: str = ""  # the folder of the tables
    forgotten: str = ""  # names the documents that are left out, though the store still has them


class NGrams:
    """The n-gram tables of a store, open for looking up."""

    def __init__(self, tables: dict[str, npt.NDArray[Any]]):
        self.tables = tables

    @classmethod
    def open(cls, store: Datastore) -> "NGrams":
        """Open a store's tables, also those from before the last appends; refuse those of another text."""
        place = store.layout.ngrams
        info = _read_info(store)
        if info is None:
            raise StoreError(f"{store.path} has no n-gram tables; nearlm gate, or Gate.train(), makes them")
        if not (store.continues(info.manifest, info.state) and info.forgotten == _forgotten(store)):
            raise StoreError(
                f"the n-gram tables are of an earlier state of {store.path}; "
                "bring them up to date with nearlm gate, or Gate.train()"
            )
        tables = {
            name: place.table(name, info.dtype, length, info.data) for name, length in _lengths(info, place).items()
        }
        for table in tables.values():
            table.check()
        opened = cls({name: table.open() for name, table in tables.items()})
        check_before_use(place.folder, info.files, _remedy(store), lambda: opened.check_places(place, info.data))
        return opened

    def check_places(self, place: NGramFiles, data: str = "") -> None:
        """Refuse tables that lead outside each other."""
        for n in range(1, MAX_N):
            path = place.folder / data / f"starts-{n}.npy"
            check_places(self.tables[f"starts-{n}"], path, len(self.tables[f"tokens-{n + 1}"]), "where n-grams begin")

    def look_up(self, contexts: Int32s) -> Counts:
        """Count the last n tokens, n = 1 to 4, of contexts [m, 4], the latest last; -1 is before the beginning."""
        frequency = np.zeros(contexts.shape, np.int64)
        fertility = np.zeros(contexts.shape, np.int64)
        counts, starts, tokens = (
            tuple(self.tables[f"{kind}-{n}"] for n in lengths)
            for kind, lengths in (("counts", (1, 2, 3, 4)), ("starts", (1, 2, 3)), ("tokens", (2, 3, 4)))
        )
        known = np.ascontiguousarray(contexts, np.int32)
        _look_up_kernel(known, counts, starts, tokens, self.tables["fertility-4"], frequency, fertility)
        return Counts(frequency, fertility)

    @property
    def bytes(self) -> int:
        """The size of all tables."""
        return sum(table.nbytes for table in self.tables.values())


def build_ngrams(store: Datastore, reporter: Reporter = QUIET) -> NGrams:
    """Count the n-grams of a store's corpus, or find that it has been done; resumes after a kill."""
    place = store.layout.ngrams
    place.folder.mkdir(exist_ok=True)
    with files.lock(place.folder, wait=reporter.say):
        counting = _Counting(store, reporter)
        with contextlib.suppress(StoreError):
            tables = NGrams.open(store)
            info = _read_info(store)
            if info and info.tokens == len(store.tokens):
                counting.job.close()  # a kill may have left it
                return tables
        counting.run()
    return NGrams.open(store)


def prepare_ngrams(coming: Datastore, reporter: Reporter = QUIET) -> None:
    """Count the n-grams of a store as it will be, if it has tables; they take effect with its manifest."""
    place = coming.layout.ngrams
    if place.description.exists():
        with files.lock(place.folder, wait=reporter.say):
            _Counting(coming, reporter, f"data-{coming.checksum[:12]}").run()


def settle_ngrams(store: Datastore) -> None:
    """Remove the tables that are not used any more."""
    info = _read_info(store)
    for path in store.layout.ngrams.others(info.data) if info else ():
        files.remove(path)


def verify_ngrams(store: Datastore) -> None:
    """Read every byte of the tables and refuse the first that is not as it was written."""
    place = store.layout.ngrams
    info = _read_info(store)
    if info is not None:
        check_files(place.folder, info.files, _remedy(store), every_byte=True)


def _lengths(info: NGramInfo, place: NGramFiles) -> dict[str, int]:
    """Return the lengths of the tables; refuse those that do not fit together."""
    lengths = info.lengths
    grams = {n: lengths.get(f"counts-{n}") for n in range(1, MAX_N + 1)}
    expected = {f"counts-{n}": count for n, count in grams.items()}
    expected |= {f"tokens-{n}": count for n, count in grams.items() if n > 1}
    expected |= {f"starts-{n}": (count or 0) + 1 for n, count in grams.items() if n < MAX_N}
    expected[f"fertility-{MAX_N}"] = grams[MAX_N]
    check_that(lengths == expected and info.dtype in ("int32", "int64"), place.description, "lengths that fit together")
    return lengths


def _remedy(store: Datastore) -> str:
    return f"remove {store.layout.ngrams.folder} and train the gate again"


def _read_info(store: Datastore) -> NGramInfo | None:
    """Read what is known of the tables; None if there are none."""
    place = store.layout.ngrams
    info = read_current_if_there(NGramInfo, place, store)
    if info is not None:
        check_names(place.description, {*info.lengths, *_TABLES}, info.lengths.keys() & {*_TABLES})
        tables = {f"{info.data}/{name}.npy".lstrip("/") for name in _TABLES}
        check_names(place.description, info.files, tables)
        check_that(tables == info.files.keys(), place.description, "the checksums of all tables")
    return info


def _forgotten(store: Datastore) -> str:
    return store.manifest.forgotten.file if store.manifest.forgotten else ""


class _Counting:
    """N-gram tables under construction; those for the next state of a store lie in a folder of their own."""

    def __init__(self, store: Datastore, reporter: Reporter, data: str = ""):
        self.store = store
        self.reporter = reporter
        self.place = store.layout.ngrams
        self.data = data
        self.job = Job(self.place.folder / data, "ngrams")
        self.gone = None if store.forgotten is None else store.forgotten.positions
        self.bounds = store.document_bounds
        self.dtype = np.dtype("int32" if len(store.tokens) < 2**31 else "int64")

    def run(self) -> None:
        """Count 1-grams, then group by group the longer ones, and write `ngrams.json` last."""
        started = time.monotonic()
        counts = self._count_tokens()
        self.vocabulary = len(counts)
        groups = plan_groups(counts, GROUP_POSITIONS, self._followers)
        state = self._begin([[g.first, g.end, g.low, g.high] for g in groups])
        children = np.zeros(self.vocabulary, np.int64)  # of each 1-gram, in the groups that are done
        if state["groups"]:
            counted = self._children_file(state["groups"])
            counted.check()
            children += counted.open()
        done = sum(group.positions for group in groups[: state["groups"]])
        with self.reporter.bar("counting n-grams", len(self.store.tokens), "tokens", done) as advance:
            for number in range(state["groups"], len(groups)):
                state = self._add(groups[number], number, state, children)
                advance(groups[number].positions)
        self._finish(counts, children, state)
        self.reporter.say(f"counted n-grams in {duration(time.monotonic() - started)}")

    def _blocks(self) -> Iterator[tuple[int, Int32s]]:
        """Yield the corpus piece by piece, each with its first position and four tokens of the next."""
        for start in range(0, len(self.store.tokens), _BLOCK):
            yield start, self.store.tokens[start : start + _BLOCK + MAX_N]

    def _count_tokens(self) -> Ints:
        counts = np.zeros(1, np.int64)
        for start, tokens in self._blocks():
            here = tokens[:_BLOCK]
            if self.gone is not None:
                here = here[~self.gone[start : start + len(here)]]
            found = np.bincount(here, minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
        return counts

    def _followers(self, token: int) -> Ints:
        counts = np.zeros(self.vocabulary + 1, np.int64)
        for grams, length in self._grams(Group(token, token + 1)):
            counts += np.bincount(np.where(length > 1, grams[:, 1] + 1, 0), minlength=len(counts))
        return counts

    def _grams(self, group: Group) -> Iterator[tuple[Int32s, Ints]]:
        """Yield the 5-grams of a group, [n, 5], and how many of their tokens are still in the document."""
        for start, tokens in self._blocks():
            here = tokens[:_BLOCK]
            places = np.flatnonzero((here >= group.first) & (here < group.end))
            if self.gone is not None:
                places = places[~self.gone[places + start]]
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
        state = self.job.read("fill", dict[str, int]) if self.job.resumes(plan) else {}
        if state:
            sound = state.keys() == {"groups", *_GROWING} and min(state.values()) >= 0
            check_that(sound and state["groups"] <= len(groups), self.job.folder, "how far n-grams were counted")
        grown = {name: self._table(name, state.get(name, 0)) for name in _GROWING}
        if state and all(file.path.exists() and file.path.stat().st_size >= file.bytes for file in grown.values()):
            for file in grown.values():
                files.truncate(file.path, file.bytes)
            self.reporter.say("resuming the unfinished n-gram tables")
            return state
        if not self.data:
            files.remove(self.place.description)
        for path in (self.place.folder / self.data).glob("*.npy"):
            files.remove(path)
        self.job.begin(plan)
        for file in grown.values():
            files.write_bytes(file.path, bytes(files.NPY_HEADER))
        state = {"groups": 0, **dict.fromkeys(_GROWING, 0)}
        self.job.note("fill", state)
        return state

    def _table(self, name: str, length: int) -> ArrayFile:
        return self.place.table(name, self.dtype.name, length, self.data)

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
            with files.opened(self._table(name, 0).path, "ab") as file:
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
            with files.opened(table.path, "r+b") as file:
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
        listed = {path.relative_to(self.place.folder).as_posix(): FileInfo.of(path) for path in paths}
        what = (len(self.store.tokens), self.dtype.name, lengths, listed, self.store.state)
        info = NGramInfo(self.store.checksum, *what, self.data, _forgotten(self.store))
        write_record(self.place.prepared if self.data else self.place.description, info)
        self.job.close()


@numba.njit(cache=True, inline="always")
def _child(tokens, low, high, token):  # type: ignore[no-untyped-def]
    """Return where `token` stands among the sorted tokens[low:high], -1 if it is not there."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low if low < end and tokens[low] == token else -1


@numba.njit(cache=True, parallel=True, nogil=True)
def _look_up_kernel(contexts, counts, starts, tokens, fertility_4, frequency, fertility):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(contexts)):
        for n in range(1, MAX_N + 1):
            first = MAX_N - n
            at = np.int64(contexts[i, first])
            if at < 0 or at >= len(counts[0]):
                break
            for m in range(n - 1):  # from an (m+1)-gram to its child
                if at >= 0:
                    at = _child(tokens[m], starts[m][at], starts[m][at + 1], contexts[i, first + m + 1])
            if at >= 0:
                frequency[i, n - 1] = counts[n - 1][at]
                fertility[i, n - 1] = fertility_4[at] if n == MAX_N else starts[n - 1][at + 1] - starts[n - 1][at]
