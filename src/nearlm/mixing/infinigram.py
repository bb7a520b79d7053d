"""The ∞-gram: the longest suffix of a context that occurs in a store's text, and all that follows it there.

Positions of the text are kept in the order of the contexts that end there, compared from their last token backwards
(`suffix_array`), and beside them the token that follows each. The occurrences of any suffix are therefore consecutive
rows, which one binary search finds for each context: nothing is kept from one context to the next. Only positions that
are followed by a token of the same document are there, and no suffix reaches into another document.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from nearlm.base import (
    QUIET,
    Array,
    ArrayFile,
    FileInfo,
    Ids,
    Int32s,
    Ints,
    Reporter,
    StoreError,
    available_ram,
    blocks,
    check_before_use,
    check_files,
    check_names,
    check_that,
    duration,
    files,
    read_if_there,
    size,
    write_record,
)
from nearlm.mixing.suffix_array import (
    MAX_LENGTH,
    Depths,
    context_depths,
    position_dtype,
    sort_contexts,
    sorting_bytes,
)
from nearlm.store import AnyStore, Datastore, SuffixFiles, check_ids, check_places

_BLOCK = 1 << 20
_LARGE = 1 << 30  # bytes of memory that are worth a word
_FEW = 256  # contexts for which threads are not worth starting


class Matches(NamedTuple):
    """The longest suffix of each context that occurs in a text, and where."""

    length: Int32s  # [n] its tokens; 0 if not even the last token occurs, and then begin and end are 0
    begin: Ints  # [n] its occurrences are the rows begin:end of `following`
    end: Ints


@dataclass(frozen=True)
class SuffixInfo:
    """What `suffixes.json` says of the arrays: of which state of the store, their type, lengths and files."""

    manifest: str
    tokens: int
    rows: int
    vocabulary: int
    dtype: str
    files: dict[str, FileInfo]


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
        """Open a store's suffix array; refuse that of an earlier state of it."""
        place = store.layout.suffixes
        info = _read_info(store)
        if info is None:
            raise StoreError(f"{store.path} has no suffix array; nearlm gate or build_infinigram() makes it")
        if info.manifest != store.checksum:
            raise StoreError(
                f"the suffix array is of an earlier state of {store.path}; bring it up to date with build_infinigram()"
            )
        arrays = _arrays(store, info)
        for array in arrays.values():
            array.check()
        opened = {name: array.open() for name, array in arrays.items()}
        made = cls(opened["tokens"] if "tokens" in opened else _only_segment(store), opened)
        check_before_use(place.folder, info.files, _remedy(store), lambda: made.check_contents(store))
        return made

    def check_contents(self, store: Datastore) -> None:
        """Refuse arrays that lead outside each other, or that are not of this text."""
        folder = store.layout.suffixes.folder
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


def build_infinigram(store: AnyStore, reporter: Reporter = QUIET) -> InfiniGram:
    """Make the suffix array of a store's text, or find that it has been done.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "instant", nearlm.BuildOptions(keys="none"))
        >>> infinigram = nearlm.build_infinigram(store)
        >>> knnlm = nearlm.KNNLM.load(store)
    """
    opened = Datastore.open(store) if isinstance(store, str | Path) else store
    place = opened.layout.suffixes
    place.folder.mkdir(exist_ok=True)
    with files.lock(place.folder, wait=reporter.say):
        with contextlib.suppress(StoreError):
            return InfiniGram.open(opened)
        started = time.monotonic()
        _clear(place)
        _make(opened, reporter)
        reporter.say(f"sorted {len(opened.tokens):,} tokens in {duration(time.monotonic() - started)}")
    return InfiniGram.open(opened)


def verify_infinigram(store: Datastore) -> None:
    """Read every byte of the suffix array and refuse the first file that is not as it was written."""
    info = _read_info(store)
    if info is not None:
        check_files(store.layout.suffixes.folder, info.files, _remedy(store), every_byte=True)


def _check_contexts(tokens: Int32s, begins: Ints, ends: Ints) -> None:
    """Refuse contexts that lead outside their text: a mistake of the caller."""
    if begins.shape != ends.shape or tokens.ndim != 1 or begins.ndim != 1:
        raise ValueError(f"contexts begin at {begins.shape} and end at {ends.shape} places, expected [n] of both")
    if len(begins) and not (begins.min() >= 0 and ends.max() <= len(tokens) and (begins <= ends).all()):
        raise ValueError(f"contexts lead outside their text of {len(tokens)} tokens, or end before they begin")


