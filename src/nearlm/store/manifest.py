"""The manifest: what a store holds, how it was made, and the checksum of each of its files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nearlm.base import FileInfo, Json, StoreError, canonical_hash, check_names, files, read_record, to_json
from nearlm.base.records import write_record
from nearlm.store.key_codes import INT8
from nearlm.store.layout import KEY_DTYPES, Layout, is_plain, is_record_file

FORMAT = 1
WITHOUT_KEYS = 2  # of a store of text alone: versions that need keys ask for an upgrade
CODED_KEYS = 3  # of a store of 8-bit keys, or of text for which such keys are wanted
EDITED = 4  # of one with forgotten documents: versions that would show them ask for an upgrade
_GROWING = ("format", "tokens", "documents", "records", "segments", "shards", "files", "checksum")  # with an append
_EDITS = ("forgotten", "compacted")
_MOST_FILES = 100_000  # that a column has: their numbers have five digits


@dataclass(frozen=True)
class SegmentInfo:
    """One build's or append's text: its names, the checksum of each, and a hash of all that was requested.

    `file` is the number in its files' names, its place among the segments unless it is said.
    """

    texts: list[str]
    sha256: list[str]
    read: int
    tokens: int
    documents: int
    plan: str
    file: int | None = None


@dataclass(frozen=True)
class ShardInfo:
    """One run of records, and how many numbers of its keys lie beyond what their 8 bits reach.

    `file` is as that of a segment.
    """

    records: int
    clipped: int = 0
    file: int | None = None


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
class Forgotten:
    """Documents that are still on disk but that nobody may meet: the file of their numbers, and how many there are.

    `held` is the checksum that the manifest had without them, or would have: what indexes of these records name.
    """

    file: str
    documents: int
    held: str


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
    forgotten: Forgotten | None = None
    compacted: list[str] = field(default_factory=list)  # hashes of states that differ by forgotten documents alone
    checksum: str = ""

    @property
    def coded(self) -> bool:
        """Whether keys are kept as 8-bit codes."""
        return self.key_dtype == INT8

    @property
    def clipped(self) -> int:
        """How many numbers in keys lie beyond what their 8 bits reach."""
        return sum(shard.clipped for shard in self.shards)

    @property
    def held(self) -> str:
        """What tells the records and tokens on disk from all others, whatever was forgotten of them."""
        return self.forgotten.held if self.forgotten else self.checksum

    @property
    def numbered(self) -> bool:
        """Whether some files have numbers of their own."""
        return any(one.file is not None for one in self.segments) or any(one.file is not None for one in self.shards)

    @property
    def segment_numbers(self) -> list[int]:
        """The numbers in the names of the segments' files."""
        return _numbers(self.segments)

    @property
    def shard_numbers(self) -> list[int]:
        """The numbers in the names of the shards' files."""
        return _numbers(self.shards)


def _numbers(parts: Sequence[SegmentInfo | ShardInfo]) -> list[int]:
    return [place if part.file is None else part.file for place, part in enumerate(parts)]


def next_number(numbers: Sequence[int]) -> int:
    """Return a number that no file has yet."""
    return max(numbers, default=-1) + 1


def stamped(manifest: Manifest) -> Manifest:
    """Return a manifest with the format that it needs, and the checksum that it will have on disk.

    With forgotten documents it also says which checksum it would have without them, unless that is known.
    """
    edited = manifest.forgotten or manifest.numbered
    plain = format_of(manifest.key_dtype, with_keys=bool(manifest.records))
    whole = replace(manifest, format=EDITED if edited else plain)
    if whole.forgotten and not whole.forgotten.held:
        held = _checksum(replace(whole, forgotten=None))
        whole = replace(whole, forgotten=replace(whole.forgotten, held=held))
    return replace(whole, checksum=_checksum(whole))


def _checksum(manifest: Manifest) -> str:
    return str(json.loads(files.stamped_bytes(to_json(manifest)))["checksum"])


@dataclass(frozen=True)
class StoreState:
    """What a store held when something was made from it; appends, and keys for its text, extend that state."""

    segments: int
    tokens: int
    records: int
    lineage: str


