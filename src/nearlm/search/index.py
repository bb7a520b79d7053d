"""FAISS indexes over a store's keys: what there is to choose from, its files, and searching in it."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from nearlm.base import Json, OptionError, StoreError, files
from nearlm.search.linear import principal_axes
from nearlm.search.scan import Found, Lists, ListScan, can_scan, without_lists, write_lists
from nearlm.store import Datastore, describe

DEFAULT = "default"
PAPER_NPROBE = 32
PAPER_K = 1024
_POINTS_PER_CENTROID = 256
_SMALL = 20_000  # records, up to which exact search costs nothing
_HALF_WHITE = -0.25


@dataclass(frozen=True)
class IndexSpec:
    """What an index is made of: a FAISS factory string, and what keys and queries go through first.

    With `pca` that is a reduction to so many dimensions, each multiplied by its variance to the power of
    `eigen_power`: 0 keeps distances, -0.5 makes all dimensions alike, and in between is best for a kNN-LM.
    """

    factory: str
    nprobe: int | None = None
    pca: int | None = None
    eigen_power: float = 0.0


def choose_index(factory: str, records: int, dim: int, nprobe: int | None = None) -> IndexSpec:
    """Turn `auto`, `paper`, `flat` or a FAISS factory string into a specification for a store of this size."""
    if nprobe is not None and nprobe < 1:
        raise OptionError(f"--nprobe is {nprobe}, expected at least 1")
    spec = _chosen(factory, records, dim, nprobe)
    if nprobe is not None and spec.nprobe is None:
        raise OptionError(f"--nprobe is {nprobe}, but an index of {records:,} records is {spec.factory}; leave it out")
    return spec


def _chosen(factory: str, records: int, dim: int, nprobe: int | None) -> IndexSpec:
    if factory == "flat":
        return IndexSpec("Flat")
    if factory == "paper":
        return IndexSpec(f"IVF{paper_nlist(records)},PQ{paper_code_bytes(dim)}", nprobe or PAPER_NPROBE)
    if factory == "auto":
        return _auto(records, dim, nprobe)
    try:
        ivf = is_ivf(faiss.index_factory(dim, factory))
    except RuntimeError:
        raise OptionError(
            f"--factory {factory!r} is no FAISS factory string for {dim} dimensions; "
            f"expected auto, paper, flat or e.g. IVF{paper_nlist(records)},SQ8"
        ) from None
    return IndexSpec(factory, (nprobe or PAPER_NPROBE) if ivf else None)


def paper_nlist(records: int) -> int:
    """Return the paper's number of lists at this size: min(4096, 2^round(log2 √N))."""
    return min(4096, 1 << max(0, round(math.log2(max(records, 1)) / 2)))


def paper_code_bytes(dim: int) -> int:
    """Return the largest number of bytes up to 64 that divides the dimension."""
    return max(count for count in range(1, min(64, dim) + 1) if dim % count == 0)


def _auto(records: int, dim: int, nprobe: int | None) -> IndexSpec:
    """Choose what docs/results.md found best: half-whitened keys as 8-bit codes, whole lists scanned in batches."""
    if records < _SMALL:
        return IndexSpec("Flat", None, *((min(dim, 256), _HALF_WHITE) if records >= max(1000, 8 * dim) else ()))
    nlist = min(1 << 14, 32 * max(1, round(1.11 * math.sqrt(records) / 32)))  # smooth: fewer records, shorter lists
    return IndexSpec(f"IVF{nlist},SQ8", nprobe or 8, min(192, dim), _HALF_WHITE)


def is_ivf(index: Any) -> bool:
    """Tell whether an index has inverted lists, also below transforms."""
    return faiss.try_extract_index_ivf(index) is not None


