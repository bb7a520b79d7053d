"""The datastore on disk: what its folder holds, opening it memory-mapped, verifying it, tracing a record."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, Job, Json, ModelError, ShardedArray, StoreError, files, store_folder
from nearlm.text import Segment

FORMAT = 1
MANIFEST = "manifest.json"
BUILD_JOB, DERIVE_JOB = "build", "derive"
TRANSFORM = "transform.faiss"
ASSIGN = "assign.npy"
PROBE = "probe.npy"
TOKENIZER = "tokenizer"
DEFAULTS = "defaults.json"
KEY_DTYPES = ("float16", "float32")
_SAME, _SIMILAR = 0.9999, 0.98
_SHOWN = 100  # positions of a merged record


@dataclass(frozen=True)
class Shard:
    """One run of records: the first one's id, and their arrays, memory-mapped."""

    first: int
    keys: npt.NDArray[Any]
    values: npt.NDArray[np.int32]
    origin: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int32]


@dataclass(frozen=True)
class Context:
    """Where a record comes from: its document, the target's position there, the text before it, and the target."""

    document: str
    position: int
    text: str
    target: str


def shard_files(
    folder: Path, number: int, records: int, dim: int, key_dtype: str, weighted: bool = False
) -> dict[str, ArrayFile]:
    """Say what the files of one shard are."""

    def file(name: str, dtype: str, *shape: int) -> ArrayFile:
        return ArrayFile(folder / f"{name}-{number:05d}.npy", np.dtype(dtype), (records, *shape))

    return {
        "keys": file("keys", key_dtype, dim),
        "values": file("values", "int32"),
        "origin": file("origin", "int64"),
        **({"weights": file("weights", "int32")} if weighted else {}),
    }


def describe(path: Path) -> Json:
    """Return what a manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": files.checksum(path)}


def write_manifest(folder: Path, manifest: Json) -> None:
    """Finish a store: with this, and only with this, the folder is one."""
    files.write_stamped(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Json:
    """Read and check a store's manifest."""
    if not folder.exists():
        raise StoreError(f"{folder} does not exist; make a store with: nearlm build --model … --text … --out {folder}")
    if not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected the folder of a store")
    if not (folder / MANIFEST).exists():
        if Job(folder, BUILD_JOB).started:
            raise StoreError(f"{folder} is an unfinished build; finish it by repeating its `nearlm build` command")
        if Job(folder, DERIVE_JOB).started:
            command = f"nearlm {Job(folder, DERIVE_JOB).plan()['command']}"
            raise StoreError(f"{folder} is unfinished; finish it by repeating its `{command}` command")
        raise StoreError(f"{folder} has no {MANIFEST}, so it is no store; expected a folder made by `nearlm build`")
    version = files.read_json(folder / MANIFEST).get("format")
    if isinstance(version, int) and version > FORMAT:
        raise StoreError(f"{folder} has format {version}, this nearlm reads up to {FORMAT}; upgrade nearlm")
    return files.read_stamped(folder / MANIFEST)


