"""What the numbers of arrays may be: whatever is used as an index somewhere lies within what it indexes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nearlm.base import Array, Ids, blocks, check_that

if TYPE_CHECKING:
    from nearlm.store.datastore import Datastore

MOST_TOKENS = 1 << 22  # no vocabulary is larger
_BLOCK = 1 << 20


def check_ids(ids: Ids, path: Path, least: int, end: int, what: str) -> None:
    """Refuse an array with a number outside `least` to `end` - 1."""
    for rows in blocks(len(ids), _BLOCK):
        part = ids[rows]
        check_that(part.min() >= least and part.max() < end, path, what)


def check_tokens(tokens: Ids, path: Path) -> None:
    """Refuse an array with a number that cannot be a token."""
    check_ids(tokens, path, 0, MOST_TOKENS, "tokens of a vocabulary")


def check_places(places: Ids, path: Path, end: int, what: str) -> None:
    """Refuse an array that does not ascend, or with a place outside 0 to `end`."""
    check_ids(places, path, 0, end + 1, what)
    for rows in blocks(len(places), _BLOCK):
        check_that((np.diff(places[rows.start : rows.stop + 1]) >= 0).all(), path, what)


def check_records(store: "Datastore") -> None:
    """Refuse records that no vocabulary, position or number of positions belongs to."""
    for path, values in _files(store, "values"):
        check_tokens(values, path)
    for path, origin in _files(store, "origin"):
        check_places(origin, path, len(store.tokens) - 1, "ascending positions of the token stream")
    for path, weights in _files(store, "weights") if store.weighted else ():
        check_ids(weights, path, 1, 1 << 31, "weights of records")
    if store.assign is not None:
        check_ids(store.assign, store.layout.assign, -1, len(store), "ids of records")


def check_segment(store: "Datastore", number: int, docs: Array, sources: list[Any]) -> None:
    """Refuse tokens that no vocabulary has, and documents outside the token stream or without a source."""
    segment = store.layout.segment(store.manifest.segment_numbers[number])
    tokens = store.tokens.shards[number]
    check_tokens(tokens, segment.tokens)
    check_places(docs[:, 0], segment.docs, len(tokens), "where documents begin")
    check_that(len(docs) and docs[0, 0] == 0, segment.docs, "where documents begin")
    check_ids(docs[:, 1], segment.docs, 0, len(sources), "numbers of sources")


def _files(store: "Datastore", column: str) -> Iterator[tuple[Path, Array]]:
    numbers = store.manifest.shard_numbers or [0]  # a store without keys has an empty column
    for number, part in zip(numbers, getattr(store, column).shards, strict=True):
        yield store.path / f"{column}-{number:05d}.npy", part