class SearchIndex:
    """An index that is open: what keys and queries go through, and a FAISS index or a scan of its lists."""

    def __init__(self, spec: IndexSpec, transform: Any, faiss_index: Any, scan: ListScan | None = None):
        self.spec, self.transform, self.faiss, self.scan = spec, transform, faiss_index, scan
        self.set_nprobe(spec.nprobe)

    @property
    def records(self) -> int:
        """How many records are in the index."""
        return len(self.scan.lists.ids) if self.scan else int(self.faiss.ntotal)

    def set_nprobe(self, nprobe: int | None) -> None:
        """Set how many lists a search looks at; always on the IVF index below any transform."""
        self.nprobe = nprobe
        if nprobe is None:
            return
        if faiss.try_extract_index_ivf(self.faiss) is not None:
            faiss.extract_index_ivf(self.faiss).nprobe = nprobe
        else:  # on a GPU
            faiss.GpuParameterSpace().set_index_parameter(self.faiss, "nprobe", nprobe)

    def transformed(self, keys: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Take keys or queries into the space in which the index measures distances."""
        x = np.ascontiguousarray(keys, np.float32)
        return x if self.transform is None else self.transform.apply(x)

    def search(self, queries: npt.NDArray[np.float32], k: int, *, ordered: bool = True) -> Found:
        """Return squared distances and ids of at most k neighbours a query, padded with id -1, nearest first.

        Where the order does not matter, a scan need not spend time on it.
        """
        x, k = self.transformed(queries), min(k, self.records)
        if self.scan:
            return self.scan.search(x, k, self.nprobe or 1, ordered=ordered)
        found: Found = self.faiss.search(x, k)
        return found

    def add(self, keys: npt.NDArray[np.float32]) -> None:
        """Add keys; their ids go on from those that are there."""
        self.faiss.add(self.transformed(keys))


def index_folder(store: Datastore, name: str) -> Path:
    """Return where an index of a store lives."""
    if not name or name != Path(name).name or name.startswith("."):
        raise OptionError(f"--index is {name!r}, expected a plain name")
    return store.path / "index" / name


def open_index(store: Datastore, name: str = DEFAULT) -> tuple[SearchIndex, Json]:
    """Open an index for searching, with what `index.json` says of it; large files are mapped where FAISS can."""
    folder = index_folder(store, name)
    again = f"nearlm index {store.path}{'' if name == DEFAULT else f' --index {name}'}"
    if not (folder / "index.json").exists():
        known = f"it has {', '.join(store.indexes)}" if store.indexes else "it has none"
        raise StoreError(f"{store.path} has no index {name!r} ({known}); make one with: {again}")
    described = files.read_stamped(folder / "index.json")
    if described["manifest"] != store.manifest["checksum"]:
        raise StoreError(f"index {name!r} is of an earlier state of {store.path}; bring it up to date with: {again}")
    for file, stated in described["files"].items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != stated["bytes"]:
            raise StoreError(f"{folder / file} is missing or cut; remove {folder} and make the index again: {again}")
    return read_parts(folder / described["data"], IndexSpec(**described["spec"])), described


def faiss_index(store: Datastore, name: str = DEFAULT) -> Any:
    """Return an index as plain FAISS in memory, for other tools; its queries are like the stored keys."""
    _, described = open_index(store, name)
    index = load_parts(index_folder(store, name) / described["data"], IndexSpec(**described["spec"]))
    if index.transform is None:
        return index.faiss
    return faiss.IndexPreTransform(index.transform, index.faiss)  # it keeps both alive


def gpus() -> int:
    """Return how many GPUs FAISS can use: none unless GPU FAISS is installed."""
    return int(getattr(faiss, "get_num_gpus", int)())


def on_gpus(index: Any) -> Any:
    """Move an index to all GPUs if GPU FAISS is installed and has that kind."""
    if not gpus():
        return index
    try:
        return faiss.index_cpu_to_all_gpus(index)
    except RuntimeError:
        return index


def memory_needed(described: Json) -> tuple[int, int]:
    """Return what an index needs: bytes in RAM (FAISS's own files) and bytes that are only mapped (arrays)."""
    sizes = {file: stated["bytes"] for file, stated in described["files"].items()}
    held = sum(count for file, count in sizes.items() if file.endswith(".faiss"))
    return held, sum(sizes.values()) - held


def verify_index(store: Datastore, name: str) -> None:
    """Read every byte of an index and refuse the first file that is not as it was written."""
    folder = index_folder(store, name)
    for file, stated in files.read_stamped(folder / "index.json")["files"].items():
        if not (folder / file).is_file() or describe(folder / file) != stated:
            raise StoreError(f"{folder / file} is damaged (its checksum differs); remove {folder} and index again")
    if (folder / "settings.json").exists():
        files.read_stamped(folder / "settings.json")


def read_parts(folder: Path, spec: IndexSpec) -> SearchIndex:
    """Open an index for searching: arrays are mapped, other lists too where FAISS can; on GPUs if there are any."""
    transform, index = _read_faiss(folder, spec, faiss.IO_FLAG_MMAP_IFC)
    if not can_scan(index):
        return SearchIndex(spec, transform, on_gpus(index))
    lists = Lists.open(folder, index)
    if gpus():
        lists.put_into(index)
        return SearchIndex(spec, transform, on_gpus(index))
    return SearchIndex(spec, transform, index, ListScan(index, lists))


def load_parts(folder: Path, spec: IndexSpec) -> SearchIndex:
    """Read an index into memory, to add to it."""
    transform, index = _read_faiss(folder, spec, 0)
    if can_scan(index):
        Lists.open(folder, index).put_into(index)
    return SearchIndex(spec, transform, index)


def _read_faiss(folder: Path, spec: IndexSpec, flag: int) -> tuple[Any, Any]:
    transform = faiss.read_VectorTransform(str(folder / "transform.faiss")) if spec.pca else None
    return transform, faiss.read_index(str(folder / "index.faiss"), flag)


def write_parts(index: SearchIndex, folder: Path) -> None:
    """Write an index into a new folder."""
    files.remove(folder)
    folder.mkdir(parents=True)
    if index.transform is not None:
        faiss.write_VectorTransform(index.transform, str(folder / "transform.faiss"))
    if can_scan(index.faiss):
        write_lists(index.faiss, folder)
        faiss.write_index(without_lists(index.faiss), str(folder / "index.faiss"))
    else:
        faiss.write_index(index.faiss, str(folder / "index.faiss"))
    for path in folder.glob("*.faiss"):
        files.sync_file(path)


def empty_index(spec: IndexSpec, dim: int) -> SearchIndex:
    """Make an index that is neither trained nor filled.

    FAISS shall not warn of few keys, which is all there is, nor spend minutes on an order of product codes that only
    Hamming distances (polysemous search) would use; other distances are the same in any order.
    """
    made = faiss.index_factory(spec.pca or dim, spec.factory)
    if hasattr(made, "do_polysemous_training"):
        made.do_polysemous_training = False
    for part in (made, getattr(made, "pq", made)):
        if hasattr(part, "cp"):
            part.cp.min_points_per_centroid = 1
    return SearchIndex(spec, None, made)


def train_index(index: SearchIndex, keys: npt.NDArray[np.float32]) -> None:
    """Train transform and index on a sample of keys."""
    if index.spec.pca:
        index.transform = principal_axes(keys, index.spec.pca, index.spec.eigen_power)
    if not index.faiss.is_trained:
        index.faiss.train(index.transformed(keys))


def sample_size(spec: IndexSpec, records: int) -> int:
    """Return how many keys to train on: what FAISS's own k-means would use, at most a million."""
    lists = re.search(r"IVF(\d+)", spec.factory)
    nlist = int(lists[1]) if lists else 0
    return min(records, 1 << 20, max(1 << 16, _POINTS_PER_CENTROID * nlist))
