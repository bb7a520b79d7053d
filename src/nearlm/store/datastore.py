"""The datastore: opening it memory-mapped, verifying it, and tracing a record to its text."""

import functools
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
from nearlm.store.key_codes import CodedKeys, KeyCodec
from nearlm.store.layout import Layout, is_key_file
from nearlm.store.manifest import Manifest, StoreState, extends, read_manifest, state_of
from nearlm.store.settings import SearchSettings, read_defaults
from nearlm.store.summary import summarise
from nearlm.store.tombstones import Tombstones
from nearlm.store.tracing import Context, describe_record, find_context, find_positions, load_tokenizer
from nearlm.text import Framing, Reading

if TYPE_CHECKING:
    from nearlm.model import ModelSpec

_REMEDY = "restore it, or build the store again"


class Datastore:
    """A store, open for reading: `keys`, `values`, `origin` and `weights` of its records, and their tokens."""

    def __init__(self, path: Path, manifest: Manifest):
        self.path = path
        self.manifest = manifest
        self.layout = Layout(path)
        self.checksum = manifest.checksum  # it tells this state of the store from every other
        self.held = manifest.held  # and this what is on disk
        self.dim = manifest.dim  # the width of a stored key
        self.query_dim = manifest.query_dim or manifest.dim  # that of the LM's, of a query before `project`
        self.weighted = manifest.weighted  # whether records stand for more than themselves
        self.slim = is_slim(self.layout, manifest.held)  # whether it was pushed without its keys
        self.files = {name: file for name, file in manifest.files.items() if not (self.slim and is_key_file(name))}
        self.bytes = sum(file.bytes for file in self.files.values())
        self._sources = functools.lru_cache(maxsize=8)(self._read_sources)
        self._open_arrays()

    def _open_arrays(self) -> None:
        """Check all files but the keys, and map the arrays."""
        manifest = self.manifest
        shards = [
            self.layout.shard(number, shard.records, self.dim, manifest.key_dtype, self.weighted)
            for number, shard in zip(manifest.shard_numbers, manifest.shards, strict=True)
        ]
        segments = [
            self.layout.segment(number).arrays(segment.tokens, segment.documents)
            for number, segment in zip(manifest.segment_numbers, manifest.segments, strict=True)
        ]
        pruned = self.layout.assign.name in manifest.files  # some positions have no record of their own
        assign = [ArrayFile(self.layout.assign, np.dtype("int32"), (manifest.tokens,))] if pruned else []
        self._probe = ArrayFile(self.layout.probe, np.dtype("float32"), (manifest.model.probe_tokens, self.query_dim))
        columns = (file for shard in shards for file in shard.values() if file.path.name in self.files)
        scales = [self.layout.scales(self.dim)] if manifest.coded and shards else []
        for file in (*columns, *(file for arrays in segments for file in arrays), *assign, self._probe, *scales):
            file.check()
        self._shards = shards
        self.values = self._open_column("values")
        self.origin = self._open_column("origin")
        self.weights = self._open_column("weights") if self.weighted else self.values.ones()
        self.assign = assign[0].open() if assign else None
        self.tokens = ShardedArray([tokens.open() for tokens, _ in segments])
        self._docs = [docs.open() for _, docs in segments]
        check_before_use(self.path, self._listed(keys=False), _REMEDY, self._check_contents)
        self.forgotten = Tombstones.open_if(manifest.forgotten, self.layout, self.document_bounds, self.origin)

    def _open_column(self, name: str) -> ShardedArray:
        """Map one array of all shards; without any it is empty."""
        if self._shards:
            return ShardedArray([shard[name].open() for shard in self._shards])
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
        keys = self._open_column("keys")
        return keys if self.codec is None else CodedKeys(keys, self.codec)

    @functools.cached_property
    def codec(self) -> KeyCodec | None:
        """What stored codes stand for; None if keys are stored as numbers, or there are none."""
        return KeyCodec.read(self.layout.scales(self.dim)) if self.manifest.coded and self._shards else None

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
        gone = "" if self.forgotten is None else f" ({len(self.forgotten):,} documents forgotten)"
        return (f"{len(self):,} records" if len(self) else f"{len(self.tokens):,} tokens without keys") + gone

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
        return checksum in (self.checksum, self.held) or (state is not None and extends(self.manifest, state))

    def learned_from(self, checksum: str, state: StoreState | None) -> bool:
        """Tell whether what was learned with a state of a store may be used with this, documents less or more."""
        known = self.manifest.compacted
        return self.continues(checksum, state) or checksum in known or (state is not None and state.lineage in known)

    def refuse_forgotten(self, why: str) -> None:
        """Refuse a store that still has forgotten documents on disk."""
        if self.forgotten is not None:
            count = len(self.forgotten)
            raise StoreError(
                f"{self.path} has {count:,} forgotten documents on disk, {why}; nearlm compact {self.path}"
            )

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
        said = self.manifest
        framing = Framing(tuple(said.bos), tuple(said.separator))
        return Reading(framing, said.window, said.window if stride is None else stride, said.pack)

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
        return load_tokenizer(self.layout.tokenizer, _REMEDY)

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
        if self.forgotten is not None and self.forgotten.holds(position):
            raise StoreError(f"position {position} is in a document that {self.path} has forgotten")
        for number, (base, tokens) in enumerate(self.tokens.parts()):
            if 0 <= position < base + len(tokens):
                starts = self._docs[number][:, 0]
                row = int(np.searchsorted(starts, position - base, side="right")) - 1
                return self._name(number, row), base + int(starts[row])
        raise IndexError(f"position {position} is outside the token stream of {len(self.tokens)} tokens")

    def document_names(self) -> list[str]:
        """Return the names of all documents, forgotten ones too."""
        return [self._name(number, row) for number, docs in enumerate(self._docs) for row in range(len(docs))]

    def document_table(self, segment: int) -> tuple[Ints, list[str]]:
        """Return the documents of a segment (first token, source, row) and its sources."""
        return self._docs[segment], self._sources(segment)

    def _name(self, segment: int, row: int) -> str:
        _, source, line = self._docs[segment][row].tolist()
        names = self._sources(segment)
        if not 0 <= source < len(names):
            place = self.layout.segment(self.manifest.segment_numbers[segment])
            raise StoreError(f"{place.docs} names source {source}, {place.sources.name} has {len(names)}; {_REMEDY}")
        return f"{names[source]}{'' if line < 0 else f':{line}'}"

    def context_of(self, record: int, before: int = 40) -> Context:
        """Trace a record to its text: up to `before` tokens of its document in front of the target."""
        return find_context(self, record, before)

    def record_at(self, position: int) -> int:
        """Return the record that stands for a position of the token stream, -1 if none does."""
        if not 0 <= position < self.manifest.tokens or (self.forgotten and self.forgotten.holds(position)):
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
        return find_positions(self, record)

    def trace(self, record: int) -> Json:
        """Say all there is to say of one record."""
        return describe_record(self, record)

    def summary(self) -> Json:
        """Say what the store holds and how it was made."""
        return summarise(self)

    @property
    def probe(self) -> Floats:
        """The model's keys of a fixed sequence."""
        return self._probe.open()

    def check_model(self, fingerprint: str, probe: Floats, tokenizer: str, name: str) -> str | None:
        """Refuse a model or tokenizer that did not make this store; return a warning if it differs slightly."""
        return check_identity(self.manifest, self.path, self.probe, (fingerprint, probe, tokenizer, name))

    def verify(self, advance: Advance | None = None) -> None:
        """Read every byte and refuse the first file that is not as it was written."""
        read_manifest(self.path)
        read_defaults(self.layout)
        self.layout.check_described()
        if self.layout.optimized.exists():
            files.read_stamped(self.layout.optimized)
        check_files(self.path, self.files, _REMEDY, every_byte=True, advance=advance)

    def _read_sources(self, segment: int) -> list[str]:
        path = self.layout.segment(self.manifest.segment_numbers[segment]).sources
        return from_json(list[str], files.read_json(path).get("sources"), path)


AnyStore = str | Path | Datastore
