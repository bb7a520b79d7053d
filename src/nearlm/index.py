"""FAISS indexes over a store's keys: what there is to choose from, its files, and searching in it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from nearlm import files
from nearlm.datastore import Datastore, describe
from nearlm.errors import OptionError, StoreError
from nearlm.files import Json

DEFAULT = "default"
PAPER_NPROBE = 32
PAPER_K = 1024
_POINTS_PER_CENTROID = 256


Found = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]  # squared distances and ids, [n, k]


@dataclass(frozen=True)
class IndexSpec:
    """What an index is made of.

    Queries are reduced to `pca` dimensions first, if set. `first` is a FAISS factory string. With
    `second` the first stage only makes a `shortlist`, whose distances the second computes anew.
    """

    first: str
    nprobe: int | None = None
    pca: int | None = None
    second: str | None = None
    shortlist: int | None = None


def choose_index(factory: str, records: int, dim: int, nprobe: int | None = None) -> IndexSpec:
    """Turn `auto`, `paper`, `flat` or a FAISS factory string into a specification for a store of this size."""
    if nprobe is not None and nprobe < 1:
        raise OptionError(f"--nprobe is {nprobe}, expected at least 1")
    if factory == "flat" or (factory == "auto" and records < 20_000):
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
    """Choose a fast-scan shortlist and a second stage; docs/results.md has the measurements behind it."""
    width = min(256, dim - dim % 2)
    return IndexSpec(
        f"IVF{paper_nlist(records)},PQ{width // 2}x4fs",
        nprobe or 16,
        width if width < dim else None,
        "SQ8",
        PAPER_K,
    )


def is_ivf(index: Any) -> bool:
    """Tell whether an index has inverted lists, also below transforms."""
    return faiss.try_extract_index_ivf(index) is not None


class SearchIndex:
    """An index that is open for searching: transform, first stage, second stage."""

    def __init__(self, spec: IndexSpec, transform: Any, first: Any, second: Any):
        self.spec, self.transform, self.first, self.second = spec, transform, first, second
        self.set_nprobe(spec.nprobe)

    @property
    def records(self) -> int:
        """How many records are in the index."""
        return int(self.first.ntotal)

    def set_nprobe(self, nprobe: int | None) -> None:
        """Set how many lists a search looks at; always on the IVF index below any transform."""
        self.nprobe = nprobe
        if nprobe is None:
            return
        if faiss.try_extract_index_ivf(self.first) is not None:
            faiss.extract_index_ivf(self.first).nprobe = nprobe
        else:  # on a GPU
            faiss.GpuParameterSpace().set_index_parameter(self.first, "nprobe", nprobe)

    def search(self, queries: npt.NDArray[np.float32], k: int) -> Found:
        """Return squared distances and ids of at most k neighbours a query, nearest first, padded with id -1."""
        x = np.ascontiguousarray(queries, np.float32)
        if self.transform is not None:
            x = self.transform.apply(x)
        if self.second is None:
            found: Found = self.first.search(x, min(k, self.records))
            return found
        shortlist = min(self.spec.shortlist or k, self.records)
        k = min(k, shortlist)
        stages = faiss.IndexRefine(self.first, self.second)
        stages.k_factor = shortlist / k
        refined: Found = stages.search(x, k)
        return refined

    def add(self, keys: npt.NDArray[np.float32]) -> None:
        """Add keys; their ids go on from those that are there."""
        x = np.ascontiguousarray(keys, np.float32)
        if self.transform is not None:
            x = self.transform.apply(x)
        self.first.add(x)
        if self.second is not None:
            self.second.add(x)


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
    described = files.read_json(folder / "index.json")
    if described["manifest"] != store.manifest["checksum"]:
        raise StoreError(f"index {name!r} is of an earlier state of {store.path}; bring it up to date with: {again}")
    for file, stated in described["files"].items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != stated["bytes"]:
            raise StoreError(f"{folder / file} is missing or cut; remove {folder} and make the index again: {again}")
    index = read_parts(folder / described["data"], IndexSpec(**described["spec"]), mapped=True)
    index.first = on_gpus(index.first)
    index.set_nprobe(index.nprobe)
    return index, described


def on_gpus(index: Any) -> Any:
    """Move an index to all GPUs if GPU FAISS is installed and has that kind (fast-scan indexes stay on the CPU)."""
    if not getattr(faiss, "get_num_gpus", int)():
        return index
    try:
        return faiss.index_cpu_to_all_gpus(index)
    except RuntimeError:
        return index


def memory_needed(described: Json) -> tuple[int, int]:
    """Return what an index needs: bytes in RAM (the first stage) and bytes that are only mapped (the rest)."""
    sizes = {file.rsplit("/", 1)[1]: stated["bytes"] for file, stated in described["files"].items()}
    held = sizes["first.faiss"] + sizes.get("transform.faiss", 0)
    return held, sum(sizes.values()) - held


def verify_index(store: Datastore, name: str) -> None:
    """Read every byte of an index and refuse the first file that is not as it was written."""
    folder = index_folder(store, name)
    for file, stated in files.read_json(folder / "index.json")["files"].items():
        if not (folder / file).is_file() or describe(folder / file) != stated:
            raise StoreError(f"{folder / file} is damaged (its checksum differs); remove {folder} and index again")


def read_parts(folder: Path, spec: IndexSpec, *, mapped: bool) -> SearchIndex:
    """Read an index's transform and stages."""
    flag = faiss.IO_FLAG_MMAP_IFC if mapped else 0
    transform = faiss.read_VectorTransform(str(folder / "transform.faiss")) if spec.pca else None
    second = faiss.read_index(str(folder / "second.faiss"), flag) if spec.second else None
    return SearchIndex(spec, transform, faiss.read_index(str(folder / "first.faiss"), flag), second)


def write_parts(index: SearchIndex, folder: Path) -> None:
    """Write an index's transform and stages into a new folder."""
    files.remove(folder)
    folder.mkdir(parents=True)
    if index.transform is not None:
        faiss.write_VectorTransform(index.transform, str(folder / "transform.faiss"))
    faiss.write_index(index.first, str(folder / "first.faiss"))
    if index.second is not None:
        faiss.write_index(index.second, str(folder / "second.faiss"))


def empty_index(spec: IndexSpec, dim: int) -> SearchIndex:
    """Make an index that is neither trained nor filled."""
    transform = faiss.PCAMatrix(dim, spec.pca, 0, True) if spec.pca else None
    width = spec.pca or dim
    first = faiss.index_factory(width, spec.first)
    return SearchIndex(spec, transform, first, faiss.index_factory(width, spec.second) if spec.second else None)


def train_index(index: SearchIndex, keys: npt.NDArray[np.float32]) -> None:
    """Train transform and stages on a sample of keys."""
    x = keys
    if index.transform is not None:
        index.transform.train(x)
        x = index.transform.apply(x)
    for stage in (index.first, index.second):
        if stage is not None and not stage.is_trained:
            stage.train(x)


def sample_size(spec: IndexSpec, records: int) -> int:
    """Return how many keys to train on: what FAISS's own k-means would use, at most a million."""
    nlist = int(spec.first.split("IVF")[1].split(",")[0].split("_")[0]) if "IVF" in spec.first else 0
    return min(records, 1 << 20, max(1 << 16, _POINTS_PER_CENTROID * nlist))
