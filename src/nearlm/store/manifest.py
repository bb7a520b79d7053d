"""The manifest: what a store holds, how it was made, and the checksum of each of its files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearlm.base import FileInfo, Json, StoreError, canonical_hash, check_names, files, read_record, to_json
from nearlm.base.records import write_record
from nearlm.store.layout import KEY_DTYPES, Layout, is_plain, is_record_file

FORMAT = 1
WITHOUT_KEYS = 2  # of a store of text alone: versions that need keys ask for an upgrade
_GROWING = ("format", "tokens", "documents", "records", "segments", "shards", "files", "checksum")  # with an append


@dataclass(frozen=True)
class SegmentInfo:
    """One build's or append's text: its names, the checksum of each, and a hash of all that was requested."""

    texts: list[str]
    sha256: list[str]
    read: int
    tokens: int
    documents: int
    plan: str


@dataclass(frozen=True)
class ShardInfo:
    """One run of records."""

    records: int


@dataclass(frozen=True)
class ModelInfo:
    """The model that made the keys; a local one has a path, as seen from the store's folder."""

    name: str
    name_path: str | None
    revision: str | None
    quantization: str | None
    adapter: str | None
    adapter_path: str | None
    fingerprint: str
    probe_tokens: int
    dtype: str
    trust_remote_code: bool = False


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer that made the tokens."""

    fingerprint: str


@dataclass(frozen=True)
class ParentInfo:
    """The store that a store was made from: its name, its path as seen from the store's folder, its checksum."""

    name: str
    path: str
    checksum: str


@dataclass(frozen=True)
class Step:
    """One step of a derived store's making: the command, its options, and what it has to report."""

    command: str
    options: Json
    result: Json = field(default_factory=dict, compare=False)  # two steps that ask for the same are equal

    def __str__(self) -> str:
        """Write the step as its command line."""
        said = [self.command]
        for name, value in self.options.items():
            if value is not None and value is not False:
                said += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return " ".join(said)


@dataclass(frozen=True)
class Manifest:
    """All that is known of a store without reading its arrays."""

    format: int
    model: ModelInfo
    tokenizer: TokenizerInfo
    key_tap: str
    dim: int
    key_dtype: str
    window: int
    stride: int
    pack: bool
    bos: list[int]
    separator: list[int]
    separator_option: str
    tokens: int
    documents: int
    records: int
    segments: list[SegmentInfo]
    shards: list[ShardInfo]
    files: dict[str, FileInfo]
    parent: ParentInfo | None = None
    transforms: list[Step] = field(default_factory=list)
    query_dim: int | None = None
    weighted: bool = False
    checksum: str = ""


@dataclass(frozen=True)
class StoreState:
    """What a store held when something was made from it; appends, and keys for its text, extend that state."""

    segments: int
    tokens: int
    records: int
    lineage: str


def state_of(manifest: Manifest) -> StoreState:
    """Return what a store holds, in a few numbers and a hash."""
    segments = len(manifest.segments)
    return StoreState(segments, manifest.tokens, manifest.records, _lineage(manifest, segments))


def extends(manifest: Manifest, state: StoreState) -> bool:
    """Tell whether a store is in a state, or came from it by nothing but appends or keys for its text."""
    grown = 0 < state.segments <= len(manifest.segments) and state.records <= manifest.records
    return grown and _lineage(manifest, state.segments) == state.lineage


def _lineage(manifest: Manifest, segments: int) -> str:
    """Hash how a store is made, from what, and its first segments: all that stays the same when text is appended."""
    layout = Layout(Path())
    later = {path.name for number in range(segments, len(manifest.segments)) for path in layout.segment(number).files}
    kept = {name: file for name, file in manifest.files.items() if not (is_record_file(name) or name in later)}
    how = {name: value for name, value in to_json(manifest).items() if name not in _GROWING}
    return canonical_hash([how, to_json(manifest.segments[:segments]), to_json(kept)])


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Finish a store: with this, and only with this, the folder is one."""
    write_record(Layout(folder).manifest, manifest)


def read_manifest(folder: Path) -> Manifest:
    """Read and check a store's manifest."""
    layout = Layout(folder)
    if not folder.exists():
        make = f"nearlm build `model=…` `text=…` `out={folder}`, or build()"
        raise StoreError(f"{folder} does not exist; make a store with: {make}")
    if not folder.is_dir():
        raise StoreError(f"{folder} is a file, expected the folder of a store")
    files.check_links(folder)
    if not layout.is_store:
        if layout.build_job.started:
            raise StoreError(f"{folder} is an unfinished build; finish it by repeating its `nearlm build` command")
        if layout.derive_job.started:
            command = f"nearlm {layout.derive_job.plan().get('command', 'reduce or prune')}"
            raise StoreError(f"{folder} is unfinished; finish it by repeating its `{command}` command")
        name = layout.manifest.name
        raise StoreError(f"{folder} has no {name}, so it is not a store; expected a folder made by `nearlm build`")
    version = files.read_json(layout.manifest).get("format")
    if isinstance(version, int) and version > WITHOUT_KEYS:
        raise StoreError(f"{folder} has format {version}, this nearlm reads up to {WITHOUT_KEYS}; upgrade nearlm")
    manifest = read_record(Manifest, layout.manifest)
    _check(manifest, layout)
    return manifest


def _check(manifest: Manifest, layout: Layout) -> None:
    """Refuse counts that do not add up, and any file that is none of this store's."""
    parts: list[tuple[list[Any], str]] = [(manifest.segments, "tokens"), (manifest.segments, "documents")]
    if manifest.shards or manifest.records or manifest.format != WITHOUT_KEYS:
        parts.append((manifest.shards, "records"))
    for several, name in parts:
        counts = [getattr(part, name) for part in several]
        if min(counts, default=0) < 1 or sum(counts) != getattr(manifest, name):
            raise StoreError(f"{layout.manifest} has {name} that do not add up; restore it or build the store again")
    if manifest.key_dtype not in KEY_DTYPES or min(manifest.dim, manifest.window, manifest.stride) < 1:
        raise StoreError(f"{layout.manifest} describes keys or windows that cannot be; restore it or build again")
    needed = _needed(manifest, layout)
    optional = {layout.transform.name, layout.assign.name}
    tokenizer = f"{layout.tokenizer.name}/"
    own = {name for name in manifest.files if name.startswith(tokenizer) and is_plain(name.removeprefix(tokenizer))}
    check_names(layout.manifest, manifest.files, needed | optional | own)
    check_names(layout.manifest, needed, manifest.files)


def _needed(manifest: Manifest, layout: Layout) -> set[str]:
    """Return the names of the files that a store with this manifest has at least."""
    key = (manifest.dim, manifest.key_dtype, manifest.weighted)
    shards = [layout.shard(number, part.records, *key) for number, part in enumerate(manifest.shards)]
    segments = [layout.segment(number) for number in range(len(manifest.segments))]
    arrays = {file.path.name for columns in shards for file in columns.values()}
    return arrays | {path.name for segment in segments for path in segment.files} | {layout.probe.name}
