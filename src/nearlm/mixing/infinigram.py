"""The ∞-gram: the longest suffix of a context that occurs in a store's text, and all that follows it there.

Positions of the text are kept in the order of the contexts that end there, compared from their last token backwards
(`suffix_array`), and beside them the token that follows each. The occurrences of any suffix are therefore consecutive
rows, which one binary search finds for each context: nothing is kept from one context to the next. Only positions that
are followed by a token of the same document are there, and no suffix reaches into another document.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import (
    Array,
    ArrayFile,
    FileInfo,
    Ids,
    Int32s,
    Ints,
    StoreError,
    blocks,
    check_before_use,
    check_files,
    check_names,
    check_that,
)
from nearlm.mixing.suffix_array import MAX_LENGTH, Depths
from nearlm.store import Datastore, StoreState, SuffixFiles, check_ids, check_places
from nearlm.store.prepared import read_current_if_there

_BLOCK = 1 << 20
_FEW = 256  # contexts for which threads are not worth starting


class Matches(NamedTuple):
    """The longest suffix of each context that occurs in a text, and where."""

    length: Int32s  # [n] its tokens; 0 if not even the last token occurs, and then begin and end are 0
    begin: Ints  # [n] its occurrences are the rows begin:end of `following`
    end: Ints


@dataclass(frozen=True)
class SuffixInfo:
    """What `suffixes.json` says of the arrays: of which state of the store, their type, lengths and files.

    Older versions had no folder of data, and did not say how to tell a store that was only appended to since.
    """

    manifest: str
    tokens: int
    rows: int
    vocabulary: int
    dtype: str
    files: dict[str, FileInfo]
    data: str = ""
    state: StoreState | None = None


class InfiniGram:
    """The suffix array of a store's text, open for looking up."""

    def __init__(self, text: Int32s, arrays: dict[str, Array]):
        self.tokens = text
        self.order: Ids = arrays["order"]  # [rows] positions of the text
        self.depths: Depths = arrays["depths"]  # [rows] tokens of its document before each, at most MAX_LENGTH - 1
        self.following: Int32s = arrays["following"]  # [rows] the token after each
        self.starts: Ints = arrays["starts"]  # [vocabulary + 1] the first row of the contexts that end with a token
        self.bytes = sum(array.nbytes for array in arrays.values())

    @classmethod
    def open(cls, store: Datastore) -> "InfiniGram":
        """Open a store's suffix array, also one from before the last appends; refuse that of another text."""
        info = read_suffix_info(store)
        if info is None:
            raise StoreError(f"{store.path} has no suffix array; nearlm gate or build_infinigram() makes it")
        if not store.continues(info.manifest, info.state):
            raise StoreError(_of_another_state(store, info))
        try:
            return cls._open(store, info)
        except (StoreError, OSError):
            if read_suffix_info(store) == info:
                raise
        return cls.open(store)  # a newer one has taken its place meanwhile

    @classmethod
    def _open(cls, store: Datastore, info: SuffixInfo) -> "InfiniGram":
        arrays = _arrays(store, info)
        for array in arrays.values():
            array.check()
        opened = {name: array.open() for name, array in arrays.items()}
        made = cls(opened["tokens"] if "tokens" in opened else first_segment(store), opened)
        folder = store.layout.suffixes.folder
        check = partial(made.check_contents, store, folder / info.data)
        check_before_use(folder, info.files, suffix_remedy(store), check)
        return made if store.forgotten is None else made.without(store.forgotten.positions)

    def without(self, positions: npt.NDArray[np.bool_]) -> "InfiniGram":
        """Return the suffix array without the rows of some positions, in memory."""
        kept = ~positions[self.order]
        arrays = {name: getattr(self, name)[kept] for name in ("order", "depths", "following")}
        arrays["starts"] = np.concatenate(([0], np.cumsum(kept)))[self.starts]
        for array in arrays.values():
            array.flags.writeable = False  # as mapped files are: one type for the kernels
        return InfiniGram(self.tokens, arrays)

    def check_contents(self, store: Datastore, folder: Path) -> None:
        """Refuse arrays that lead outside each other, or that are not of this text."""
        check_places(self.starts, folder / "starts.npy", len(self.order), "where the rows of tokens begin")
        check_ids(self.order, folder / "order.npy", 0, len(self.tokens) - 1, "positions that a token follows")
        for rows in blocks(len(self.tokens), _BLOCK):
            same = np.array_equal(self.tokens[rows], store.tokens[rows])
            check_that(same, folder / "tokens.npy", "the store's tokens")
        for rows in blocks(len(self.order), _BLOCK):
            inside = (self.order[rows] >= self.depths[rows]).all()
            check_that(inside, folder / "depths.npy", "how many tokens come before each")
            same = np.array_equal(self.following[rows], self.tokens[self.order[rows].astype(np.int64) + 1])
            check_that(same, folder / "following.npy", "the tokens that follow")

    def look_up(self, tokens: Int32s, begins: Ints, ends: Ints) -> Matches:
        """Find the longest suffix of each of the contexts tokens[begins[i] : ends[i]], of any text, which may be empty.

        Of a suffix longer than `MAX_LENGTH` tokens, only the last `MAX_LENGTH` count.
        """
        text = np.ascontiguousarray(tokens, np.int32)
        first = np.ascontiguousarray(begins, np.int64)
        last = np.ascontiguousarray(ends, np.int64)
        _check_contexts(text, first, last)
        length = np.zeros(len(first), np.int32)
        begin = np.zeros(len(first), np.int64)
        end = np.zeros(len(first), np.int64)
        kernel = _look_up_few_kernel if len(first) <= _FEW else _look_up_kernel
        kernel(text, first, last, self.tokens, self.depths, self.order, self.starts, length, begin, end)
        return Matches(length, begin, end)


