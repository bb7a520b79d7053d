"""Stores made of given keys and values, without a model: for tests and benchmarks of what is done to stores."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from nearlm.base import files
from nearlm.base.arrays import ArrayFile
from nearlm.store.datastore import FORMAT, PROBE, Datastore, describe, shard_files, write_manifest
from nearlm.text.tokens import Segment


def make_store(
    folder: Path, keys: np.ndarray | Callable[[slice], np.ndarray], values, dim: int | None = None, shard: int = 1 << 18
) -> Datastore:
    """Write a store as a build would: one document, whose tokens after the first are the values."""
    values = np.asarray(values, np.int32)
    read = keys if callable(keys) else lambda rows: keys[rows]
    dim = dim or keys.shape[1]
    folder.mkdir(parents=True)
    listed, shards, segment = {}, [], Segment(folder, 0)

    def write(file: ArrayFile, data) -> None:
        with open(file.path, "wb") as out:
            out.write(file.header)
            out.write(np.ascontiguousarray(data, file.dtype).data)
        listed[file.path.name] = describe(file.path)

    for number, first in enumerate(range(0, len(values), shard)):
        rows = slice(first, min(first + shard, len(values)))
        columns = shard_files(folder, number, rows.stop - rows.start, dim, "float16")
        write(columns["keys"], read(rows))
        write(columns["values"], values[rows])
        write(columns["origin"], np.arange(rows.start, rows.stop) + 1)
        shards.append({"records": rows.stop - rows.start})
    write(ArrayFile(segment.tokens, np.dtype("int32"), (len(values) + 1,)), np.append(np.int32(0), values))
    write(ArrayFile(segment.docs, np.dtype("int64"), (1, 3)), [[0, 0, -1]])
    files.write_json(segment.sources, {"sources": ["made up"]})
    listed[segment.sources.name] = describe(segment.sources)
    write(ArrayFile(folder / PROBE, np.dtype("float32"), (32, dim)), np.ones((32, dim)))
    model = {"name": "none", "revision": None, "quantization": None, "adapter": None, "fingerprint": "", "dtype": ""}
    manifest = {
        "format": FORMAT,
        "model": {**model, "name_path": None, "adapter_path": None, "probe_tokens": 32},
        "tokenizer": {"fingerprint": ""},
        **{"key_tap": "none", "dim": dim, "key_dtype": "float16", "window": 8, "stride": 8, "pack": False},
        **{"bos": [], "separator": [], "separator_option": "none"},
        **{"tokens": len(values) + 1, "documents": 1, "records": len(values)},
        "segments": [{"texts": [], "sha256": "", "read": 0, "tokens": len(values) + 1, "documents": 1, "plan": ""}],
        **{"shards": shards, "files": listed, "parent": None, "transforms": []},
    }
    write_manifest(folder, manifest)
    return Datastore.open(folder)
