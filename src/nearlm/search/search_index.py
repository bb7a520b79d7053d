"""An index that is open: keys and queries in its space, and searches in it."""

from typing import Any

import faiss
import numpy as np

from nearlm.base import Floats, Reals, StoreError, check_ram
from nearlm.search.coarse import Coarse
from nearlm.search.filtering import Mask, search_around
from nearlm.search.kinds import IndexSpec
from nearlm.search.scan import Found, ListScan

_MANY = 1 << 26  # neighbours
_FOUND_BYTES = 24  # a distance and an id, and what is made of them


class SearchIndex:
    """An index that is open: what keys and queries go through, and a FAISS index or a scan of its lists."""

    def __init__(
        self,
        spec: IndexSpec,
        transform: Any,
        faiss_index: Any,
        scan: ListScan | None = None,
        coarse: Coarse | None = None,
    ):
        self.spec = spec
        self.transform = transform
        self.faiss = faiss_index
        self.scan = scan
        self.coarse = coarse  # the way to very many lists, for records that are added; a scan has it for queries
        self._left_out: Mask | None = None
        self.set_nprobe(spec.nprobe)

    @property
    def records(self) -> int:
        """How many records are in the index."""
        return len(self.scan.lists.ids) if self.scan else int(self.faiss.ntotal)

    def leave_out(self, records: Mask) -> None:
        """Never find some records again: of what remains, the nearest are found."""
        if self.scan:
            self.scan = self.scan.without(records)
        else:
            self._left_out = records

    def set_nprobe(self, nprobe: int | None) -> None:
        """Set how many lists a search looks at; always on the IVF index below any transform."""
        self.nprobe = nprobe
        if nprobe is None:
            return
        if faiss.try_extract_index_ivf(self.faiss) is not None:
            faiss.extract_index_ivf(self.faiss).nprobe = nprobe
        else:  # on a GPU
            faiss.GpuParameterSpace().set_index_parameter(self.faiss, "nprobe", nprobe)

    def transform_keys(self, keys: Reals) -> Floats:
        """Take keys or queries into the space in which the index measures distances."""
        x = np.ascontiguousarray(keys, np.float32)
        return x if self.transform is None else self.transform.apply(x)

    def search(self, queries: Floats, k: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids of at most k neighbours per query, padded with id -1, nearest first.

        Where the order does not matter, a scan need not spend time on it.
        """
        x = self.transform_keys(queries)
        k = min(k, self.records)
        if len(x) * k > _MANY:
            check_ram(_FOUND_BYTES * len(x) * k, f"{k:,} neighbours of {len(x):,} queries at a time")
        if self.scan:
            return self.scan.search(x, k, self.nprobe or 1, ordered=ordered)
        if self._left_out is not None:
            return search_around(self._search, x, k, self.records, self._left_out)
        return self._search(x, k)

    def _search(self, x: Floats, k: int) -> Found:
        """Search in FAISS's index; refuse ids that it cannot have."""
        try:
            found: Found = self.faiss.search(x, k)
        except RuntimeError as error:
            why = str(error).rpartition(": ")[2]
            raise StoreError(f"FAISS cannot search {self.spec} ({why}); make the index again") from error
        for id in (found[1].min(initial=-1), found[1].max(initial=-1)):
            if not -1 <= id < self.records:  # FAISS returns whatever ids its file holds
                raise StoreError(f"the index returns record {id:,} of {self.records:,}; make it again")
        return found

    def add(self, keys: Floats) -> None:
        """Add keys; their ids continue those of the keys already there."""
        x = self.transform_keys(keys)
        if self.coarse is None:
            self.faiss.add(x)
        else:
            lists = np.ascontiguousarray(self.coarse.nearest(x, 1)[:, 0])
            self.faiss.add_core(len(x), faiss.swig_ptr(x), None, faiss.swig_ptr(lists))