def format_of(key_dtype: str, *, with_keys: bool) -> int:
    """Return the version of the format that a store has."""
    if key_dtype == INT8:
        return CODED_KEYS
    return FORMAT if with_keys else WITHOUT_KEYS


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
    later = {path.name for number in manifest.segment_numbers[segments:] for path in layout.segment(number).files}
    later |= {manifest.forgotten.file} if manifest.forgotten else set()
    later.add(layout.scales(manifest.dim).path.name)  # which come with the keys
    kept = {name: file for name, file in manifest.files.items() if not (is_record_file(name) or name in later)}
    how = {name: value for name, value in to_json(manifest).items() if name not in (*_GROWING, *_EDITS)}
    return canonical_hash([how, [_described(one) for one in manifest.segments[:segments]], to_json(kept)])


def _described(segment: SegmentInfo) -> Json:
    """Return what is said of a segment, as before there were numbers of files where it has none."""
    said: Json = to_json(segment)
    return said if segment.file is not None else {name: value for name, value in said.items() if name != "file"}


def all_states(manifest: Manifest) -> list[str]:
    """Return hashes of all states that a store extends: its own, those before each append, those before compactions."""
    own = {_lineage(manifest, count) for count in range(1, len(manifest.segments) + 1)}
    return sorted({*own, manifest.checksum, manifest.held, *manifest.compacted})


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
    if isinstance(version, int) and version > EDITED:
        raise StoreError(f"{folder} has format {version}, this nearlm reads up to {EDITED}; upgrade nearlm")
    manifest = read_record(Manifest, layout.manifest)
    _check(manifest, layout)
    return manifest


def _check(manifest: Manifest, layout: Layout) -> None:
    """Refuse counts that do not add up, and any file that is none of this store's."""
    parts: list[tuple[list[Any], str]] = [(manifest.segments, "tokens"), (manifest.segments, "documents")]
    if manifest.shards or manifest.records or manifest.format == FORMAT:
        parts.append((manifest.shards, "records"))
    for several, name in parts:
        counts = [getattr(part, name) for part in several]
        if min(counts, default=0) < 1 or sum(counts) != getattr(manifest, name):
            raise StoreError(f"{layout.manifest} has {name} that do not add up; restore it or build the store again")
    if manifest.key_dtype not in KEY_DTYPES or min(manifest.dim, manifest.window, manifest.stride) < 1:
        raise StoreError(f"{layout.manifest} describes keys or windows that cannot be; restore it or build again")
    _check_edits(manifest, layout)
    needed = _needed(manifest, layout)
    optional = {layout.transform.name, layout.assign.name}
    tokenizer = f"{layout.tokenizer.name}/"
    own = {name for name in manifest.files if name.startswith(tokenizer) and is_plain(name.removeprefix(tokenizer))}
    check_names(layout.manifest, manifest.files, needed | optional | own)
    check_names(layout.manifest, needed, manifest.files)


def _check_edits(manifest: Manifest, layout: Layout) -> None:
    """Refuse numbers of files that cannot be, and forgotten documents that there are not or that old versions show."""
    sound = manifest.format == EDITED or not (manifest.numbered or manifest.forgotten)
    for numbers in (manifest.segment_numbers, manifest.shard_numbers):
        sound = sound and len({*numbers}) == len(numbers) and all(0 <= one < _MOST_FILES for one in numbers)
    sound = sound and manifest.shard_numbers == sorted(manifest.shard_numbers)
    if manifest.forgotten:
        sound = sound and 0 < manifest.forgotten.documents < manifest.documents
        layout.forgotten(manifest.forgotten.file, manifest.forgotten.documents)  # refuses other names
    if not sound:
        raise StoreError(f"{layout.manifest} describes edits that cannot be; restore it or build the store again")


def _needed(manifest: Manifest, layout: Layout) -> set[str]:
    """Return the names of the files that a store with this manifest has at least."""
    key = (manifest.dim, manifest.key_dtype, manifest.weighted)
    counted = zip(manifest.shard_numbers, manifest.shards, strict=True)
    shards = [layout.shard(number, part.records, *key) for number, part in counted]
    segments = [layout.segment(number) for number in manifest.segment_numbers]
    arrays = {file.path.name for columns in shards for file in columns.values()}
    arrays |= {manifest.forgotten.file} if manifest.forgotten else set()
    arrays |= {layout.scales(manifest.dim).path.name} if manifest.coded and shards else set()
    return arrays | {path.name for segment in segments for path in segment.files} | {layout.probe.name}