def verify_infinigram(store: Datastore) -> None:
    """Read every byte of the suffix array and refuse the first file that is not as it was written."""
    info = read_suffix_info(store)
    if info is not None:
        check_files(store.layout.suffixes.folder, info.files, suffix_remedy(store), every_byte=True)


def _check_contexts(tokens: Int32s, begins: Ints, ends: Ints) -> None:
    """Refuse contexts that lead outside their text: a mistake of the caller."""
    if begins.shape != ends.shape or tokens.ndim != 1 or begins.ndim != 1:
        raise ValueError(f"contexts begin at {begins.shape} and end at {ends.shape} places, expected [n] of both")
    if len(begins) and not (begins.min() >= 0 and ends.max() <= len(tokens) and (begins <= ends).all()):
        raise ValueError(f"contexts lead outside their text of {len(tokens)} tokens, or end before they begin")


def suffix_remedy(store: Datastore) -> str:
    """Say what to do with damaged files."""
    return f"remove {store.layout.suffixes.folder} and make it again"


def _of_another_state(store: Datastore, info: SuffixInfo) -> str:
    """Say why a suffix array is not of a store."""
    if info.state and info.state.segments > len(store.tokens.shards):
        return f"{store.path} was appended to since it was opened, and so was its suffix array; open it again"
    return f"the suffix array is of an earlier state of {store.path}; bring it up to date with build_infinigram()"


def read_suffix_info(store: Datastore) -> SuffixInfo | None:
    """Read what is known of the suffix array; None if there is none."""
    place = store.layout.suffixes
    info = read_current_if_there(SuffixInfo, place, store)
    if info is not None:
        sound = info.dtype in ("int32", "int64") and 0 <= info.rows <= info.tokens and info.vocabulary >= 0
        check_that(sound, place.description, "lengths that fit together")
        check_names(place.description, info.files, [place.name_of(array) for array in all_arrays(place, info).values()])
    return info


def all_arrays(place: SuffixFiles, info: SuffixInfo) -> dict[str, ArrayFile]:
    """Return the arrays that there may be."""
    return place.arrays(info.data, info.tokens, info.rows, info.vocabulary, info.dtype)