class Datastore:
    """A store, open for reading: `keys`, `values`, `origin` and `weights` of its records, and their tokens."""

    def __init__(self, path: Path, manifest: Json):
        self.path, self.manifest = path, manifest
        shards = [
            shard_files(path, number, shard["records"], manifest["dim"], manifest["key_dtype"], self.weighted)
            for number, shard in enumerate(manifest["shards"])
        ]
        segments = [self._segment_files(number, segment) for number, segment in enumerate(manifest["segments"])]
        assign = ArrayFile(path / ASSIGN, np.dtype("int32"), (manifest["tokens"],))
        pruned = ASSIGN in manifest["files"]
        self._check([*shards, {"assign": assign}] if pruned else shards, segments)
        self.keys = ShardedArray([shard["keys"].open() for shard in shards])
        self.values = ShardedArray([shard["values"].open() for shard in shards])
        self.origin = ShardedArray([shard["origin"].open() for shard in shards])
        one = np.ones((), np.int32)
        ones = [np.broadcast_to(one, len(values)) for values in self.values.shards]
        self.weights = ShardedArray([shard["weights"].open() for shard in shards] if self.weighted else ones)
        self.assign = assign.open() if pruned else None
        self.tokens = ShardedArray([tokens.open() for tokens, _ in segments])
        self._docs = [docs.open() for _, docs in segments]
        self._sources = functools.lru_cache(maxsize=8)(self._read_sources)

    @classmethod
    def open(cls, path: str | Path) -> "Datastore":
        """Open a store by its folder or `cache:NAME`.

        Its manifest and its files' sizes and headers are checked, its data is not read.
        """
        folder = store_folder(path)
        return cls(folder, read_manifest(folder))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dim(self) -> int:
        """The width of a stored key."""
        return int(self.manifest["dim"])

    @property
    def query_dim(self) -> int:
        """The width of a key as the LM gives it: that of a query before `project`."""
        return int(self.manifest.get("query_dim", self.dim))

    @functools.cached_property
    def transform(self) -> Any:
        """The FAISS transform from the LM's keys to the stored ones; None if they are stored as they came."""
        if TRANSFORM not in self.manifest["files"]:
            return None
        import faiss

        return faiss.read_VectorTransform(str(self.path / TRANSFORM))

    def project(self, queries: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
        """Take queries as the LM gives them, [n, query_dim], to the space of the stored keys, [n, dim]."""
        x = np.ascontiguousarray(queries, np.float32)
        if x.ndim != 2 or x.shape[1] != self.query_dim:
            raise StoreError(
                f"queries have shape {x.shape}, expected [n, {self.query_dim}]: keys of {self.path}'s model"
            )
        return x if self.transform is None else self.transform.apply(x)

    @property
    def document_bounds(self) -> npt.NDArray[np.int64]:
        """Where the documents begin in the token stream, and, last, where it ends."""
        bases = np.cumsum([0, *(len(tokens) for tokens in self.tokens.shards)])
        starts = [docs[:, 0] + base for docs, base in zip(self._docs, bases[:-1], strict=True)]
        return np.concatenate([*starts, bases[-1:]])

    @property
    def indexes(self) -> list[str]:
        """The names of the store's finished indexes."""
        return sorted(path.parent.name for path in self.path.glob("index/*/index.json"))

    @property
    def adaptors(self) -> list[str]:
        """The names of the store's finished adaptors."""
        return sorted(path.parent.name for path in self.path.glob("adaptor/*/adaptor.json"))

    @property
    def defaults(self) -> Json:
        """Which index, adaptor and share of skipped searches are used when none is named."""
        named = files.read_stamped(self.path / DEFAULTS) if (self.path / DEFAULTS).exists() else {}
        return {"index": "default", "adaptor": None, "skip": None} | named

    def set_defaults(self, index: str, adaptor: str | None = None, skip: float | None = None) -> None:
        """Choose what is used when none is named."""
        files.write_stamped(self.path / DEFAULTS, {"index": index, "adaptor": adaptor, "skip": skip})

    @property
    def weighted(self) -> bool:
        """Whether records stand for more than themselves, so that their weights matter."""
        return bool(self.manifest.get("weighted", False))

    @property
    def bytes(self) -> int:
        """The size of all files that the manifest lists."""
        return sum(file["bytes"] for file in self.manifest["files"].values())

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that the store was built with, kept in its folder."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path / TOKENIZER)

    def model_options(self) -> Json:
        """Say how to load the model that made this store: the fields of a `ModelSpec`."""
        model = self.manifest["model"]
        options = {name: model[name] for name in ("revision", "quantization")}  # remote code is the user's own choice
        for name in ("name", "adapter"):
            path = model[f"{name}_path"]
            options[name] = model[name] if path is None else str((self.path / path).resolve())
        return options

    def iter_shards(self) -> Iterator[Shard]:
        """Yield the records shard by shard, in order."""
        first = 0
        columns = (self.keys.shards, self.values.shards, self.origin.shards, self.weights.shards)
        for keys, values, origin, weights in zip(*columns, strict=True):
            yield Shard(first, keys, values, origin, weights)
            first += len(keys)

    def document_of(self, position: int) -> tuple[str, int]:
        """Return the name of the document that holds a position of the token stream, and where it begins."""
        base = 0
        for number, (tokens, docs) in enumerate(zip(self.tokens.shards, self._docs, strict=True)):
            if 0 <= position < base + len(tokens):
                row = int(np.searchsorted(docs[:, 0], position - base, side="right")) - 1
                start, source, line = (int(value) for value in docs[row])
                name = self._sources(number)[source]
                return name if line < 0 else f"{name}:{line}", base + start
            base += len(tokens)
        raise IndexError(f"position {position} is outside the token stream of {base} tokens")

    def context_of(self, record: int, before: int = 40) -> Context:
        """Trace a record to its text: up to `before` tokens of its document in front of the target."""
        if not -len(self) <= record < len(self):
            raise StoreError(f"record {record} does not exist; {self.path} has records 0 to {len(self) - 1}")
        position = int(self.origin[record])
        document, start = self.document_of(position)
        text = self.tokens[max(start, position - before) : position]
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=False)
        return Context(document, position - start, decode(text), decode([int(self.values[record])]))

    def record_at(self, position: int) -> int:
        """Return the record that stands for a position of the token stream, -1 if none does."""
        if not 0 <= position < self.manifest["tokens"]:
            return -1
        if self.assign is not None:
            return int(self.assign[position])
        first = 0
        for origin in self.origin.shards:
            if position <= origin[-1]:
                row = int(np.searchsorted(origin, position))
                return first + row if origin[row] == position else -1
            first += len(origin)
        return -1

    def next_record(self, record: int) -> int:
        """Return the record that stands for the position after a record's own, -1 if none does."""
        return self.record_at(int(self.origin[record]) + 1)

    def positions_of(self, record: int) -> npt.NDArray[np.int64]:
        """Return all positions of the token stream that a record stands for, in order: as many as it weighs."""
        if self.assign is None or self.weights[record] == 1:
            return np.array([self.origin[record]], np.int64)
        return np.flatnonzero(self.assign == record % len(self))

    def trace(self, record: int) -> Json:
        """Say all there is to say of one record."""
        context = self.context_of(record)
        weight = int(self.weights[record])
        traced = {"record": record, **asdict(context), "token": int(self.values[record]), "weight": weight}
        return traced if weight == 1 else {**traced, "positions": self.positions_of(record).tolist()[:_SHOWN]}

    def summary(self) -> Json:
        """Say what the store holds and how it was made."""
        manifest = self.manifest
        names = ("records", "dim", "key_dtype", "tokens", "documents", "window", "stride", "pack", "key_tap")
        return {
            "store": self.path.name,
            **{name: manifest[name] for name in names},
            "model": manifest["model"]["name"],
            "model_dtype": manifest["model"]["dtype"],
            "texts": [text for segment in manifest["segments"] for text in segment["texts"]],
            "indexes": self.indexes,
            "adaptors": self.adaptors,
            "defaults": {name: self.defaults[name] for name in ("index", "adaptor", "skip")},
            "shards": len(manifest["shards"]),
            "bytes": self.bytes,
            "bytes_per_record": round(self.bytes / len(self)),
            "unfinished_append": Job(self.path, BUILD_JOB).started,
            "weighted": self.weighted,
            "parent": manifest["parent"] and manifest["parent"]["name"],
            "made_by": "; ".join(map(worded, manifest["transforms"])) or None,
            "checksum": manifest["checksum"],
        }

    def check_model(self, fingerprint: str, probe: npt.NDArray[np.float32], tokenizer: str, name: str) -> str | None:
        """Refuse a model or tokenizer that did not make this store; return a warning if it differs slightly."""
        ours = self.manifest["model"]
        if fingerprint != ours["fingerprint"]:
            raise ModelError(f"{self.path} was built with {ours['name']}, {name} is another architecture or size")
        if tokenizer != self.manifest["tokenizer"]["fingerprint"]:
            raise ModelError(f"{self.path} was built with the tokenizer of {ours['name']}, that of {name} differs")
        stored = self._probe_file.open()
        cosine = float(np.median(_cosines(stored, probe)))
        if not cosine >= _SIMILAR:
            raise ModelError(
                f"{self.path} was built with {ours['name']}, {name} has other weights "
                f"(median cosine of probe keys {cosine:.3f}, expected at least {_SIMILAR})"
            )
        if cosine < _SAME:
            return (
                f"{name} gives slightly other keys than {ours['name']} did (median cosine {cosine:.5f}); another dtype?"
            )
        return None

    def verify(self, advance: Callable[[int], None] = lambda count: None) -> None:
        """Read every byte and refuse the first file that is not as it was written."""
        read_manifest(self.path)
        assert self.defaults
        for name, stated in self.manifest["files"].items():
            path = self.path / name
            if not path.is_file():
                raise StoreError(f"{path} is missing; restore it, or build the store again")
            if describe(path) != stated:
                raise StoreError(f"{path} is damaged (its checksum differs); restore it, or build the store again")
            advance(stated["bytes"])

    def _check(self, shards: list[dict[str, ArrayFile]], segments: list[tuple[ArrayFile, ArrayFile]]) -> None:
        for shard in shards:
            for file in shard.values():
                file.check()
        for file in (*(file for pair in segments for file in pair), self._probe_file):
            file.check()
        for name, stated in self.manifest["files"].items():
            path = self.path / name
            if not path.is_file() or path.stat().st_size != stated["bytes"]:
                raise StoreError(f"{path} is missing or cut, expected {stated['bytes']:,} bytes; restore it")

    def _segment_files(self, number: int, segment: Json) -> tuple[ArrayFile, ArrayFile]:
        paths = Segment(self.path, number)
        return (
            ArrayFile(paths.tokens, np.dtype("int32"), (segment["tokens"],)),
            ArrayFile(paths.docs, np.dtype("int64"), (segment["documents"], 3)),
        )

    @property
    def _probe_file(self) -> ArrayFile:
        shape = (self.manifest["model"]["probe_tokens"], self.query_dim)
        return ArrayFile(self.path / PROBE, np.dtype("float32"), shape)

    def _read_sources(self, segment: int) -> list[str]:
        return files.read_json(Segment(self.path, segment).sources)["sources"]  # type: ignore[no-any-return]


def worded(step: Json) -> str:
    """Write one step of a derived store's making as its command line."""
    said = [step["command"]]
    for name, value in step["options"].items():
        if value is not None and value is not False:
            said += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(said)


def _cosines(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    if a.shape != b.shape:
        return np.zeros(1)
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return (x * y).sum(1) / np.maximum(norms, 1e-30)  # type: ignore[no-any-return]
