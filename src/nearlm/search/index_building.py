"""Make an index of a store: train on a sample, fill block by block, measure, as a job that resumes after a kill."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nearlm.base import Job, OptionError, StoreError, files
from nearlm.base.progress import QUIET, Reporter, duration, size
from nearlm.base.records import FileInfo, to_json, write_record
from nearlm.search.exact import measure
from nearlm.search.index import (
    IndexInfo,
    Measurement,
    SearchIndex,
    load_parts,
    read_index_info,
    read_parts,
    tune_again,
    write_parts,
)
from nearlm.search.kinds import AUTO, IndexSpec, check_numbers, choose_index, code_bytes_within, describe
from nearlm.search.parts import BLOCK, FillParts, can_part, join_parts, plan_parts
from nearlm.search.training import empty_index, train_index, training_ram
from nearlm.store import DEFAULT, AnyStore, Datastore, is_key_file, read_tuned
from nearlm.store.prepared import current_description

HARDLY_MORE = 1.1  # times the records: what was measured of an index holds for the one with these added
INDEX_SAVE_SECONDS = 60.0


def build_index(
    store: AnyStore,
    factory: str | None = None,
    *,
    name: str = DEFAULT,
    nprobe: int | None = None,
    bytes: int | None = None,
    ram: int | None = None,
    fill_parts: FillParts | None = None,
    reporter: Reporter = QUIET,
) -> IndexInfo:
    """Make a search index over a store's keys, finish one, or bring it up to date after an append.

    Args:
        store: Folder of a store, `cache:NAME`, or an open store.
        factory: `auto`, `paper` (as the paper's), `flat` (exact), or a FAISS factory string. By default `auto`, or
            what the index is already.
        name: Name of the index; a store can have several.
        nprobe: Lists that a search looks at.
        bytes: For `auto`: how many bytes the code of a record may have.
        ram: For `auto`: how many bytes the whole index may have.
        fill_parts: Who assigns and encodes records, if others do, as `nearlm.cluster` has it.
        reporter: Whom to tell of the progress.

    Returns:
        What the index is made of, its size, and its measured recall and speed.

    Example:
        >>> nearlm.build_index("mystore").records == len(nearlm.Datastore.open("mystore"))
        True
    """
    opened = Datastore.open(store)
    opened.need_keys()
    folder = opened.layout.index(name).folder
    with _folder_of(folder), files.lock(folder):
        if ram is not None:
            bytes = min(bytes or opened.dim, code_bytes_within(ram, len(opened), opened.dim))
        return _Indexer(opened, name, fill_parts, reporter).run(factory, nprobe, bytes)


def prepare_index(coming: Datastore, name: str, reporter: Reporter = QUIET) -> None:
    """Add new records to an index of a store as it will be; it takes effect with the store's manifest."""
    with files.lock(coming.layout.index(name).folder):
        _Indexer(coming, name, None, reporter, prepared=True).run(None, None)


@contextlib.contextmanager
def _folder_of(folder: Path) -> Iterator[None]:
    """Make the folder of an index; an index that cannot be made leaves none behind."""
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except (OptionError, StoreError):
        if new:
            files.remove(folder)
            with contextlib.suppress(OSError):  # other indexes lie there
                folder.parent.rmdir()
        raise


class _Indexer:
    """One index under construction; what is prepared for the next state of a store leaves the one in use as it is."""

    def __init__(
        self, store: Datastore, name: str, fill_parts: FillParts | None, reporter: Reporter, prepared: bool = False
    ):
        self.store = store
        self.prepared = prepared
        self.name = name
        self.fill_parts = fill_parts
        self.reporter = reporter
        self.place = store.layout.index(name)
        self.job = Job(self.place.folder, "index")
        self.done: IndexInfo | None = None

    def run(self, factory: str | None, nprobe: int | None, code_bytes: int | None = None) -> IndexInfo:
        """Train, fill, measure, and write `index.json` last."""
        if code_bytes is not None:
            factory = factory or AUTO
        self.done = self._read(factory)
        if factory is None and self.done:  # what is there keeps its kind
            check_numbers(f"{self.done.spec.factory},PCA{self.done.spec.pca or 1}", len(self.store))
            spec = self.done.spec.with_nprobe(nprobe)
        else:
            spec = choose_index(factory or AUTO, len(self.store), self.store.dim, nprobe, code_bytes)
        factory = factory or (self.done.factory if self.done else AUTO)
        if self.done and self.done.spec == spec and self.done.manifest == self.store.held:
            self._say_complete(self.done)
            return self.done
        started = time.monotonic()
        index = self._begin(spec)
        self._announce(spec)
        if not index.faiss.is_trained or (spec.pca and index.transform is None):
            with self._refused_by_faiss(factory):
                self._train(index)
        with self._refused_by_faiss(factory):
            data = self._fill_in_parts(index) if self.fill_parts and can_part(index) else self._fill(index)
            info = self._describe(index, factory, data, started)
        if self.prepared:
            write_record(self.place.prepared, info)
            self.job.close()
            return info
        self._drop_settings(info)
        write_record(self.place.description, info)
        files.remove(self.place.prepared)
        self.job.close()
        self._remove_data(keep=data)
        return info

    def _say_complete(self, done: IndexInfo) -> None:
        self.reporter.say(f"index {self.name!r} is complete already")
        self.job.close()
        if self.prepared:
            return
        if current_description(self.place, self.store) == self.place.prepared:
            files.replace(self.place.prepared, self.place.description)
        self._remove_data(keep=done.data)

    @contextlib.contextmanager
    def _refused_by_faiss(self, factory: str) -> Iterator[None]:
        """Say that FAISS cannot make an index of this kind, and why; what was begun goes."""
        try:
            yield
        except RuntimeError as error:
            self._remove_data(keep="")
            self.job.close()
            why = str(error).rpartition(": ")[2]
            raise OptionError(
                f"FAISS cannot make an index with `factory={factory!r}` ({why}); choose another"
            ) from error

    def _read(self, factory: str | None) -> IndexInfo | None:
        """Return what is known of the index, None if it is not there, or to be made again as a kind that is named."""
        try:
            if self.place.description.exists() or current_description(self.place, self.store).exists():
                return read_index_info(self.store, self.name)
            if self.place.all_data() and not self.job.started:
                raise StoreError(
                    f"{self.place.description} is missing, which describes what lies beside it; restore it"
                )
            return None
        except StoreError as error:
            if factory is None:
                raise StoreError(f"{error}; to make the index again, say of which kind: `factory='auto'`") from None
            self.reporter.say(f"{error}; making the index again")
            return None

    def _drop_settings(self, info: IndexInfo) -> None:
        """Remove λ, T and k that were tuned for other distances than those of the index that is now made."""
        tuned = read_tuned(self.store.layout, self.name)
        if tuned is None:
            return
        of_old = self.done is not None and self.done.spec == info.spec  # older settings do not name their index
        if tuned.index_hash != info.hash if tuned.index_hash else not of_old:
            files.remove(self.place.settings)
            again = tune_again(self.store, self.name)
            self.reporter.say(f"λ, T and k of index {self.name!r} were tuned for another and are removed; {again}")

    def _extends(self, spec: IndexSpec) -> IndexInfo | None:
        """Return the index that is there, if the store has only been appended to since."""
        done = self.done
        same = done and done.spec.same_data(spec) and done.shards == self._shards()[: len(done.shards)]
        return done if same else None

    def _begin(self, spec: IndexSpec) -> SearchIndex:
        """Return the index as far as it is made: by a killed job, by an earlier index, or not at all."""
        plan = {"spec": to_json(spec), "manifest": self.store.held}
        if self.job.resumes(plan) and self.job.state("fill"):
            with contextlib.suppress(RuntimeError, OSError, StoreError):  # a checkpoint that was cut off: begin again
                index = load_parts(self.place.data(str(self.job.state("fill").get("data"))), spec, self.store.dim)
                self.reporter.say(f"resuming the unfinished index {self.name!r}")
                return index
        self._remove_data(keep=self.done.data if self.done else "")  # before the job, without which it is an index's
        self.job.begin(plan)
        extended = self._extends(spec)
        if extended:
            return load_parts(self.place.data(extended.data), spec, self.store.dim)
        return empty_index(spec, self.store.dim)

    def _trained_shards(self, spec: IndexSpec) -> int:
        extended = self._extends(spec)
        return (extended.trained_shards or len(extended.shards)) if extended else len(self._shards())

    def _shards(self) -> list[str]:
        return [file.sha256 for name, file in sorted(self.store.manifest.files.items()) if is_key_file(name)]

    def _announce(self, spec: IndexSpec) -> None:
        ram = size(training_ram(spec, len(self.store), self.store.dim))
        self.reporter.say(f"index {self.name!r}: {describe(spec)}; training needs about {ram} of RAM")

    def _train(self, index: SearchIndex) -> None:
        started = time.monotonic()
        here = np.arange(len(self.store))
        if self.store.forgotten is not None:
            here = here[~self.store.forgotten.record_mask]
        count = train_index(index, lambda ids: self.store.keys.take(here[ids]), len(here))
        self.reporter.say(f"trained on {count:,} keys in {duration(time.monotonic() - started)}")

    def _fill(self, index: SearchIndex) -> str:
        """Add the records that are missing, with a checkpoint every minute; return the folder they end up in."""
        noted = time.monotonic()
        total = len(self.store)
        with self.reporter.bar("indexing", total, "records", index.records) as advance:
            while index.records < total:
                block = self.store.keys[index.records : index.records + BLOCK]
                index.add(block.astype(np.float32))
                advance(len(block))
                if time.monotonic() - noted >= INDEX_SAVE_SECONDS:
                    self._save(index)
                    noted = time.monotonic()
        return self._save(index)

    def _fill_in_parts(self, index: SearchIndex) -> str:
        """Let others add the records that are missing, and put together what they made."""
        assert self.fill_parts
        begun = self.place.data(self._save(index))
        first = index.records
        total = len(self.store)
        parts = plan_parts(self.store, begun, index.spec, first, self.job.folder)
        ahead = sum(part.stop - part.first for part in parts if part.finished)
        with self.reporter.bar("indexing", total, "records", first + ahead) as advance:
            self.fill_parts([part for part in parts if not part.finished], advance)
        data = self._data_of(total)
        if data != begun.folder.name:
            join_parts(index, begun, parts, self.place.data(data))
            self.job.note("fill", {"data": data})
        self._remove_data(keep=data)
        return data

    def _data_of(self, records: int) -> str:
        """Return the name of the folder for so many records, another than that of the finished index."""
        data = f"data-{records:012d}"
        return f"{data}-new" if self.done and self.done.data == data else data

    def _save(self, index: SearchIndex) -> str:
        data = self._data_of(index.records)
        if self.job.state("fill").get("data") == data:
            return data
        write_parts(index, self.place.data(data))
        self.job.note("fill", {"data": data})
        self._remove_data(keep=data)
        return data

    def _remove_data(self, keep: str) -> None:
        finished = self.done.data if self.done and self.job.started else ""
        coming = files.read_json(self.place.prepared).get("data") if self.place.prepared.exists() else ""
        for path in self.place.all_data():
            if path.name not in (keep, finished, coming):
                files.remove(path)

    def _describe(self, index: SearchIndex, factory: str, data: str, started: float) -> IndexInfo:
        """Write the records' values beside the index, measure it, and say what it is."""
        place = self.place.data(data)
        columns = {"values": self.store.values} | ({"weights": self.store.weights} if self.store.weighted else {})
        for name, column in columns.items():  # in one piece: every search looks up thousands of them
            place.write_column(name, column[:])
        seconds = time.monotonic() - started
        listed = {f"{data}/{path.name}": FileInfo.of(path) for path in sorted(place.folder.iterdir())}
        extended = self._extends(index.spec)
        measured = to_json(
            self._measured(extended) or measure(self.store, read_parts(place, index.spec, self.store.dim))
        )
        return IndexInfo(
            factory=factory,
            spec=index.spec,
            manifest=self.store.held,
            shards=self._shards(),
            records=len(self.store),
            data=data,
            files=listed,
            bytes_per_record=round(sum(file.bytes for file in listed.values()) / len(self.store), 1),
            build_seconds=round(seconds, 1),
            trained_shards=self._trained_shards(index.spec),
            same_as=extended.same_as if extended else None,
            **to_json(measured),
        )

    def _measured(self, extended: IndexInfo | None) -> Measurement | None:
        """Return what was measured of the index that is extended, if hardly anything is added."""
        if not (self.prepared and extended and len(self.store) <= HARDLY_MORE * extended.records):
            return None
        names = (each.name for each in dataclasses.fields(Measurement))
        return Measurement(**{name: getattr(extended, name) for name in names})
