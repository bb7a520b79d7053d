"""Kinds of index: what `auto`, `paper`, `flat` or a FAISS factory string mean for a store of some size."""

import math
import re
from dataclasses import dataclass, replace

import faiss

from nearlm.base import OptionError, check_at_least

AUTO = "auto"
PAPER = "paper"
PAPER_NPROBE = 32
PAPER_K = 1024
_POINTS_PER_CENTROID = 256
_SMALL = 20_000  # records, up to which exact search costs nothing
_HALF_WHITE = -0.25
_ALWAYS = 1 << 12  # a number that a factory may have in any store
_UNITS = {"": 1, "k": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True)
class IndexSpec:
    """What an index is made of: a FAISS factory string, and what keys and queries go through first.

    With `pca` that is a reduction to so many dimensions, each multiplied by its variance to the power of
    `eigen_power`: 0 keeps distances, -0.5 gives all dimensions the same variance, and in between is best for a kNN-LM.
    """

    factory: str
    nprobe: int | None = None
    pca: int | None = None
    eigen_power: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(1, nprobe=self.nprobe, pca=self.pca)

    def __str__(self) -> str:
        """Name the kind, e.g. `IVF256,SQ8 over 192 axes`."""
        return f"{self.factory} over {self.pca} axes" if self.pca else self.factory

    def with_nprobe(self, nprobe: int | None) -> "IndexSpec":
        """Return the same kind with another number of lists to look at, if one is given."""
        check_at_least(1, nprobe=nprobe)
        if nprobe is not None and self.nprobe is None:
            raise OptionError(f"`nprobe` is {nprobe}, but an index of kind {self.factory} has no lists; leave it out")
        return replace(self, nprobe=nprobe or self.nprobe)

    def same_data(self, other: "IndexSpec") -> bool:
        """Tell whether two indexes hold the same, however many lists are looked at."""
        return replace(self, nprobe=None) == replace(other, nprobe=None)


def choose_index(factory: str, records: int, dim: int, nprobe: int | None = None) -> IndexSpec:
    """Turn `auto`, `paper`, `flat` or a FAISS factory string into a specification for a store of this size."""
    if factory == "flat":
        spec = IndexSpec("Flat")
    elif factory == PAPER:
        spec = IndexSpec(f"IVF{paper_nlist(records)},PQ{paper_code_bytes(dim)}", PAPER_NPROBE)
    elif factory == AUTO:
        spec = _auto(records, dim)
    else:
        spec = IndexSpec(factory, PAPER_NPROBE if _has_lists(factory, records, dim) else None)
    return spec.with_nprobe(nprobe)


def _has_lists(factory: str, records: int, dim: int) -> bool:
    if re.search(r"(?<![\d.])0+(?![\d.])", factory):
        raise OptionError(f"`factory={factory!r}` asks for 0 of something; expected numbers from 1 on")
    if "NSG" in factory:  # FAISS ends the process when it makes some of these
        raise OptionError(
            f"`factory={factory!r}` is a graph of kind NSG, which nearlm does not use; expected e.g. HNSW32"
        )
    check_numbers(factory, records)
    try:
        return faiss.try_extract_index_ivf(faiss.index_factory(dim, factory)) is not None
    except RuntimeError:
        raise OptionError(
            f"`factory={factory!r}` is not a FAISS factory string for {dim} dimensions; "
            f"expected auto, paper, flat or e.g. IVF{paper_nlist(records)},SQ8"
        ) from None


def check_numbers(factory: str, records: int) -> None:
    """Refuse more lists, links, dimensions or centroids than a store can fill, before FAISS makes room for them."""
    most = max(records, _ALWAYS)
    for number, unit in re.findall(r"(\d+)([kM]?)", factory):
        if int(number) * _UNITS[unit] > most:
            raise OptionError(f"`factory={factory!r}` asks for {number}{unit}, expected at most {most:,}")
    for kind, bits in re.findall(r"(PQ|IMI)[^,]*x(\d+)", factory):
        if int(bits) * (2 if kind == "IMI" else 1) > most.bit_length():
            raise OptionError(
                f"`factory={factory!r}` asks for codes of {bits} bits, more than {records:,} records can fill"
            )


def paper_nlist(records: int) -> int:
    """Return the paper's number of lists at this size: min(4096, 2^round(log2 √N))."""
    return min(4096, 1 << max(0, round(math.log2(max(records, 1)) / 2)))


def paper_code_bytes(dim: int) -> int:
    """Return the largest number of bytes up to 64 that divides the dimension."""
    return max(count for count in range(1, min(64, dim) + 1) if dim % count == 0)


def _auto(records: int, dim: int) -> IndexSpec:
    """Choose what docs/results.md found best: half-whitened keys as 8-bit codes, whole lists scanned in batches."""
    if records < _SMALL:
        if records < max(1000, 8 * dim):  # too few keys to learn axes from
            return IndexSpec("Flat")
        return IndexSpec("Flat", None, min(dim, 256), _HALF_WHITE)
    nlist = min(1 << 14, 32 * max(1, round(1.11 * math.sqrt(records) / 32)))  # smooth: fewer records, shorter lists
    return IndexSpec(f"IVF{nlist},SQ8", 8, min(192, dim), _HALF_WHITE)


def sample_size(spec: IndexSpec, records: int) -> int:
    """Return how many keys to train on: what FAISS's own k-means would use, at most a million."""
    return min(records, 1 << 20, max(1 << 16, _POINTS_PER_CENTROID * list_count(spec)))


def list_count(spec: IndexSpec, unknown: int = 0) -> int:
    """Return the number of lists that a kind names, `unknown` if it names none."""
    lists = re.search(r"IVF([0-9]+)", spec.factory)
    return int(lists[1][:20]) if lists else unknown
