"""FAISS indexes over a store's keys: their description on disk, opening them, and searching in them."""

import contextlib
from dataclasses import dataclass
from typing import Any

import faiss

from nearlm.base import (
    FileInfo,
    StoreError,
    canonical_hash,
    check_files,
    check_names,
    check_that,
    files,
)
from nearlm.base.records import to_json
from nearlm.base.verification import check_before_use
from nearlm.search.coarse import Coarse
from nearlm.search.kinds import IndexSpec, list_count
from nearlm.search.scan import Lists, ListScan, can_scan, without_lists, write_lists
from nearlm.search.search_index import SearchIndex
from nearlm.store import (
    DEFAULT,
    AnyStore,
    Datastore,
    IndexData,
    Tuned,
    read_faiss_index,
    read_linear,
    read_tuned,
    write_faiss_index,
    write_linear,
    write_tuned,
)
from nearlm.store.contents import check_ids, check_places, check_tokens
from nearlm.store.faiss_contents import check_faiss_contents
from nearlm.store.prepared import read_current


@dataclass(frozen=True)
class Measurement:
    """What an index gives, compared with exact search, and how fast.

    Recall and distance error are of the space in which the index measures, `key_recall` of the stored keys' own.
    """

    recall_at: int
    recall: float
    key_recall: float
    distance_error: float
    queries_per_second: float


@dataclass(frozen=True, repr=False)
class IndexInfo(Measurement):
    """What `index.json` says of an index: what it is made of, of which state of the store, and what was measured."""

    factory: str
    spec: IndexSpec
    manifest: str
    shards: list[str]
    records: int
    data: str
    files: dict[str, FileInfo]
    bytes_per_record: float
    build_seconds: float
    trained_shards: int | None = None
    same_as: str | None = None  # the hash of the index that records were removed from

    def __repr__(self) -> str:
        size = f"{self.records:,} records, {self.bytes_per_record:g} bytes each"
        found = f"recall@{self.recall_at} {self.recall:.3f}, {self.queries_per_second:,.0f} queries/s"
        return f"IndexInfo({self.factory}: {self.spec.factory}, {size}; {found})"

    @property
    def hash(self) -> str:
        """What tells its distances from those of another index: its kind, and the keys that it was trained on."""
        return self.same_as or canonical_hash({"spec": to_json(self.spec), "keys": self.shards[: self.trained_shards]})

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def held_bytes(self) -> int:
        """The bytes that FAISS reads into memory; the rest is only mapped."""
        return sum(file.bytes for name, file in self.files.items() if name.endswith(".faiss"))


def read_index_info(store: Datastore, name: str) -> IndexInfo:
    """Read what is known of an index."""
    place = store.layout.index(name)
    info = read_current(IndexInfo, place, store)
    names = place.data(info.data).names()
    check_names(place.description, info.files, names)
    for file in names - info.files.keys():  # what is not listed could change after it was checked
        if (place.folder / file).exists():
            again = f"remove {place.folder} and make the index again"
            raise StoreError(f"{place.description} does not list {file}, which is there; {again}")
    return info


def open_index(store: Datastore, name: str = DEFAULT, *, unread: bool = False) -> tuple[SearchIndex, IndexInfo]:
    """Open an index for searching, with what `index.json` says of it; large files are mapped where FAISS can.

    Files are compared with their checksums before their first use, unless they are to stay `unread`.
    """
    store.need_keys()
    place = store.layout.index(name)
    again = f"nearlm index {store.path}{'' if name == DEFAULT else f' `index={name!r}`'}, or build_index()"
    if not place.description.exists():
        known = f"it has {', '.join(store.indexes)}" if store.indexes else "it has none"
        raise StoreError(f"{store.path} has no index {name!r} ({known}); make one with: {again}")
    info = read_index_info(store, name)
    if info.manifest != store.held:
        raise StoreError(f"index {name!r} is of an earlier state of {store.path}; bring it up to date with: {again}")
    remedy = f"remove {place.folder} and make the index again: {again}"
    data = place.data(info.data)
    if f"{info.data}/{data.groups.name}" in info.files and not data.groups.exists():
        raise StoreError(f"{data.groups} is missing; {remedy}")  # searches would look at other lists, in silence
    kind = {"spec": to_json(info.spec), "dim": store.dim}
    sound = unread or check_before_use(
        place.folder, info.files, remedy, lambda: _check_contents(store, data, info.spec), kind
    )
    index = read_parts(data, info.spec, store.dim, known=sound)
    if not index.records == info.records == len(store):
        raise StoreError(
            f"index {name!r} has {index.records:,} records, {store.path} {len(store):,}; remake it: {again}"
        )
    if store.forgotten is not None:
        index.leave_out(store.forgotten.record_mask)
    return index, info


