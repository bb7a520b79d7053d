"""What a build, an append, or keys for a text add to a manifest."""

from dataclasses import replace

from nearlm.base import FileInfo
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, SegmentInfo, ShardInfo, next_number
from nearlm.text import TokenStream

Shards = list[tuple[dict[str, FileInfo], ShardInfo]]  # each one's files, and what it holds


def add_segment(manifest: Manifest, layout: Layout, stream: TokenStream, texts: list[str], plan: str) -> Manifest:
    """Add a token stream, whose files have the next number, to what a store holds."""
    number = next_number(manifest.segment_numbers)
    counts = (stream.read, stream.tokens, stream.documents)
    file = None if number == len(manifest.segments) else number
    return replace(
        manifest,
        tokens=manifest.tokens + stream.tokens,
        documents=manifest.documents + stream.documents,
        segments=[*manifest.segments, SegmentInfo(texts, stream.sha256, *counts, plan, file)],
        files={**manifest.files, **FileInfo.by_name(layout.segment(number).files)},
    )


def add_shards(manifest: Manifest, shards: Shards) -> Manifest:
    """Add shards, whose files have the next numbers, to what a store holds."""
    first = next_number(manifest.shard_numbers)
    place = len(manifest.shards)
    made = [replace(info, file=None if first == place else first + n) for n, (_, info) in enumerate(shards)]
    return replace(
        manifest,
        records=manifest.records + sum(shard.records for shard in made),
        shards=[*manifest.shards, *made],
        files=_merged(manifest.files, shards),
        forgotten=manifest.forgotten and replace(manifest.forgotten, held=""),  # more is on disk now
    )


def _merged(listed: dict[str, FileInfo], shards: Shards) -> dict[str, FileInfo]:
    merged = dict(listed)
    for made, _ in shards:
        merged |= made
    return merged
