"""What a store holds and how it was made, in plain values."""

from typing import TYPE_CHECKING

from nearlm.base import Json

if TYPE_CHECKING:
    from nearlm.store.datastore import Datastore


def summarise(store: "Datastore") -> Json:
    """Say what the store holds and how it was made."""
    manifest = store.manifest
    names = ("records", "dim", "key_dtype", "tokens", "documents", "window", "stride", "pack", "key_tap")
    return {
        "store": store.path.name,
        **{name: getattr(manifest, name) for name in names},
        "model": manifest.model.name,
        "model_dtype": manifest.model.dtype,
        "texts": [text for segment in manifest.segments for text in segment.texts],
        "indexes": store.indexes,
        "gates": store.gates,
        "mixtures": store.mixtures,
        "defaults": {name: getattr(store.defaults, name) for name in ("index", "mixture", "gate", "skip")},
        "shards": len(manifest.shards),
        "bytes": store.bytes,
        "clipped": manifest.clipped if manifest.coded else None,
        "bytes_per_record": round(store.bytes / len(store)) if len(store) else None,
        "slim": store.slim,
        "forgotten_on_disk": len(store.forgotten) if store.forgotten else 0,
        "unfinished_compaction": store.layout.compact_job.started,
        "unfinished_append": store.layout.build_job.started,
        "weighted": store.weighted,
        "parent": manifest.parent and manifest.parent.name,
        "made_by": "; ".join(map(str, manifest.transforms)) or None,
        "checksum": manifest.checksum,
    }
