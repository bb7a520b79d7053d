"""Make an index of a store: train on a sample, fill block by block, measure, as a job that goes on after a kill."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, Job, Json, OptionError, Reporter, StoreError, duration, files, size
from nearlm.search.index import (
    DEFAULT,
    PAPER_K,
    IndexSpec,
    SearchIndex,
    choose_index,
    empty_index,
    index_folder,
    load_parts,
    read_parts,
    sample_size,
    train_index,
    write_parts,
)
from nearlm.store import Datastore, describe

BLOCK = 1 << 14
CHECKPOINT_SECONDS = 60.0
_QUERIES = 256
_SEED = 0


def build_index(
    store: Datastore,
    factory: str | None = None,
    *,
    name: str = DEFAULT,
    nprobe: int | None = None,
    quiet: bool = False,
) -> Json:
    """Make, finish or bring up to date an index of a store, and return what its `index.json` says.

    Without `factory` an index that is there keeps its kind; a new one is `auto`.
    """
    folder = index_folder(store, name)
    folder.mkdir(parents=True, exist_ok=True)
    with files.lock(folder):
        return _Indexer(store, name, Reporter(quiet)).run(factory, nprobe)


class _Indexer:
    """One index under construction."""

    def __init__(self, store: Datastore, name: str, reporter: Reporter):
        self.store, self.name, self.reporter = store, name, reporter
        self.folder = index_folder(store, name)
        self.job = Job(self.folder, "index")
        path = self.folder / "index.json"
        self.done = None
        if path.exists():
            try:
                self.done = files.read_stamped(path)
            except StoreError as error:
                reporter.say(f"{error}; making the index again")

    def run(self, factory: str | None, nprobe: int | None) -> Json:
        """Train, fill, measure, and write `index.json` last."""
        spec = self._choose(factory, nprobe)
        factory = factory or (self.done["factory"] if self.done else "auto")
        if self.done and (self.done["spec"], self.done["manifest"]) == (asdict(spec), self.store.manifest["checksum"]):
            self.reporter.say(f"index {self.name!r} is complete already")
            self.job.close()
            self._remove_data(keep=self.done["data"])
            return self.done
        started = time.monotonic()
        index = self._begin(spec)
        self._announce(spec)
        if not index.faiss.is_trained or (spec.pca and index.transform is None):
            self._train(index)
        data = self._fill(index)
        described = self._describe(index, factory, data, time.monotonic() - started)
        if self.done and self.done["spec"] != described["spec"]:
            files.remove(self.folder / "settings.json")  # λ and T were tuned for other distances
        files.write_stamped(self.folder / "index.json", described)
        self.job.close()
        self._remove_data(keep=data)
        return files.read_stamped(self.folder / "index.json")

    def _choose(self, factory: str | None, nprobe: int | None) -> IndexSpec:
        """Choose what was asked for, for the store's size; without a wish an index that is there keeps its kind."""
        if factory is None and self.done:
            kept = self.done["spec"]
            if nprobe is not None and nprobe < 1:
                raise OptionError(f"--nprobe is {nprobe}, expected at least 1")
            if nprobe is not None and kept["nprobe"] is None:
                raise OptionError(f"--nprobe is {nprobe}, but index {self.name!r} is {kept['factory']}; leave it out")
            return IndexSpec(**{**kept, "nprobe": nprobe or kept["nprobe"]})
        return choose_index(factory or "auto", len(self.store), self.store.dim, nprobe)

    def _is_prefix(self, done: Json) -> bool:
        return bool(done["shards"] == _shards(self.store)[: len(done["shards"])])

    def _begin(self, spec: IndexSpec) -> SearchIndex:
        """Return the index as far as it is made: by a killed job, by an earlier index, or not at all."""
        plan = {"spec": asdict(spec), "manifest": self.store.manifest["checksum"]}
        if self.job.started and self.job.plan() == plan and self.job.state("fill"):
            with contextlib.suppress(RuntimeError, OSError, StoreError):  # a checkpoint that was cut off: begin again
                index = load_parts(self.folder / self.job.state("fill")["data"], spec)
                self.reporter.say(f"going on with the unfinished index {self.name!r}")
                return index
        self.job.begin(plan)
        self._remove_data(keep=self.done["data"] if self.done else "")
        if self.done and self._is_prefix(self.done) and _same_kind(IndexSpec(**self.done["spec"]), spec):
            return load_parts(self.folder / self.done["data"], spec)
        return empty_index(spec, self.store.dim)

    def _announce(self, spec: IndexSpec) -> None:
        sample = sample_size(spec, len(self.store)) * self.store.dim * 4
        pca = f"{spec.pca} principal axes × variance^{spec.eigen_power:g}, " if spec.pca else ""
        self.reporter.say(f"index {self.name!r}: {pca}{spec.factory}; training needs about {size(sample * 1.5)} of RAM")

    def _train(self, index: SearchIndex) -> None:
        count, started = sample_size(index.spec, len(self.store)), time.monotonic()
        ids = np.random.default_rng(_SEED).choice(len(self.store), count, replace=False)
        train_index(index, self.store.keys.take(np.sort(ids)).astype(np.float32))
        self.reporter.say(f"trained on {count:,} keys in {duration(time.monotonic() - started)}")

    def _fill(self, index: SearchIndex) -> str:
        """Add the records that are missing, with a checkpoint every minute; return the folder they end up in."""
        noted, total = time.monotonic(), len(self.store)
        with self.reporter.bar("indexing", total, "records", index.records) as advance:
            while index.records < total:
                block = self.store.keys[index.records : index.records + BLOCK]
                index.add(block.astype(np.float32))
                advance(len(block))
                if time.monotonic() - noted >= CHECKPOINT_SECONDS:
                    self._save(index)
                    noted = time.monotonic()
        return self._save(index)

    def _save(self, index: SearchIndex) -> str:
        data = f"data-{index.records:012d}"
        if self.done and self.done["data"] == data:
            data += "-new"
        if self.job.state("fill").get("data") == data:
            return data
        write_parts(index, self.folder / data)
        self.job.note("fill", {"data": data})
        self._remove_data(keep=data)
        return data

    def _remove_data(self, keep: str) -> None:
        finished = self.done["data"] if self.done and self.job.started else ""
        for path in self.folder.glob("data-*"):
            if path.name not in (keep, finished):
                files.remove(path)

    def _describe(self, index: SearchIndex, factory: str, data: str, seconds: float) -> Json:
        self._write_column(data, "values", self.store.values)
        if self.store.weighted:
            self._write_column(data, "weights", self.store.weights)
        listed = {f"{data}/{path.name}": describe(path) for path in sorted((self.folder / data).iterdir())}
        stored = sum(stated["bytes"] for stated in listed.values())
        measured = measure(self.store, read_parts(self.folder / data, index.spec))
        for name, value in measured.items():
            self.reporter.say(f"{name.replace('_', ' ')}: {value:,.4g}")
        return {
            "factory": factory,
            "spec": asdict(index.spec),
            "manifest": self.store.manifest["checksum"],
            "shards": _shards(self.store),
            "records": index.records,
            "data": data,
            "files": listed,
            "bytes_per_record": round(stored / index.records, 1),
            "build_seconds": round(seconds, 1),
            **measured,
        }

    def _write_column(self, data: str, name: str, column: Any) -> None:
        """Keep the values beside the index in one piece: every search looks up thousands of them."""
        file = ArrayFile(self.folder / data / f"{name}.npy", np.dtype("int32"), (len(self.store),))
        files.write_bytes(file.path, file.header + np.asarray(column[:], np.int32).tobytes())