def _check_contents(store: Datastore, data: IndexData, spec: IndexSpec) -> None:
    """Refuse an index that leads to records that are not there, or to tokens that no vocabulary has."""
    index = read_parts(data, spec, store.dim)
    if not gpus():  # where `load_parts` has done it
        _check_faiss(index.faiss, data, spec, store.dim)
    check_that(index.records == len(store), data.folder, f"the store's {len(store):,} records")
    check_tokens(data.open_column("values", len(store)), data.column("values", len(store)).path)
    if index.scan:
        lists = index.scan.lists
        check_places(lists.offsets, data.offsets, len(lists.ids), "where lists begin")
        check_that(lists.offsets[0] == 0, data.offsets, "where lists begin")
        check_ids(lists.ids, data.ids, 0, len(store), "ids of records")


def read_settings(store: Datastore, name: str) -> Tuned | None:
    """Read what was tuned for an index, None if nothing was; what was tuned for another of its name is refused."""
    tuned = read_tuned(store.layout, name)
    if tuned and tuned.index_hash and name in store.indexes and tuned.index_hash != read_index_info(store, name).hash:
        path = store.layout.index(name).settings
        raise StoreError(f"{path} was tuned for another index than {name!r} is now; {tune_again(store, name)}")
    return tuned


def write_settings(store: Datastore, tuned: Tuned) -> None:
    """Keep what was tuned for an index with it, unless that has become another meanwhile."""
    name = tuned.index or DEFAULT
    if read_index_info(store, name).hash != tuned.index_hash:
        raise StoreError(f"index {name!r} of {store.path} was remade while it was tuned; {tune_again(store, name)}")
    write_tuned(store.layout, tuned)


def tune_again(store: Datastore, name: str) -> str:
    """Say how to tune an index."""
    return f"tune it: nearlm tune {store.path} `text=…`{'' if name == DEFAULT else f' `index={name!r}`'}, or tune()"


def faiss_index(store: AnyStore, name: str = DEFAULT) -> Any:
    """Return an index as plain FAISS in memory, for other tools; its queries are like the stored keys.

    Example:
        >>> index = nearlm.faiss_index("mystore")
        >>> distances, ids = index.search(nearlm.Datastore.open("mystore").keys[:2].astype("float32"), 4)
    """
    store = Datastore.open(store)
    store.refuse_forgotten("which plain FAISS would find")
    _, info = open_index(store, name)
    index = load_parts(store.layout.index(name).data(info.data), info.spec, store.dim)
    if index.transform is None:
        return index.faiss
    return faiss.IndexPreTransform(index.transform, index.faiss)  # it keeps both alive


def verify_index(store: Datastore, name: str) -> None:
    """Read every byte of an index and refuse the first file that is not as it was written."""
    place = store.layout.index(name)
    info = read_index_info(store, name)
    check_files(place.folder, info.files, f"remove {place.folder} and index again", every_byte=True)
    read_settings(store, name)


def gpus() -> int:
    """Return how many GPUs FAISS can use: none unless GPU FAISS is installed."""
    return int(getattr(faiss, "get_num_gpus", int)())