def _arrays(store: Datastore, info: SuffixInfo) -> dict[str, ArrayFile]:
    """Return the arrays that there must be."""
    place = store.layout.suffixes
    arrays = all_arrays(place, info)
    segments = info.state.segments if info.state else len(store.tokens.shards)
    if segments == 1:
        del arrays["tokens"]
    there = sum(len(part) for part in store.tokens.shards[:segments])
    check_that(info.tokens == there, place.description, "lengths that fit together")
    check_that({place.name_of(array) for array in arrays.values()} == info.files.keys(), place.description, "all files")
    return arrays


def first_segment(store: Datastore) -> Int32s:
    """Return the text of a store of one segment, or of its first."""
    text: Int32s = store.tokens.shards[0].view()
    text.flags.writeable = False  # as mapped files are: one type for the kernels
    return text


@numba.njit(cache=True, nogil=True)
def _compare(context, last, most, tokens, place, depth, alike):  # type: ignore[no-untyped-def]
    """Compare the context that ends with context[last] with the text's that ends at `place`, backwards.

    Return how many tokens are alike, at most `most`, of which `alike` are known, and whether the text's is less.
    """
    there = min(np.int64(depth) + 1, most)
    while alike < there and tokens[place - alike] == context[last - alike]:
        alike += 1
    if alike >= most:
        return alike, False
    return alike, alike >= there or tokens[place - alike] < context[last - alike]


@numba.njit(cache=True, nogil=True)
def match(context, first, last, tokens, depths, order, starts):  # type: ignore[no-untyped-def]
    """Return length, first row and end of the longest suffix of context[first : last + 1] that occurs.

    A binary search for the context itself, whose neighbours are the most alike; rows between two are alike in at least
    what both have in common with the context. On each side it keeps the row where what is alike last grew, `inside`,
    and the row before that, `outside`: the occurrences end between them.
    """
    token = np.int64(context[last]) if last >= first else np.int64(-1)
    if token < 0 or token >= len(starts) - 1 or starts[token] == starts[token + 1]:
        return 0, 0, 0
    most = min(last - first + 1, MAX_LENGTH)
    low = low_inside = low_outside = starts[token] - 1  # less than the context
    high = high_inside = high_outside = starts[token + 1]  # not less
    low_alike = low_before = high_alike = high_before = np.int64(1)
    while high - low > 1:
        row = (low + high) // 2
        alike, less = _compare(context, last, most, tokens, order[row], depths[row], min(low_alike, high_alike))
        if less:
            if alike > low_alike:
                low_inside, low_outside, low_before = row, low, low_alike
            low, low_alike = row, alike
        else:
            if alike > high_alike:
                high_inside, high_outside, high_before = row, high, high_alike
            high, high_alike = row, alike
    length = max(low_alike, high_alike)
    if length == 1:
        return 1, starts[token], starts[token + 1]
    begin = end = high
    if low_alike == length:
        begin = _edge(context, last, length, tokens, depths, order, low_inside, low_outside, low_before)
    if high_alike == length:
        end = _edge(context, last, length, tokens, depths, order, high_inside, high_outside, high_before) + 1
    return length, begin, end


@numba.njit(cache=True, nogil=True)
def _edge(context, last, length, tokens, depths, order, inside, outside, alike):  # type: ignore[no-untyped-def]
    """Return the row furthest from `inside` towards `outside` that is alike in `length` tokens; all are in `alike`."""
    while abs(inside - outside) > 1:
        row = (inside + outside) // 2
        found, _ = _compare(context, last, length, tokens, order[row], depths[row], alike)
        if found >= length:
            inside = row
        else:
            outside, alike = row, found
    return inside


@numba.njit(cache=True, nogil=True)
def _look_up_few_kernel(context, firsts, ends, tokens, depths, order, starts, length, begin, end):  # type: ignore[no-untyped-def]
    for i in range(len(firsts)):
        length[i], begin[i], end[i] = match(context, firsts[i], ends[i] - 1, tokens, depths, order, starts)


@numba.njit(cache=True, parallel=True, nogil=True)
def _look_up_kernel(context, firsts, ends, tokens, depths, order, starts, length, begin, end):  # type: ignore[no-untyped-def]
    for i in numba.prange(len(firsts)):
        length[i], begin[i], end[i] = match(context, firsts[i], ends[i] - 1, tokens, depths, order, starts)
