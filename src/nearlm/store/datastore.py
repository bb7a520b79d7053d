"""The datastore: opening it memory-mapped, verifying it, and tracing a record to its text."""

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearlm.base import Advance, FileInfo, Json, StoreError, check_files, files, from_json, store_folder
from nearlm.base.arrays import ArrayFile, Floats, Ints, Reals, ShardedArray
from nearlm.base.progress import QUIET, Reporter
from nearlm.base.verification import check_before_use
from nearlm.store.contents import check_records, check_segment
from nearlm.store.faiss_files import read_linear
from nearlm.store.identity import check_identity
from nearlm.store.inventory import is_slim
from nearlm.store.layout import Layout, is_key_file
from nearlm.store.manifest import Manifest, StoreState, extends, read_manifest, state_of
from nearlm.store.settings import SearchSettings, read_defaults
from nearlm.store.summary import summarise
from nearlm.text import Framing, Reading

if TYPE_CHECKING:
    from nearlm.model import ModelSpec

_SHOWN = 100  # positions of a merged record
_REMEDY = "restore it, or build the store again"


@dataclass(frozen=True)
class Context:
    """Where a record comes from: its document, the target's position there, the text before it, and the target."""

    document: str
    position: int
    text: str
    target: str


class Datastore:
    """A store, open for reading: `keys`, `values`, `origin` and `weights` of its records, and their tokens."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        self.layout = Layout(path)
        self.checksum = manifest.checksum  # it tells this state of the store from every other
        self.dim = manifest.dim  # the width of a stored key
        self.query_dim = manifest.query_dim or manifest.dim  # that of the LM's, of a query before `project`
        self.weighted = manifest.weighted  # whether records stand for more than themselves
        self.slim = is_slim(self.layout, manifest.checksum)  # whether it was pushed without its keys
        self.files = {name: file for name, file in manifest.files.items() if not (self.slim and is_key_file(name))}
        self.bytes = sum(file.bytes for file in self.files.values())
        self._sources = functools.lru_cache(maxsize=8)(self._read_sources)
        self._open_arrays()

    def _open_arrays(self) -> None:
        """Check all files but the keys, and map the arrays."""
        manifest = self.manifest
        shards = [
            self.layout.shard(number, shard.records, self.dim, manifest.key_dtype, self.weighted)
            for number, shard in enumerate(manifest.shards)
        ]
        segments = [
            self.layout.segment(number).arrays(segment.tokens, segment.documents)
            for number, segment in enumerate(manifest.segments)
        ]
        pruned = self.layout.assign.name in manifest.files  # some positions have no record of their own
        assign = [ArrayFile(self.layout.assign, np.dtype("int32"), (manifest.tokens,))] if pruned else []
        self._probe = ArrayFile(self.layout.probe, np.dtype("float32"), (manifest.model.probe_tokens, self.query_dim))
        columns = (file for shard in shards for file in shard.values() if file.path.name in self.files)
        for file in (*columns, *(file for arrays in segments for file in arrays), *assign, self._probe):
            file.check()
        self._shards = shards
        self.values = self._open_column("values")
        self.origin = self._open_column("origin")
        self.weights = self._open_column("weights") if self.weighted else _ones(self.values)
        self.assign = assign[0].open() if assign else None
        self.tokens = _open_all(tokens for tokens, _ in segments)
        self._docs = [docs.open() for _, docs in segments]
        check_before_use(self.path, self._listed(keys=False), _REMEDY, self._check_contents)

    def _open_column(self, name: str) -> ShardedArray:
        """Map one array of all shards; without any it is empty."""
        if self._shards:
            return _open_all(shard[name] for shard in self._shards)
        empty = self.layout.shard(0, 0, self.dim, self.manifest.key_dtype, self.weighted)[name]
        return ShardedArray([np.empty(empty.shape, empty.dtype)])

    def _check_contents(self) -> None:
        check_records(self)
        for number, docs in enumerate(self._docs):
            check_segment(self, number, docs, self._sources(number))

    def _listed(self, *, keys: bool) -> dict[str, FileInfo]:
        return {name: file for name, file in self.files.items() if is_key_file(name) == keys}

    @functools.cached_property
    def keys(self) -> ShardedArray:
        """The keys; searches in an index need none, so that these largest files are checked when they are asked for."""
        self.refuse_slim()
        check_before_use(self.path, self._listed(keys=True), _REMEDY)
        return self._open_column("keys")

    @classmethod
    def open(cls, path: "AnyStore") -> "Datastore":
        """Open a store by its folder or `cache:NAME`; one that is open is returned as it is.

        Its manifest and its files' sizes and headers are checked each time, every byte of them before the first use
        on this machine (`NEARLM_VERIFY`).
        """
        if isinstance(path, Datastore):
            return path
        if str(path).startswith("hf:"):
            return cls.from_hub(str(path))
        folder = store_folder(path)
        return cls(folder, read_manifest(folder))

    @classmethod
    def from_hub(cls, repository: str, *, revision: str | None = None, reporter: Reporter = QUIET) -> "Datastore":
        """Open a store that was pushed to the Hugging Face Hub; it is downloaded into the cache the first time.

        Args:
            repository: `user/name` or `hf:user/name`, with `@` and a branch, tag or commit if wanted.
            revision: The same, by itself.
            reporter: Whom to tell of the progress.
        """
        from nearlm.store.sharing import open_pulled

        return open_pulled(repository, revision, reporter)

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        return True  # a store without keys, whose length is 0, is a store

    @property
    def contents(self) -> str:
        """What there is in it, in a few words."""
        return f"{len(self):,} records" if len(self) else f"{len(self.tokens):,} tokens without keys"

    def need_keys(self) -> None:
        """Refuse a store of text alone."""
        if not len(self):
            command = f"nearlm build `text=…` `out={self.path}`, as it was built but without `keys='none'`"
            raise StoreError(f"{self.path} has no keys, only its text; add them with: {command}")

    @property
    def state(self) -> StoreState:
        """What there is in it, to be told from what there will be."""
        return state_of(self.manifest)

    def continues(self, checksum: str, state: StoreState | None) -> bool:
        """Tell whether what was made from a state of a store is of this one still: the same, or one that it extends."""
        return checksum == self.checksum or (state is not None and extends(self.manifest, state))

    def need_stored_keys(self) -> None:
        """Refuse a store of text alone, and one that was pushed without its keys."""
        self.need_keys()
        self.refuse_slim()

    def refuse_slim(self) -> None:
        """Refuse a store that was pushed without its keys."""
        if self.slim:
            raise StoreError(
                f"{self.path} was pushed without its keys (`slim=True`), which this needs: without them it can be "
                "searched, scored and generated with; get the whole store for more"
            )

    def __repr__(self) -> str:
        keys = f"{len(self):,} records of {self.dim} {self.manifest.key_dtype}" if len(self) else "text without keys"
        return f"Datastore({str(self.path)!r}: {keys} by {self.manifest.model.name}, indexes: {self.indexes})"

    @property
    def indexes(self) -> list[str]:
        """The names of the store's finished indexes."""
        return self.layout.names("index")

    @property
    def gates(self) -> list[str]:
        """The names of the store's finished gates."""
        return self.layout.names("gate")

    @property
    def mixtures(self) -> list[str]:
        """The names of the store's finished mixtures."""
        return self.layout.names("mixture")

    @property
    def defaults(self) -> SearchSettings:
        """Which index, gate and share of skipped searches are used when none is named."""
        return read_defaults(self.layout)

    def reading(self, stride: int | None = None) -> Reading:
        """Return how a text is cut up: framed and windowed as the store's own was, with a stride of its own."""
        manifest = self.manifest
        framing = Framing(tuple(manifest.bos), tuple(manifest.separator))
        return Reading(framing, manifest.window, manifest.window if stride is None else stride, manifest.pack)

    @functools.cached_property
    def transform(self) -> Any:
        """The FAISS transform from the LM's keys to the stored ones; None if they are stored as they came."""
        if self.layout.transform.name not in self.manifest.files:
            return None
        return read_linear(self.layout.transform, self.query_dim, self.dim, _REMEDY)

    def project(self, queries: Reals) -> Floats:
        """Take queries as the LM gives them, [n, query_dim], to the space of the stored keys, [n, dim]."""
        x = np.ascontiguousarray(queries, np.float32)
        if x.ndim != 2 or x.shape[1] != self.query_dim:
            raise StoreError(
                f"queries have shape {x.shape}, expected [n, {self.query_dim}]: keys of {self.path}'s model"
            )
        return x if self.transform is None else self.transform.apply(x)

    @property
    def document_bounds(self) -> Ints:
        """Where the documents begin in the token stream, and, last, where it ends."""
        starts = [docs[:, 0] + base for docs, (base, _) in zip(self._docs, self.tokens.parts(), strict=True)]
        return np.concatenate([*starts, [len(self.tokens)]])

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that the store was built with, kept in its folder."""
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(self.layout.tokenizer, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # transformers and tokenizers raise what they like
            why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise StoreError(f"{self.layout.tokenizer} cannot be loaded ({why}); {_REMEDY}") from error

    def model_spec(self) -> "ModelSpec":
        """Say how to load the model that made this store; remote code is the user's own choice."""
        from nearlm.model import ModelSpec

        model = self.manifest.model
        return ModelSpec(
            self._locate(model.name, model.name_path),
            revision=model.revision,
            adapter=model.adapter and self._locate(model.adapter, model.adapter_path),
            quantization=model.quantization,
        )

    def _locate(self, name: str, path: str | None) -> str:
        return name if path is None else str((self.path / path).resolve())

    def document_of(self, position: int) -> tuple[str, int]:
        """Return the name of the document that holds a position of the token stream, and where it begins."""
        for number, (base, tokens) in enumerate(self.tokens.parts()):
            if 0 <= position < base + len(tokens):
                docs = self._docs[number]
                row = int(np.searchsorted(docs[:, 0], position - base, side="right")) - 1
                start, source, line = docs[row].tolist()
                name = self._source(number, source)
                return name if line < 0 else f"{name}:{line}", base + start
        raise IndexError(f"position {position} is outside the token stream of {len(self.tokens)} tokens")

    def context_of(self, record: int, before: int = 40) -> Context:
        """Trace a record to its text: up to `before` tokens of its document in front of the target."""
        self.need_keys()
        if not -len(self) <= record < len(self):
            raise StoreError(f"record {record} does not exist; {self.path} has records 0 to {len(self) - 1}")
        position = int(self.origin[record])
        document, start = self.document_of(position)
        text = self.tokens[max(start, position - before) : position]
        decode = functools.partial(self.tokenizer.decode, skip_special_tokens=False)
        return Context(document, position - start, decode(text), decode([int(self.values[record])]))

    def record_at(self, position: int) -> int:
        """Return the record that stands for a position of the token stream, -1 if none does."""
        if not 0 <= position < self.manifest.tokens:
            return -1
        if self.assign is not None:
            return int(self.assign[position])
        for first, origin in self.origin.parts():
            if len(origin) and position <= origin[-1]:
                row = int(np.searchsorted(origin, position))
                return first + row if origin[row] == position else -1
        return -1

    def next_record(self, record: int) -> int:
        """Return the record that stands for the position after a record's own, -1 if none does."""
        return self.record_at(int(self.origin[record]) + 1)

    def positions_of(self, record: int) -> Ints:
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
        return summarise(self)

    def check_model(self, fingerprint: str, probe: Floats, tokenizer: str, name: str) -> str | None:
        """Refuse a model or tokenizer that did not make this store; return a warning if it differs slightly."""
        return check_identity(self.manifest, self.path, self._probe.open(), (fingerprint, probe, tokenizer, name))

    def verify(self, advance: Advance | None = None) -> None:
        """Read every byte and refuse the first file that is not as it was written."""
        read_manifest(self.path)
        read_defaults(self.layout)
        self.layout.check_described()
        check_files(self.path, self.files, _REMEDY, every_byte=True, advance=advance)

    def _source(self, segment: int, number: int) -> str:
        names = self._sources(segment)
        if not 0 <= number < len(names):
            place = self.layout.segment(segment)
            raise StoreError(f"{place.docs} names source {number}, {place.sources.name} has {len(names)}; {_REMEDY}")
        return names[number]

    def _read_sources(self, segment: int) -> list[str]:
        path = self.layout.segment(segment).sources
        return from_json(list[str], files.read_json(path).get("sources"), path)


AnyStore = str | Path | Datastore


def _open_all(shards: Iterator[ArrayFile]) -> ShardedArray:
    return ShardedArray([shard.open() for shard in shards])


def _ones(values: ShardedArray) -> ShardedArray:
    """Return a weight of 1 for every record, without memory for them."""
    return ShardedArray([np.broadcast_to(np.ones((), np.int32), len(shard)) for shard in values.shards])
