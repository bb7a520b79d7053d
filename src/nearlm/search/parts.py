"""An index filled in parts: runs of records whose lists are filled apart, wherever, and then put together.

FAISS assigns and encodes the keys of a block whatever came before, and a list holds its records in the order in which
they were added. So lists of parts, one after the other, are the lists of the whole, as long as blocks begin where they
begin when all is done in one go.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np

from nearlm.base import Advance, Array, blocks, files
from nearlm.search.index import load_parts, write_parts
from nearlm.search.kinds import IndexSpec
from nearlm.search.scan import Lists, can_scan, id_type, without_lists
from nearlm.search.search_index import SearchIndex
from nearlm.store import Datastore, IndexData, write_faiss_index, write_linear

BLOCK = 1 << 14  # records that are added at once
PART = 1 << 17  # records of a part, if there are not too many parts
_MOST_PARTS = 256
_LISTS = 256  # that are put together at once
FillParts = Callable[["Sequence[Part]", Advance], None]


@dataclass(frozen=True)
class Part:
    """A run of records, the trained index that shall hold them, and the folder for what becomes of them."""

    store: str
    trained: str
    spec: IndexSpec
    first: int
    stop: int
    folder: str

    @property
    def data(self) -> IndexData:
        """The part's files."""
        return IndexData(Path(self.folder))

    @property
    def finished(self) -> bool:
        """Whether it has been filled."""
        return self.data.folder.exists()

    def fill(self, advance: Advance = lambda count: None) -> None:
        """Assign and encode the part's records, and write their lists."""
        if self.finished:
            return
        store = Datastore.open(self.store)
        index = load_parts(IndexData(Path(self.trained)), self.spec, store.dim)
        index.faiss.reset()
        add_records(index, store, self.first, self.stop, advance)
        unfinished = self.data.folder.with_suffix(".part")
        write_parts(index, IndexData(unfinished))
        files.replace(unfinished, self.data.folder)


def add_records(index: SearchIndex, store: Datastore, first: int, stop: int, advance: Advance) -> None:
    """Add a run of a store's records, block by block."""
    for begin in range(first, stop, BLOCK):
        block = store.keys[begin : min(begin + BLOCK, stop)]
        index.add(block.astype(np.float32))
        advance(len(block))


def can_part(index: SearchIndex) -> bool:
    """Tell whether an index can be filled in parts: what has lists can."""
    return faiss.try_extract_index_ivf(index.faiss) is not None


def plan_parts(store: Datastore, trained: IndexData, spec: IndexSpec, first: int, folder: Path) -> list[Part]:
    """Cut the records from `first` on into parts of whole blocks, whoever fills them."""
    step = max(PART, -(-len(store) // (_MOST_PARTS * BLOCK)) * BLOCK)
    places = str(store.path.resolve()), str(trained.folder.resolve())
    return [
        Part(*places, spec, begin, min(begin + step, len(store)), str(folder.resolve() / f"part-{begin:012d}"))
        for begin in range(first, len(store), step)
    ]


def join_parts(index: SearchIndex, begun: IndexData, parts: Sequence[Part], data: IndexData) -> None:
    """Write an index that holds its own records, which lie in `begun`, and then those of all parts."""
    if not can_scan(index.faiss):
        lists = faiss.extract_index_ivf(index.faiss)
        for part in parts:
            filled = load_parts(part.data, part.spec, Datastore.open(part.store).dim)
            lists.merge_from(faiss.extract_index_ivf(filled.faiss), part.first)
        index.faiss.ntotal = lists.ntotal  # of a transform around it
        write_parts(index, data)
        return
    added = [(Lists.open(part.data, index.faiss), part.first) for part in parts]
    files.remove(data.folder)
    data.folder.mkdir()
    join_lists([(Lists.open(begun, index.faiss), 0), *added], data)
    if index.transform is not None:
        write_linear(index.transform, data.transform)
    if index.coarse is not None:
        index.coarse.write(data)
    write_faiss_index(without_lists(index.faiss), data.faiss)


def join_lists(parts: Sequence[tuple[Lists, int]], data: IndexData) -> None:
    """Write lists that hold the records of several, list by list; each one's ids are shifted by what is given."""
    lengths = np.sum([np.diff(lists.offsets) for lists, _ in parts], axis=0)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    records = int(offsets[-1])
    kind = id_type(records)
    codes = parts[0][0].codes
    files.write_array(data.offsets, np.int64, offsets.shape, [offsets])
    files.write_array(data.ids, np.dtype(kind), (records,), _joined(parts, lambda lists: lists.ids, kind))
    files.write_array(data.codes, codes.dtype, (records, codes.shape[1]), _joined(parts, lambda lists: lists.codes))
    files.write_array(data.bias, np.float32, (records,), _joined(parts, lambda lists: lists.bias))


def _joined(
    parts: Sequence[tuple[Lists, int]], column: Callable[[Lists], Array], ids: str | None = None
) -> Iterator[Array]:
    """Yield a column of all parts, some lists at a time; where it holds ids of this type, they are shifted."""
    for some in blocks(len(parts[0][0].offsets) - 1, _LISTS):
        rows = []
        numbers = []
        for lists, shift in parts:
            offsets = lists.offsets[some.start : some.stop + 1]
            row = column(lists)[offsets[0] : offsets[-1]]
            rows.append(row if ids is None else (row.astype(np.int64) + shift).astype(ids))
            numbers.append(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
        order = np.argsort(np.concatenate(numbers), kind="stable")
        yield np.concatenate(rows)[order]