def measure(store: Datastore, index: SearchIndex, k: int = PAPER_K) -> Json:
    """Compare an index with exact search on a sample of the store's own keys, and time it.

    Recall and distance error are of the space in which the index measures, `key_recall` of the stored keys' own.
    """
    count = min(_QUERIES, len(store))
    ids = np.sort(np.random.default_rng(_SEED + 1).choice(len(store), count, replace=False))
    queries = store.keys.take(ids).astype(np.float32)
    k = min(k, len(store))
    index.search(queries, k)
    repeats = np.repeat(queries, 4, axis=0)
    started = time.perf_counter()
    index.search(repeats, k)
    seconds = time.perf_counter() - started
    distances, found = index.search(queries, k)
    recall = key_recall = _recall(found, exact_search(store, queries, k)[1])
    if index.transform is not None:
        recall = _recall(found, exact_search(store, queries, k, index.transformed)[1])
    real = found >= 0
    exact = squared_distances(store, queries, found, index.transformed)
    error = np.abs(distances[real] - exact[real]) / np.maximum(exact[real], 1e-6)
    return {
        "recall_at": k,
        "recall": recall,
        "key_recall": key_recall,
        "distance_error": round(float(np.median(error)), 4),
        "queries_per_second": round(len(repeats) / seconds, 1),
    }


def _recall(found: npt.NDArray[np.int64], true: npt.NDArray[np.int64]) -> float:
    hits = sum(len(np.intersect1d(a[a >= 0], b)) for a, b in zip(found, true, strict=True))
    return round(hits / true.size, 4)


def _as_stored(keys: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    return keys.astype(np.float32)


Transform = Callable[[npt.NDArray[np.floating[Any]]], npt.NDArray[np.float32]]


def exact_search(
    store: Datastore, queries: npt.NDArray[np.float32], k: int, transformed: Transform = _as_stored
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Search by brute force over the stored keys, block by block."""
    queries = transformed(queries)
    distances = np.empty((len(queries), 0), np.float32)
    ids = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(store), BLOCK):
        block = transformed(store.keys[start : start + BLOCK])
        D, I = faiss.knn(queries, block, min(k, len(block)))  # noqa: E741
        distances, ids = np.hstack([distances, D]), np.hstack([ids, I + start])
        best = np.argsort(distances, axis=1, kind="stable")[:, :k]
        distances, ids = np.take_along_axis(distances, best, 1), np.take_along_axis(ids, best, 1)
    return distances, ids


def squared_distances(
    store: Datastore,
    queries: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int64],
    transformed: Transform = _as_stored,
) -> npt.NDArray[np.float32]:
    """Return the true squared distances of queries to stored keys, [n, k], in float32 differences; inf for id -1."""
    out = np.full(ids.shape, np.inf, np.float32)
    for row, (query, neighbours) in enumerate(zip(transformed(queries), ids, strict=True)):
        real = neighbours >= 0
        difference = transformed(store.keys.take(neighbours[real])) - query
        out[row, real] = np.einsum("ij,ij->i", difference, difference)
    return out


def _shards(store: Datastore) -> list[str]:
    return [file["sha256"] for name, file in sorted(store.manifest["files"].items()) if name.startswith("keys-")]


def _same_kind(one: IndexSpec, other: IndexSpec) -> bool:
    return replace(one, nprobe=None) == replace(other, nprobe=None)
