"""PCA and a random rotation: a store → one with narrower keys, whose queries go through the same transform."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, OptionError, Reporter, StoreError, files
from nearlm.search import linear_transform, matrix
from nearlm.store import BLOCK, TRANSFORM, Datastore, Derivation, Made, derive, describe

SAMPLE = 1 << 20
_SEED = 0


def reduce_store(
    store: str | Path | Datastore,
    dim: int,
    out: str | Path,
    *,
    sample: int = SAMPLE,
    restart: bool = False,
    quiet: bool = False,
) -> Datastore:
    """Make a store whose keys have `dim` dimensions, by PCA trained on at most `sample` records, rotated at random."""
    parent = store if isinstance(store, Datastore) else Datastore.open(store)
    if not 1 <= dim <= parent.dim:
        raise OptionError(f"--dim is {dim}, expected 1 to {parent.dim}, the width of a key in {parent.path}")
    if sample < 2:
        raise OptionError(f"--sample is {sample}, expected at least 2 records to train on")
    step = {"command": "reduce", "options": {"dim": dim, "sample": min(sample, len(parent))}}
    return derive(parent, out, step, lambda work: _reduce(work, dim, sample), Reporter(quiet), restart=restart)


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of a sample of keys, in float64."""

    mean: npt.NDArray[np.float64]
    covariance: npt.NDArray[np.float64]


def moments(blocks: Iterator[npt.NDArray[np.float32]]) -> Moments:
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
    variances, vectors = np.maximum(variances[::-1], 0), vectors.T[::-1]
    pca = faiss.PCAMatrix(len(vectors), dim, 0, True)
    for array, vector in ((found.mean, pca.mean), (variances, pca.eigenvalues), (vectors, pca.PCAMat)):
        faiss.copy_array_to_vector(np.ascontiguousarray(array, np.float32).ravel(), vector)
    pca.prepare_Ab()
    pca.is_trained = True
    total = float(variances.sum())
    return pca, float(variances[:dim].sum()) / total if total > 0 else 1.0


def combined(first: Any, then: Any) -> Any:
    """Return one linear transform that does what two do, one after the other."""
    A, b = matrix(then)
    if first is not None:
        A1, b1 = matrix(first)
        A, b = A @ A1, A @ b1 + b
    return linear_transform(A, b)


def _reduce(work: Derivation, dim: int, sample: int) -> Made:
    parent = work.parent
    width = parent.keys.dtype.itemsize
    ram = 3 * BLOCK * 4 * (parent.dim + dim) + 5 * 8 * parent.dim**2
    work.announce(len(parent) * dim * width, ram + 2e8)
    pca, kept = _trained(work, dim, sample)
    names = [name for name in parent.manifest["files"] if name != TRANSFORM and not name.startswith("keys-")]
    listed = work.take_over(names)
    files.write_bytes(work.folder / TRANSFORM, _serialised(combined(parent.transform, pca)))
    listed[TRANSFORM] = describe(work.folder / TRANSFORM)
    shards = [len(shard) for shard in parent.keys.shards]
    with work.reporter.bar("reducing", len(parent), "records") as advance:
        for number, (keys, records) in enumerate(zip(parent.keys.shards, shards, strict=True)):
            column = ArrayFile(work.folder / f"keys-{number:05d}.npy", parent.keys.dtype, (records, dim))

            def compute(rows: slice, keys: npt.NDArray[Any] = keys) -> Iterator[tuple[str, npt.NDArray[Any]]]:
                yield "keys", _fitting(pca.apply(np.ascontiguousarray(keys[rows], np.float32)), keys.dtype)

            listed |= work.fill(f"shard-{number:05d}", {"keys": column}, compute, advance)
    result = {"variance_kept": kept}
    return Made(shards, listed, {"dim": dim, "query_dim": parent.query_dim}, result)


def _trained(work: Derivation, dim: int, sample: int) -> tuple[Any, float]:
    """Train the PCA, or read what an earlier run has trained."""
    path, state = work.job.folder / "pca.faiss", work.job.state("pca")
    if not state:
        pca, kept = train_pca(moments(_sampled(work, sample)), dim)
        files.write_bytes(path, _serialised(pca))
        state = {"variance_kept": round(kept, 6)}
        work.job.note("pca", state)
    work.reporter.say(f"{dim} of {work.parent.dim} dimensions keep {state['variance_kept']:.2%} of the variance")
    return faiss.read_VectorTransform(str(path)), state["variance_kept"]


def _sampled(work: Derivation, sample: int) -> Iterator[npt.NDArray[np.float32]]:
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


def _serialised(transform: Any) -> bytes:
    writer: Any = faiss.VectorIOWriter()
    faiss.write_VectorTransform(transform, writer)
    return bytes(faiss.vector_to_array(writer.data).tobytes())


def _fitting(keys: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        narrow = keys.astype(dtype)
    if not np.isfinite(narrow).all():
        raise StoreError(
            f"a reduced key reaches {np.abs(keys).max():.0f}, more than {dtype}'s {np.finfo(dtype).max:.0f}; "
            "build the store with --key-dtype float32"
        )
    return narrow
