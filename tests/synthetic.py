"""Stores made of given keys and values, without a model: for tests and benchmarks of what is done to stores."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from nearlm.base import ArrayFile, FileInfo, ShardedArray, files, to_json
from nearlm.store import Datastore, KeyCodec, Layout, StoreState
from nearlm.store.key_codes import count_clipped
from nearlm.store.manifest import Manifest, ModelInfo, SegmentInfo, ShardInfo, TokenizerInfo, format_of, write_manifest


def make_store(
    folder: Path,
    keys: np.ndarray | Callable[[slice], np.ndarray],
    values,
    dim: int | None = None,
    shard: int = 1 << 18,
    codec: KeyCodec | None = None,
) -> Datastore:
    """Write a store as a build would: one document, whose tokens after the first are the values.

    With a codec its keys have 8 bits.
    """
    key_dtype = "int8" if codec else "float16"
    values = np.asarray(values, np.int32)
    read = keys if callable(keys) else lambda rows: keys[rows]
    dim = dim or keys.shape[1]
    folder.mkdir(parents=True)
    listed, shards, layout = {}, [], Layout(folder)
    segment = layout.segment(0)

    def write(file: ArrayFile, data) -> None:
        with open(file.path, "wb") as out:
            out.write(file.header)
            out.write(np.ascontiguousarray(data, file.dtype).data)
        listed[file.path.name] = FileInfo.of(file.path)

    for number, first in enumerate(range(0, len(values), shard)):
        rows = slice(first, min(first + shard, len(values)))
        columns = layout.shard(number, rows.stop - rows.start, dim, key_dtype)
        write(columns["keys"], codec.encode(read(rows).astype(np.float32)) if codec else read(rows))
        write(columns["values"], values[rows])
        write(columns["origin"], np.arange(rows.start, rows.stop) + 1)
        shards.append(ShardInfo(rows.stop - rows.start, count_clipped(columns["keys"])))
    if codec:
        write(layout.scales(dim), [codec.middle, codec.step])
    write(ArrayFile(segment.tokens, np.dtype("int32"), (len(values) + 1,)), np.append(np.int32(0), values))
    write(ArrayFile(segment.docs, np.dtype("int64"), (1, 3)), [[0, 0, -1]])
    files.write_json(segment.sources, {"sources": ["made up"]})
    listed[segment.sources.name] = FileInfo.of(segment.sources)
    write(ArrayFile(layout.probe, np.dtype("float32"), (32, dim)), np.ones((32, dim)))
    tokens = len(values) + 1
    manifest = Manifest(
        format=format_of(key_dtype, with_keys=True),
        model=ModelInfo("none", None, None, None, None, None, fingerprint="", probe_tokens=32, dtype=""),
        tokenizer=TokenizerInfo(""),
        key_tap="none",
        dim=dim,
        key_dtype=key_dtype,
        window=8,
        stride=8,
        pack=False,
        bos=[],
        separator=[],
        separator_option="none",
        tokens=tokens,
        documents=1,
        records=len(values),
        segments=[SegmentInfo([], [], 0, tokens, 1, "")],
        shards=shards,
        files=listed,
    )
    write_manifest(folder, manifest)
    return Datastore.open(folder)


def cut_documents(store: Datastore, lengths: list[int]) -> Datastore:
    """Cut the one document of a made-up store into several of so many tokens, called a, b, c and so on."""
    segment = store.layout.segment(0)
    names = [chr(ord("a") + number) for number in range(len(lengths))]
    starts = np.cumsum([0, *lengths[:-1]])
    table = np.stack([starts, np.arange(len(lengths)), np.full(len(lengths), -1)], axis=1)
    segment.arrays(0, len(lengths))[1].write(table)
    files.write_json(segment.sources, {"sources": names})
    old = store.manifest
    listed = {**old.files, **FileInfo.by_name([segment.docs, segment.sources])}
    segments = [replace(old.segments[0], documents=len(lengths))]
    write_manifest(store.path, replace(old, documents=len(lengths), segments=segments, files=listed))
    return Datastore.open(store.path)


def skewed_store(folder: Path, *, coded: bool = False) -> Datastore:
    """Write a store whose keys vary much along some axes and little along others."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(0, 1, (12, 12)) * np.geomspace(1, 0.05, 12)[:, None]
    keys = (rng.normal(0, 1, (500, 12)) @ mixing + 3).astype(np.float16)
    codec = KeyCodec.fit(keys) if coded else None
    return make_store(folder, keys, rng.integers(0, 9, 500), shard=200, codec=codec)


def fake_store(folder: Path, documents: list[list[int]], segments: int = 1) -> SimpleNamespace:
    """Return all of a store that n-grams are made from: a token stream, its documents, and which state that is."""
    stream = np.array([token for document in documents for token in document], np.int32)
    bounds = np.cumsum([0, *map(len, documents)])
    parts = [part for part in np.array_split(stream, segments) if len(part)]
    checksum = files.canonical_hash([stream.tolist(), bounds.tolist()])

    def continues(earlier: str, state: StoreState | None) -> bool:
        begun = stream[: state.tokens].tolist() if state and 0 < state.segments <= len(parts) else None
        return earlier == checksum or (begun is not None and state.lineage == files.canonical_hash(begun))

    return SimpleNamespace(
        path=folder,
        layout=Layout(folder),
        tokens=ShardedArray(parts),
        document_bounds=bounds,
        checksum=checksum,
        held=checksum,
        forgotten=None,
        manifest=SimpleNamespace(forgotten=None),
        state=StoreState(len(parts), len(stream), 0, files.canonical_hash(stream.tolist())),
        continues=continues,
    )


def forge(description: Path, array: Path, change: Callable[[np.ndarray], None]) -> None:
    """Change an array as somebody would who also corrects the checksums of it in the JSON that lists it."""
    data = np.load(array)
    change(data)
    array.write_bytes(files.npy_header(data.dtype, data.shape) + data.tobytes())
    noted = files.read_stamped(description)
    name = array.relative_to(description.parent).as_posix()
    info = to_json(FileInfo.of(array))
    if "files" in noted:
        noted["files"][name] = info
    else:
        noted["file"] = info
    files.write_stamped(description, noted)


def put(where: object, value: int) -> Callable[[np.ndarray], None]:
    """Return what puts a number somewhere in an array."""
    return lambda data: data.__setitem__(where, value)
