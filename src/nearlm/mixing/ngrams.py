"""How often an n-gram occurs in a store's corpus and how many tokens follow it, n = 1 to 4: exact tables on disk.

The tables are a trie in flat arrays. The 1-grams are the token ids themselves; an n-gram of n > 1 is a place in
`tokens-n`, where the children of one (n-1)-gram stand together, sorted by token: those of gram i are
`tokens-n[starts-(n-1)[i] : starts-(n-1)[i + 1]]`. Its frequency is `counts-n`, its fertility the number of its
children; that of 4-grams is kept as `fertility-4`. N-grams do not cross documents.
"""

import contextlib
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from nearlm.base import QUIET, Reporter, StoreError, check_files, files, read_if_there
from nearlm.mixing.ngram_counting import MAX_N, Counting, Ints, NGramInfo, Tokens
from nearlm.store import Datastore

GROUP_POSITIONS = 1 << 22


class Counts(NamedTuple):
    """Frequency and fertility of the last n tokens of some contexts, [contexts, 4] each: column n - 1 is of n."""

    frequency: Ints
    fertility: Ints


class NGrams:
    """The n-gram tables of a store, open for looking up."""

    def __init__(self, tables: dict[str, npt.NDArray[Any]]):
        self.tables = tables

    @classmethod
    def open(cls, store: Datastore) -> "NGrams":
        """Open a store's tables; refuse those of an earlier state of it."""
        place = store.layout.ngrams
        info = read_if_there(NGramInfo, place.description)
        if info is None:
            raise StoreError(f"{store.path} has no n-gram tables; `nearlm adapt {store.path} --text …` makes them")
        if info.manifest != store.checksum:
            raise StoreError(
                f"the n-gram tables are of an earlier state of {store.path}; "
                f"bring them up to date with: nearlm adapt {store.path} --text …"
            )
        tables = {}
        for name, length in info.lengths.items():
            file = place.table(name, info.dtype, length)
            file.check()
            tables[name] = file.open()
        return cls(tables)

    def look_up(self, contexts: Tokens) -> Counts:
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


def last_tokens(tokens: Any, bounds: Ints, positions: Ints) -> Tokens:
    """Return the last four tokens before each position, [n, 4], the latest last; -1 before the document's beginning."""
    begin = bounds[np.searchsorted(bounds, positions, side="right") - 1]
    wanted = positions[:, None] + np.arange(-MAX_N, 0)
    inside = wanted >= begin[:, None]
    return np.where(inside, tokens[np.where(inside, wanted, 0)], -1).astype(np.int32)


def build_ngrams(store: Datastore, reporter: Reporter = QUIET) -> NGrams:
    """Count the n-grams of a store's corpus, or find that it has been done; resumes after a kill."""
    place = store.layout.ngrams
    place.folder.mkdir(exist_ok=True)
    with files.lock(place.folder):
        with contextlib.suppress(StoreError):
            return NGrams.open(store)
        Counting(store, GROUP_POSITIONS, reporter).run()
    return NGrams.open(store)


def verify_ngrams(store: Datastore) -> None:
    """Read every byte of the tables and refuse the first that is not as it was written."""
    place = store.layout.ngrams
    info = read_if_there(NGramInfo, place.description)
    if info is not None:
        check_files(place.folder, info.files, f"remove {place.folder} and adapt again", every_byte=True)


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