def _remedy(store: Datastore) -> str:
    return f"remove {store.layout.suffixes.folder} and make it again"


def _read_info(store: Datastore) -> SuffixInfo | None:
    """Read what is known of the suffix array; None if there is none."""
    place = store.layout.suffixes
    info = read_if_there(SuffixInfo, place.description)
    if info is not None:
        sound = info.dtype in ("int32", "int64") and 0 <= info.rows <= info.tokens and info.vocabulary >= 0
        check_that(sound, place.description, "lengths that fit together")
        check_names(place.description, info.files, [array.path.name for array in _all_arrays(place, info).values()])
    return info


def _all_arrays(place: SuffixFiles, info: SuffixInfo) -> dict[str, ArrayFile]:
    return place.arrays(info.tokens, info.rows, info.vocabulary, info.dtype)


def _arrays(store: Datastore, info: SuffixInfo) -> dict[str, ArrayFile]:
    """Return the arrays that there must be."""
    place = store.layout.suffixes
    arrays = _all_arrays(place, info)
    if len(store.tokens.shards) == 1:
        del arrays["tokens"]
    check_that(info.tokens == len(store.tokens), place.description, "lengths that fit together")
    check_that({array.path.name for array in arrays.values()} == info.files.keys(), place.description, "all files")
    return arrays


def _only_segment(store: Datastore) -> Int32s:
    """Return the text of a store of one segment."""
    text: Int32s = store.tokens.shards[0].view()
    text.flags.writeable = False  # as mapped files are: one type for the kernels
    return text


def _clear(place: SuffixFiles) -> None:
    """Remove an earlier suffix array, or what a kill has left of one; its description goes first."""
    files.remove(place.description)
    for path in (*place.folder.glob("*.npy"), *place.folder.glob("*.part")):
        files.remove(path)


def _make(store: Datastore, reporter: Reporter) -> None:
    """Sort the contexts of a store's text and write `suffixes.json` last."""
    place = store.layout.suffixes
    count = len(store.tokens)
    dtype = position_dtype(count)
    _check_memory(store, reporter)
    tokens = _whole_text(store)
    check_that(tokens.min(initial=0) >= 0, store.path, "tokens of a vocabulary")
    depths = context_depths(store.document_bounds)
    with reporter.bar("sorting contexts", int(np.count_nonzero(depths)), "tokens") as advance:
        order, starts = sort_contexts(tokens, depths, dtype, advance)
    info = SuffixInfo(store.checksum, count, len(order), len(starts) - 1, dtype.name, {})
    arrays = _all_arrays(place, info)
    arrays["order"].write(order)
    arrays["starts"].write(starts)
    _write_rows(arrays["following"], order, lambda places: tokens[places + 1])
    _write_rows(arrays["depths"], order, lambda places: depths[places])
    listed = FileInfo.by_name(array.path for array in arrays.values() if array.path.exists())
    write_record(place.description, replace(info, files=listed))


def _check_memory(store: Datastore, reporter: Reporter) -> None:
    """Say how much memory sorting takes if it is much; refuse what there is no room for."""
    count = len(store.tokens)
    needed = sorting_bytes(count)
    if needed >= _LARGE:
        reporter.say(f"sorting {count:,} tokens takes {size(needed)} of RAM")
    available = available_ram()
    if available is not None and needed > available:
        raise StoreError(
            f"sorting the {count:,} tokens of {store.path} takes {size(needed)} of RAM, and {size(available)} "
            "are free; end other programs, or use a larger machine"
        )


def _whole_text(store: Datastore) -> Int32s:
    """Return the text as one array, which is written if it lies in several files."""
    if len(store.tokens.shards) == 1:
        return _only_segment(store)
    whole = store.layout.suffixes.arrays(len(store.tokens), 0, 0, "int32")["tokens"]
    files.write_array(whole.path, whole.dtype, whole.shape, iter(store.tokens.shards))
    return whole.open()


def _write_rows(file: ArrayFile, order: Ids, of: Callable[[Ints], Array]) -> None:
    """Write something of each row's position, one block in memory at a time."""
    parts = (of(order[rows].astype(np.int64)) for rows in blocks(len(order), _BLOCK))
    files.write_array(file.path, file.dtype, file.shape, parts)


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
