"""`prune_store`: let a method select records, and write what it selected as a new store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, Array, ArrayFile, FileInfo, Int32s, Json, Reporter
from nearlm.shrink import kmeans, merging, ranking
from nearlm.shrink.neighbors import index_ram, ready_index
from nearlm.shrink.options import TAKES, PruneOptions
from nearlm.shrink.selection import Selection, target
from nearlm.store import (
    BLOCK,
    DEFAULT,
    SHARD_RECORDS,
    AnyStore,
    CodedKeys,
    Datastore,
    Derivation,
    Made,
    Step,
    derive,
    is_record_file,
)


def select_random(work: Derivation, options: PruneOptions) -> Selection:
    """Keep a seeded random share of the records."""
    records = len(work.parent)
    rng = np.random.default_rng(options.seed or 0)
    chosen = rng.choice(records, target(options.keep or 1.0, records), replace=False)
    return Selection.of_survivors(np.sort(chosen), records, {})


SELECT: dict[str, Callable[[Derivation, PruneOptions], Selection]] = {
    "random": select_random,
    "kmeans": kmeans.select,
    "merge": merging.select,
    "rank": ranking.select,
}


def prune_store(
    store: AnyStore,
    options: PruneOptions,
    out: str | Path,
    *,
    restart: bool = False,
    reporter: Reporter = QUIET,
) -> Datastore:
    """Make a store with fewer records, each with the weight of what it stands for.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store; it stays as it is.
        options: By which method, and how many records stay.
        out: Folder of the store to make, or `cache:NAME`.
        restart: Throw an unfinished run away first.
        reporter: Whom to tell of the progress.

    Example:
        >>> small = nearlm.prune_store("mystore", nearlm.PruneOptions("kmeans", keep=0.5), "small")
        >>> len(small) < len(nearlm.Datastore.open("mystore"))
        True
    """
    parent = Datastore.open(store)
    searches = "index" in TAKES[options.method]
    index = options.index or DEFAULT

    def prepare() -> Json:
        return ready_index(parent, index, reporter) if searches else {}

    def work(derivation: Derivation) -> Made:
        width = parent.dim * np.dtype(parent.manifest.key_dtype).itemsize + 16
        disk = (options.keep or 1.0) * len(parent) * width + 4 * parent.manifest.tokens
        ram = 32 * len(parent) + 8 * BLOCK * width + 2e8
        ram += index_ram(parent, index) if searches else 0.0
        ram += kmeans.ram_needed(parent) if options.method == "kmeans" else 0.0
        derivation.announce(disk, ram, at_most=options.keep is None)
        return _write(derivation, SELECT[options.method](derivation, options))

    step = Step("prune", options.to_json())
    return derive(parent, out, step, work, reporter, prepare=prepare, restart=restart)


def _write(work: Derivation, selection: Selection) -> Made:
    """Write the records that stay, their weights, and which record stands for each position of the corpus."""
    parent = work.parent
    kept = len(selection.kept)
    weights = selection.weights(parent)
    weighted = bool((weights != 1).any())
    share = kept / len(parent)
    work.reporter.say(f"{kept:,} of {len(parent):,} records stay ({share:.2%})")
    assign = ArrayFile(work.layout.assign, np.dtype("int32"), (parent.manifest.tokens,))
    listed = work.take_over(lambda name: name != assign.path.name and not is_record_file(name))
    assign.write(_assign(parent, selection))
    listed[assign.path.name] = FileInfo.of(assign.path)
    shards = [min(SHARD_RECORDS, kept - first) for first in range(0, kept, SHARD_RECORDS)]
    columns = [
        work.layout.shard(number, records, parent.dim, parent.manifest.key_dtype, weighted)
        for number, records in enumerate(shards)
    ]

    def compute(rows: slice) -> Iterator[tuple[str, Array]]:
        ids = selection.kept[rows]
        yield "keys", _keys(parent, selection, rows)
        yield "values", parent.values.take(ids)
        yield "origin", parent.origin.take(ids)
        if weighted:
            yield "weights", weights[rows]

    listed |= work.fill("writing", columns, compute)
    return Made(shards, listed, {"weighted": weighted}, {"kept": round(share, 6), **selection.result})


def _keys(parent: Datastore, selection: Selection, rows: slice) -> Array:
    keys = parent.keys.codes if isinstance(parent.keys, CodedKeys) else parent.keys  # kept ones to the bit
    kept = keys.take(selection.kept[rows])
    if selection.centroids is not None:
        file, own = selection.centroids
        clustered = own[rows] >= 0
        means = file.open()[own[rows][clustered]]
        kept[clustered] = means if parent.codec is None else parent.codec.encode(means)
    return kept


def _assign(parent: Datastore, selection: Selection) -> Int32s:
    """Return, for every position of the corpus, the new record that stands for it, -1 if none does."""
    before = parent.assign
    if before is not None:
        return np.where(before >= 0, selection.stands[before], np.int32(-1))
    assign = np.full(parent.manifest.tokens, -1, np.int32)
    assign[parent.origin[:]] = selection.stands
    return assign
