"""PCA and a random rotation: a store → one with narrower keys, whose queries go through the same transform."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from nearlm.base import QUIET, FileInfo, OptionError, Reporter, StoreError, check_at_least
from nearlm.base.arrays import Array, ArrayFile, Doubles, Floats
from nearlm.search import linear_transform, matrix
from nearlm.store import (
    BLOCK,
    AnyStore,
    Datastore,
    Derivation,
    KeyCodec,
    Made,
    Step,
    derive,
    is_key_file,
    read_linear,
    write_linear,
)

_SEED = 0


@dataclass(frozen=True)
class ReduceOptions:
    """How many dimensions stay, and how the axes are found."""

    dim: int
    """How many dimensions a key keeps."""
    sample: int = 1 << 20
    """Records to train the PCA on."""

    def __post_init__(self) -> None:
        check_at_least(2, sample=self.sample)


def reduce_store(
    store: AnyStore,
    options: ReduceOptions,
    out: str | Path,
    *,
    restart: bool = False,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Make a store whose keys have fewer dimensions, by PCA, rotated at random; queries go through the same.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store; it stays as it is.
        options: How many dimensions, and how many records the axes are trained on.
        out: Folder of the store to make, or `cache:NAME`.
        restart: Throw an unfinished run away first.
        reporter: Whom to tell of the progress.

    Example:
        >>> nearlm.reduce_store("mystore", nearlm.ReduceOptions(16), "narrow").dim
        16
    """
    parent = Datastore.open(store)
    if not 1 <= options.dim <= parent.dim:
        raise OptionError(f"`dim` is {options.dim}, expected 1 to {parent.dim}, the width of a key in {parent.path}")
    sample = min(options.sample, len(parent))
    step = Step("reduce", {"dim": options.dim, "sample": sample})
    return derive(parent, out, step, lambda work: _reduce(work, options.dim, sample), reporter, restart=restart)


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of a sample of keys, in float64."""

    mean: Doubles
    covariance: Doubles


def moments(blocks: Iterator[Floats]) -> Moments:
    """Compute the mean and covariance of vectors that come block by block."""
    count = 0
    for block in blocks:
        if not count:
            shift = block.mean(0)  # near the mean, so that float32 products lose nothing
            total = np.zeros(block.shape[1], np.float64)
            products = np.zeros((block.shape[1],) * 2, np.float64)
        x = block - shift
        total += x.sum(0, dtype=np.float64)
        products += x.T @ x
        count += len(x)
    mean = total / count
    return Moments(shift + mean, products / count - np.outer(mean, mean))


def train_pca(found: Moments, dim: int) -> tuple[Any, float]:
    """Return FAISS's PCA with a random rotation for these moments, and the share of the variance that it keeps."""
    variances, vectors = np.linalg.eigh(found.covariance)
    variances = np.maximum(variances[::-1], 0)
    vectors = vectors.T[::-1]
    pca = faiss.PCAMatrix(len(vectors), dim, 0, True)
    for array, vector in ((found.mean, pca.mean), (variances, pca.eigenvalues), (vectors, pca.PCAMat)):
        faiss.copy_array_to_vector(np.ascontiguousarray(array, np.float32).ravel(), vector)
    pca.prepare_Ab()
    pca.is_trained = True
    total = float(variances.sum())
    return pca, float(variances[:dim].sum()) / total if total > 0 else 1.0


def combine(first: Any, then: Any) -> Any:
    """Return one linear transform that does what two do, one after the other."""
    A, b = matrix(then)
    if first is not None:
        A1, b1 = matrix(first)
        b = A @ b1 + b
        A = A @ A1
    return linear_transform(A, b)


def _reduce(work: Derivation, dim: int, sample: int) -> Made:
    parent = work.parent
    width = np.dtype(parent.manifest.key_dtype).itemsize
    ram = 3 * BLOCK * 4 * (parent.dim + dim) + 5 * 8 * parent.dim**2
    work.announce(len(parent) * dim * width, ram + 2e8)
    pca, kept = _train(work, dim, sample)
    transform = work.layout.transform
    scales = work.layout.scales(dim)
    changed = (transform.name, scales.path.name)
    listed = work.take_over(lambda name: name not in changed and not is_key_file(name))
    write_linear(combine(parent.transform, pca), transform)
    listed[transform.name] = FileInfo.of(transform)
    codec = _fit_codec(parent, pca, scales) if parent.manifest.coded else None
    if codec is not None:
        listed[scales.path.name] = FileInfo.of(scales.path)
    shards = [len(shard) for shard in parent.keys.shards]
    numbers = parent.manifest.shard_numbers
    columns = [
        {"keys": work.layout.shard(number, records, dim, parent.manifest.key_dtype)["keys"]}
        for number, records in zip(numbers, shards, strict=True)
    ]

    def compute(rows: slice) -> Iterator[tuple[str, Array]]:
        keys = pca.apply(parent.keys[rows].astype(np.float32))
        yield "keys", _fitting(keys, parent.keys.dtype) if codec is None else codec.encode(keys)

    listed |= work.fill("reducing", columns, compute)
    return Made(shards, listed, {"dim": dim, "query_dim": parent.query_dim}, {"variance_kept": kept}, numbers)


def _fit_codec(parent: Datastore, pca: Any, scales: ArrayFile) -> KeyCodec:
    """Fit the scales of narrower 8-bit keys to a sample, and keep them."""
    some = np.linspace(0, len(parent) - 1, min(len(parent), BLOCK)).astype(np.int64)
    KeyCodec.fit(pca.apply(parent.keys.take(some))).write(scales)
    return KeyCodec.read(scales)


def _train(work: Derivation, dim: int, sample: int) -> tuple[Any, float]:
    """Train the PCA, or read what an earlier run has trained."""
    path = work.job.folder / "pca.faiss"

    def train() -> float:
        pca, kept = train_pca(moments(_sample(work, sample)), dim)
        write_linear(pca, path)
        return round(kept, 6)

    kept = work.job.once("pca", float, train)
    work.reporter.say(f"{dim} of {work.parent.dim} dimensions keep {kept:.2%} of the variance")
    return read_linear(path, work.parent.dim, dim, f"remove {work.layout.folder} and repeat the command"), kept


def _sample(work: Derivation, sample: int) -> Iterator[Floats]:
    """Yield the keys of a sample, or all, block by block."""
    parent = work.parent
    ids = np.arange(len(parent))
    if sample < len(parent):
        ids = np.sort(np.random.default_rng(_SEED).choice(len(parent), sample, replace=False))
    with work.reporter.bar("training", len(ids), "records") as advance:
        for start in range(0, len(ids), BLOCK):
            block = parent.keys.take(ids[start : start + BLOCK]).astype(np.float32)
            yield block
            advance(len(block))


def _fitting(keys: Floats, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        narrow = keys.astype(dtype)
    if not np.isfinite(narrow).all():
        raise StoreError(
            f"a reduced key reaches {np.abs(keys).max():.0f}, more than {dtype}'s {np.finfo(dtype).max:.0f}; "
            "build the store with `key_dtype='float32'`"
        )
    return narrow