def read_parts(data: IndexData, spec: IndexSpec, dim: int, *, known: bool = False) -> SearchIndex:
    """Open an index for searching: arrays are mapped, other lists too where FAISS can; on GPUs if there are any.

    FAISS's files that are known to be sound are not looked into again.
    """
    if gpus():
        with contextlib.suppress(RuntimeError):  # GPU FAISS does not have every kind
            loaded = load_parts(data, spec, dim)
            return SearchIndex(spec, loaded.transform, faiss.index_cpu_to_all_gpus(loaded.faiss))
    transform, index = _read_faiss(data, spec, dim, faiss.IO_FLAG_MMAP_IFC, known)
    if not can_scan(index):
        return SearchIndex(spec, transform, index)
    coarse = Coarse.read(data, index)
    return SearchIndex(spec, transform, index, ListScan(index, Lists.open(data, index), coarse), coarse)


def load_parts(data: IndexData, spec: IndexSpec, dim: int) -> SearchIndex:
    """Read an index into memory, to add to it."""
    transform, index = _read_faiss(data, spec, dim, 0)
    _check_faiss(index, data, spec, dim)
    if not can_scan(index):
        return SearchIndex(spec, transform, index)
    Lists.open(data, index).put_into(index)
    return SearchIndex(spec, transform, index, coarse=Coarse.read(data, index))


def _read_faiss(data: IndexData, spec: IndexSpec, dim: int, flag: int, known: bool = False) -> tuple[Any, Any]:
    """Read the transform and the index of keys of `dim` dimensions; both must be what the specification says."""
    remedy = f"remove {data.folder.parent} and make the index again"
    transform = read_linear(data.transform, dim, spec.pca, remedy, known=known) if spec.pca else None
    index = read_faiss_index(data.faiss, flag, remedy, known=known)
    if not _fits(index, spec, spec.pca or dim):
        raise _other_kind(data, spec, dim)
    return transform, index


def _check_faiss(index: Any, data: IndexData, spec: IndexSpec, dim: int) -> None:
    """Refuse an index of another kind than is described, or whose numbers lead nowhere."""
    if not _is_of_kind(index, spec, spec.pca or dim):
        raise _other_kind(data, spec, dim)
    check_faiss_contents(index, data.faiss)


def _other_kind(data: IndexData, spec: IndexSpec, dim: int) -> StoreError:
    remedy = f"remove {data.folder.parent} and make the index again"
    return StoreError(f"{data.faiss} is not {spec} of {spec.pca or dim} dimensions; {remedy}")


def _fits(index: Any, spec: IndexSpec, dim: int) -> bool:
    """Tell whether an index is of the kind and size that a specification asks for."""
    lists = faiss.try_extract_index_ivf(index)
    if (lists is None) != (spec.nprobe is None) or (index.d, index.metric_type) != (dim, faiss.METRIC_L2):
        return False
    return not lists or lists.nlist == list_count(spec, lists.nlist) == lists.quantizer.ntotal


def _is_of_kind(index: Any, spec: IndexSpec, dim: int) -> bool:
    """Tell whether an index is what FAISS makes by a specification, which takes FAISS some milliseconds to say."""
    try:
        made = faiss.index_factory(dim, spec.factory)
    except (RuntimeError, MemoryError):
        return False
    same_code = getattr(made, "code_size", 0) in (0, getattr(index, "code_size", 0))
    return isinstance(index, type(made)) and same_code


def write_parts(index: SearchIndex, data: IndexData) -> None:
    """Write an index into a new folder."""
    files.remove(data.folder)
    data.folder.mkdir(parents=True)
    if index.transform is not None:
        write_linear(index.transform, data.transform)
    if index.coarse is not None:
        index.coarse.write(data)
    kept = index.faiss
    if can_scan(index.faiss):
        write_lists(index.faiss, data)
        kept = without_lists(index.faiss)
    write_faiss_index(kept, data.faiss)
