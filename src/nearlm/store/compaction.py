"""Compaction: the records and tokens of forgotten documents leave the disk; what remains closes up."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearlm.base import QUIET, Array, ArrayFile, FileInfo, Ints, Reporter, StoreError, files, size, store_folder
from nearlm.store.datastore import AnyStore, Datastore
from nearlm.store.key_codes import count_clipped
from nearlm.store.layout import Layout
from nearlm.store.manifest import Manifest, SegmentInfo, ShardInfo, all_states, next_number, stamped, write_manifest
from nearlm.store.prepared import settle
from nearlm.store.tombstones import Tombstones, count_before, without
from nearlm.store.writing import announce_needs, writing

FORGOTTEN = "(forgotten)"  # in place of the name of a text
_ROWS = 1 << 14
Prepare = Callable[[Datastore, Datastore], None]  # the store, and the store as it will be
Settle = Callable[[Datastore], None]
Files = dict[str, FileInfo]


def compact_store(store: AnyStore, prepare: Prepare, clean: Settle, reporter: Reporter = QUIET) -> Datastore:
    """Write a store anew without its forgotten documents, in its own folder, by one rename of its manifest.

    `prepare` makes what belongs to the records (indexes, tables) for the store as it will be; `clean` removes what
    belonged to the store before. Killed before the rename, nothing has changed; after it, the same call cleans up.
    """
    folder = store.path if isinstance(store, Datastore) else store_folder(store)
    opened = Datastore.open(folder)  # refuses what is no store
    job = opened.layout.compact_job
    with writing(folder, job):
        opened = Datastore.open(folder)
        if opened.layout.build_job.started:
            raise StoreError(f"{folder} has an unfinished append; finish it by repeating its command, then compact")
        if opened.forgotten is None and not job.started:
            job.close()  # of which a kill may have left the folder
            reporter.say(f"{folder} has no forgotten documents on disk: nothing to do")
            return opened
        if opened.forgotten is not None:
            opened.refuse_slim()
            settle(opened)  # what a killed edit may have left
            _discard(opened)
            job.begin({"manifest": opened.checksum})
            coming = Datastore(folder, _Compaction(opened, opened.forgotten, reporter).run())
            prepare(opened, coming)
            write_manifest(folder, coming.manifest)
            opened = coming
        settle(opened)
        clean(opened)
        _discard(opened)
        job.close()
    reporter.say(f"{folder}: {opened.contents}, {size(opened.bytes)}")
    return Datastore.open(folder)


def _discard(store: Datastore) -> None:
    """Remove what is no part of a store: what a killed compaction has left, or what was there before one."""
    kept = {name.split("/")[0] for name in store.manifest.files}
    for path in store.layout.of_a_build():
        if path.name not in kept:
            files.remove(path)


class _Compaction:
    """Writes what remains of a store beside what there is, under numbers that no file has yet."""

    def __init__(self, store: Datastore, gone: Tombstones, reporter: Reporter):
        self.store = store
        self.layout: Layout = store.layout
        self.gone = gone
        self.reporter = reporter
        self.files: Files = {}

    def run(self) -> Manifest:
        """Write segments and shards; return the manifest of the store without its forgotten documents."""
        old = self.store.manifest
        self._announce()
        segments = [made for number in range(len(old.segments)) if (made := self._segment(number))]
        shards = [kept for number in range(len(old.shards)) if (kept := self._shard(number))]
        same = {name: info for name, info in old.files.items() if not self._is_numbered(name)}
        return stamped(
            replace(
                old,
                tokens=sum(segment.tokens for segment in segments),
                documents=sum(segment.documents for segment in segments),
                records=sum(shard.records for shard in shards),
                segments=segments,
                shards=shards,
                files={**same, **self.files},
                forgotten=None,
                compacted=all_states(old),
            )
        )

    def _announce(self) -> None:
        most = sum(info.bytes for name, info in self.store.manifest.files.items() if self._is_numbered(name))
        announce_needs([], most, 3e8, self.reporter, self.store.path, "free some", at_most=True)

    def _is_numbered(self, name: str) -> bool:
        return Path(name).suffix in (".npy", ".json") and name.split("-")[0] in _NUMBERED

    def _segment(self, number: int) -> SegmentInfo | None:
        """Write a segment without its forgotten documents, or take it as it is; None if nothing is left of it."""
        old = self.store.manifest
        info = old.segments[number]
        here = old.segment_numbers[number]
        first = sum(segment.documents for segment in old.segments[:number])
        base = sum(segment.tokens for segment in old.segments[:number])
        docs, sources = self.store.document_table(number)
        stays = np.array([first + row not in self.gone for row in range(len(docs))])
        if stays.all():
            self.files |= {path.name: old.files[path.name] for path in self.layout.segment(here).files}
            return replace(info, file=here)
        if not stays.any():
            return None
        new = next_number([*old.segment_numbers, *self._segment_files()])
        place = self.layout.segment(new)
        parts = list(without(self.gone.runs, base, base + info.tokens))
        tokens = sum(part.stop - part.start for part in parts)
        table = _closed_up(docs[stays], self.gone.runs - base)
        used = np.unique(table[:, 1])
        table[:, 1] = np.searchsorted(used, table[:, 1])
        stream, listed = place.arrays(tokens, len(table))
        stream.write(np.concatenate([self.store.tokens.shards[number][part] for part in parts]))
        listed.write(table)
        names = [sources[source] for source in used]
        files.write_json(place.sources, {"sources": names})
        self.files |= FileInfo.by_name(place.files)
        lost = {*sources} - {*names}
        texts = [FORGOTTEN if text in lost else text for text in info.texts]
        return replace(info, texts=texts, tokens=tokens, documents=len(table), file=new)

    def _segment_files(self) -> list[int]:
        return [int(name[7:12]) for name in self.files if name.startswith("tokens-")]

    def _shard(self, place: int) -> ShardInfo | None:
        """Write a shard without the records of forgotten documents; None if nothing is left of it."""
        old = self.store.manifest
        number = old.shard_numbers[place]
        total = old.shards[place].records
        first = sum(shard.records for shard in old.shards[:place])
        key = (self.store.dim, old.key_dtype, self.store.weighted)
        columns = self.layout.shard(number, total, *key)
        parts = list(without(self.gone.record_runs, first, first + total))
        count = sum(part.stop - part.start for part in parts)
        origin = columns["origin"].open()
        if count == total and not count_before(self.gone.runs, origin[-1:]).any():
            self.files |= {file.path.name: old.files[file.path.name] for file in columns.values()}
            return replace(old.shards[place], file=number)
        if not count:
            return None
        new = next_number([*old.shard_numbers, *(int(name[5:10]) for name in self.files if name.startswith("keys-"))])
        for name, file in self.layout.shard(new, count, *key).items():
            if name == "origin":
                rows = np.concatenate([origin[part] for part in parts])
                file.write(rows - count_before(self.gone.runs, rows))
            elif count == total:
                files.link(columns[name].path, file.path)
                self.files[file.path.name] = old.files[columns[name].path.name]
                continue
            else:
                _copy_rows(columns[name], file, parts)
            self.files[file.path.name] = FileInfo.of(file.path)
        clipped = count_clipped(self.layout.shard(new, count, *key)["keys"])
        return ShardInfo(count, clipped, new)


_NUMBERED = ("keys", "values", "origin", "weights", "tokens", "docs", "forgotten")


def _closed_up(docs: Ints, runs: Ints) -> Ints:
    """Return documents whose beginnings do not count what is gone before them."""
    table = np.array(docs)
    table[:, 0] -= count_before(runs, table[:, 0]) - count_before(runs, np.zeros(1, np.int64))[0]
    return table


def _copy_rows(old: ArrayFile, new: ArrayFile, parts: list[slice]) -> None:
    """Write the rows of some parts of an array, some at a time."""
    source: Array = old.open()

    def rows() -> Iterator[Array]:
        for part in parts:
            for start in range(part.start, part.stop, _ROWS):
                yield source[start : min(start + _ROWS, part.stop)]

    files.write_array(new.path, new.dtype, new.shape, rows())
