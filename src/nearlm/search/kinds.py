"""Kinds of index: what `auto`, `paper`, `flat` or a FAISS factory string mean for a store of some size."""

import math
import re
from dataclasses import dataclass, replace

import faiss

from nearlm.base import OptionError, check_at_least, size

AUTO = "auto"
PAPER = "paper"
PAPER_NPROBE = 32
PAPER_K = 1024
GROUPED_LISTS = 4096  # more lists than this are found, and trained, in two levels
RECORD_BYTES = 12  # of a record beside its code: id, norm and token
_POINTS_PER_CENTROID = 64
_MOST_SAMPLED = 1 << 21
_FEW = 1000  # records, fewer of which are searched one by one
LIST_LENGTH = 832  # records
_NPROBE = 8
_AUTO_BITS, _AUTO_AXES = 4, 192
WIDEST_CODE = 128  # bytes: wider ones measured no better
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


def choose_index(
    factory: str, records: int, dim: int, nprobe: int | None = None, code_bytes: int | None = None
) -> IndexSpec:
    """Turn `auto`, `paper`, `flat` or a FAISS factory string into a specification for a store of this size.

    An `auto` index may be held to so many bytes per code.
    """
    check_at_least(1, bytes=code_bytes)
    if code_bytes is not None and factory != AUTO:
        raise OptionError(f"`bytes` is {code_bytes}, but only `factory='auto'` goes by it, not {factory!r}")
    if factory == "flat":
        spec = IndexSpec("Flat")
    elif factory == PAPER:
        spec = IndexSpec(f"IVF{paper_nlist(records)},PQ{paper_code_bytes(dim)}", PAPER_NPROBE)
    elif factory == AUTO:
        spec = _auto(records, dim, code_bytes)
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


def _auto(records: int, dim: int, code_bytes: int | None) -> IndexSpec:
    """Choose what docs/results.md found best: half-whitened keys, 4 bits an axis, whole lists scanned in batches.

    Lists are equally long whatever the size, so that a query looks at as many records; very many are found in groups.
    """
    if records < max(_FEW, 8 * dim):  # too few keys to learn axes from
        return IndexSpec("Flat")
    bits, axes = _best_code(dim, code_bytes)
    nlist = max(1, round(records / LIST_LENGTH))
    if nlist > 64:
        nlist = 32 * round(nlist / 32)
    return IndexSpec(f"IVF{nlist},SQ{bits}", min(_NPROBE, nlist), axes, _HALF_WHITE)


def _best_code(dim: int, code_bytes: int | None) -> tuple[int, int]:
    """Return bits per axis and axes of the best code within so many bytes, as measured: rather more axes than bits."""
    if code_bytes is None:
        return _AUTO_BITS, min(_AUTO_AXES, dim)
    return (8, dim) if code_bytes >= dim else (4, min(2 * code_bytes, dim))


def code_bytes_within(ram: int, records: int, dim: int) -> int:
    """Return how many bytes the best code may have if an `auto` index is to take no more than `ram`."""
    for code_bytes in range(min(dim, WIDEST_CODE), 0, -1):
        if index_bytes(_auto(records, dim, code_bytes), records, dim) <= ram:
            return code_bytes
    least = size(index_bytes(_auto(records, dim, 1), records, dim))
    raise OptionError(f"`ram` is {size(ram)}, too little for {records:,} records: expected at least {least}")


def index_bytes(spec: IndexSpec, records: int, dim: int) -> int:
    """Return how many bytes an `auto` index of so many records takes, about: codes, and centroids, also in groups."""
    axes = spec.pca or dim
    lists = list_count(spec)
    lists *= 4 * axes + (lists > GROUPED_LISTS) * (axes + RECORD_BYTES)
    return records * (-(-axes * (code_bits(spec) or 32) // 8) + RECORD_BYTES) + lists + 4 * dim * axes


def sample_size(spec: IndexSpec, records: int) -> int:
    """Return how many keys to train on: as many for each list as measured to be enough, two millions at most."""
    return min(records, _MOST_SAMPLED, max(1 << 16, _POINTS_PER_CENTROID * list_count(spec)))


def list_count(spec: IndexSpec, unknown: int = 0) -> int:
    """Return the number of lists that a kind names, `unknown` if it names none."""
    lists = re.search(r"IVF([0-9]+)", spec.factory)
    return int(lists[1][:20]) if lists else unknown


def code_bits(spec: IndexSpec) -> int | None:
    """Return the bits per axis of lists that are scanned here, None for other kinds."""
    code = re.fullmatch(r"IVF[0-9]+(_HNSW[0-9]+)?,SQ([48])", spec.factory)
    return int(code[2]) if code else None


def describe(spec: IndexSpec) -> str:
    """Say what a kind is made of, so that one sees what `auto` chose."""
    pca = f"{spec.pca} principal axes × variance^{spec.eigen_power:g}, " if spec.pca else ""
    lists = f", {spec.nprobe} of {list_count(spec):,} lists looked at" if list_count(spec) else ""
    bits = code_bits(spec)
    if not (bits and spec.pca):
        return f"{pca}{spec.factory}{lists}"
    code = -(-spec.pca * bits // 8)
    return f"{pca}{bits} bits each{lists} ({spec.factory}): codes of {code} bytes, {code + RECORD_BYTES} a record"
