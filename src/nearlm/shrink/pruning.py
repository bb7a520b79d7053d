"""`prune_store`: choose a method, let it select, and write what it selected as a new store."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nearlm.base import ArrayFile, Json, OptionError, Reporter, files
from nearlm.shrink import kmeans, random
from nearlm.shrink import merging as merge
from nearlm.shrink import ranking as rank
from nearlm.shrink.selection import Selection, Work
from nearlm.store import ASSIGN, BLOCK, RECORD_FILES, Datastore, Derivation, Made, derive, describe, shard_files

SHARD_RECORDS = 1 << 18


class Method(NamedTuple):
    """A way to prune: its options, and the function that selects records."""

    options: Any
    select: Any


METHODS = {
    "random": Method(random.RandomOptions, random.select),
    "kmeans": Method(kmeans.KmeansOptions, kmeans.select),
    "merge": Method(merge.MergeOptions, merge.select),
    "rank": Method(rank.RankOptions, rank.select),
}


def prune_store(
    store: str | Path | Datastore,
    method: str,
    out: str | Path,
    *,
    restart: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Datastore:
    """Make a store with fewer records; `options` are those of the method (`keep`, `neighbors`, `ratio` …)."""
    chosen = _options(method, {name: value for name, value in options.items() if value is not None})
    parent = store if isinstance(store, Datastore) else Datastore.open(store)
    step = {"command": "prune", "options": {"method": method, **asdict(chosen)}}
    reporter = Reporter(quiet)

    def prepare() -> Json:
        made = getattr(chosen, "prepare", None)
        return made(parent, reporter) if made else {}

    def work(derivation: Derivation) -> Made:
        _announce(derivation, chosen)
        selection = METHODS[method].select(Work(parent, derivation.job, reporter), chosen)
        return _write(derivation, selection)

    return derive(parent, out, step, work, reporter, prepare=prepare, restart=restart)


def _options(method: str, given: dict[str, Any]) -> Any:
    if method not in METHODS:
        raise OptionError(f"--method is {method!r}, expected one of {', '.join(METHODS)}")
    made = METHODS[method].options
    known = [field.name for field in fields(made)]
    for name in given:
        if name not in known:
            takes = ", ".join(f"--{each.replace('_', '-')}" for each in known)
            raise OptionError(f"--{name.replace('_', '-')} means nothing to --method {method}; it takes {takes}")
    if "keep" not in given and method in ("random", "rank"):
        raise OptionError(f"--method {method} needs --keep, the share of the records that stay, e.g. --keep 0.6")
    return made(**given)


def _announce(work: Derivation, options: Any) -> None:
    parent, keep = work.parent, getattr(options, "keep", None)
    width = parent.dim * parent.keys.dtype.itemsize + 16
    disk = (keep or 1.0) * len(parent) * width + 4 * parent.manifest["tokens"]
    ram = 32 * len(parent) + 8 * BLOCK * width + 2e8
    work.announce(disk, ram + options.ram(parent), at_most=keep is None)


def _write(work: Derivation, selection: Selection) -> Made:
    """Write the records that stay, their weights, and which record stands for each position of the corpus."""
    parent, kept = work.parent, len(selection.kept)
    weights = selection.weights(parent)
    weighted = bool((weights != 1).any())
    share = kept / len(parent)
    work.reporter.say(f"{kept:,} of {len(parent):,} records stay ({share:.2%})")
    names = [name for name in parent.manifest["files"] if name != ASSIGN and not name.startswith(RECORD_FILES)]
    listed = work.take_over(names)
    assign = ArrayFile(work.folder / ASSIGN, np.dtype("int32"), (parent.manifest["tokens"],))
    files.write_bytes(assign.path, assign.header + _assigned(parent, selection).tobytes())
    listed[ASSIGN] = describe(assign.path)
    shards = [min(SHARD_RECORDS, kept - first) for first in range(0, kept, SHARD_RECORDS)]
    with work.reporter.bar("writing", kept, "records") as advance:
        for number, records in enumerate(shards):
            columns = shard_files(work.folder, number, records, parent.dim, str(parent.keys.dtype), weighted)

            def compute(rows: slice, first: int = number * SHARD_RECORDS) -> Iterator[tuple[str, npt.NDArray[Any]]]:
                rows = slice(first + rows.start, first + rows.stop)
                ids = selection.kept[rows]
                yield "keys", _keys(parent, selection, rows)
                yield "values", parent.values.take(ids)
                yield "origin", parent.origin.take(ids)
                if weighted:
                    yield "weights", weights[rows]

            listed |= work.fill(f"shard-{number:05d}", columns, compute, advance)
    return Made(shards, listed, {"weighted": weighted}, {"kept": round(share, 6), **selection.result})


def _keys(parent: Datastore, selection: Selection, rows: slice) -> npt.NDArray[Any]:
    keys = parent.keys.take(selection.kept[rows])
    if selection.centroids is not None:
        file, own = selection.centroids
        clustered = own[rows] >= 0
        keys[clustered] = file.open()[own[rows][clustered]]
    return keys


def _assigned(parent: Datastore, selection: Selection) -> npt.NDArray[np.int32]:
    """Return, for every position of the corpus, the new record that stands for it, -1 if none does."""
    before = parent.assign
    if before is not None:
        return np.where(before >= 0, selection.stands[before], np.int32(-1))
    assign = np.full(parent.manifest["tokens"], -1, np.int32)
    first = 0
    for origin in parent.origin.shards:
        assign[origin] = selection.stands[first : first + len(origin)]
        first += len(origin)
    return assign
