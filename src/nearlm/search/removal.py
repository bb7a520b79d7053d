"""Take records out of an index, without training it again: its distances stay what they were."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from nearlm.base import QUIET, Array, FileInfo, Ids, Job, Reporter, blocks, files, write_record
from nearlm.search.filtering import Mask
from nearlm.search.index import IndexInfo, load_parts, read_index_info, write_parts
from nearlm.search.index_building import prepare_index
from nearlm.search.scan import Lists, can_scan, id_type
from nearlm.store import Datastore, IndexData, IndexFiles, is_key_file, read_faiss_index

_BLOCK = 1 << 18


def prepare_without(store: Datastore, coming: Datastore, name: str, gone: Mask, reporter: Reporter = QUIET) -> None:
    """Make an index without some of its records, for a store as it will be; it takes effect with its manifest.

    One of another state of the store, or of a kind that FAISS cannot take records out of, is trained again.
    """
    place = store.layout.index(name)
    info = read_index_info(store, name)
    if info.manifest != store.held or not _prepared(place, info, store, coming, gone):
        why = "FAISS takes no records out of its kind, or it is of an earlier state"
        reporter.say(f"index {name!r} ({info.spec.factory}) is trained again: {why}")
        prepare_index(coming, name, reporter)


def _prepared(place: IndexFiles, info: IndexInfo, store: Datastore, coming: Datastore, gone: Mask) -> bool:
    """Write and describe an index without some records; tell whether its kind allows that."""
    with files.lock(place.folder):
        data = place.data(_free_name(info, len(coming)))
        try:
            _write(place.data(info.data), data, info, store.dim, gone)
        except RuntimeError:
            files.remove(data.folder)
            return False
        write_record(place.prepared, _describe(info, data, coming))
        return True


def settle_index(store: Datastore, name: str) -> None:
    """Remove the data that are not used any more, unless an index is being made there."""
    place = store.layout.index(name)
    if Job(place.folder, "index").started:
        return
    info = read_index_info(store, name)
    for path in place.all_data():
        if path.name != info.data:
            files.remove(path)


def drop_kept(place: IndexFiles) -> None:
    """Remove what merging and ranking have kept of every record, and what an unfinished index has."""
    Job(place.folder, "index").close()
    for path in (place.neighbors_description, place.neighbors, place.ranks_description, place.ranks):
        files.remove(path)


def _free_name(info: IndexInfo, records: int) -> str:
    """Return a name that the data in use do not have; what a killed edit left under it is written anew."""
    name = f"data-{records:012d}"
    return f"{name}-new" if info.data == name else name


def _describe(info: IndexInfo, data: IndexData, coming: Datastore) -> IndexInfo:
    listed = {f"{data.folder.name}/{path.name}": FileInfo.of(path) for path in sorted(data.folder.iterdir())}
    shards = [file.sha256 for name, file in sorted(coming.manifest.files.items()) if is_key_file(name)]
    return dataclasses.replace(
        info,
        manifest=coming.held,
        shards=shards,
        records=len(coming),
        data=data.folder.name,
        files=listed,
        bytes_per_record=round(sum(file.bytes for file in listed.values()) / len(coming), 1),
        trained_shards=len(shards),
        same_as=info.hash,
    )


def _write(old: IndexData, new: IndexData, info: IndexInfo, dim: int, gone: Mask) -> None:
    """Write an index into a new folder without the records that are gone; the others close up."""
    files.remove(new.folder)
    new.folder.mkdir()
    index = read_faiss_index(old.faiss, 0, f"make index {old.folder.parent.name!r} again")
    if can_scan(index):
        for source, target in ((old.faiss, new.faiss), (old.transform, new.transform), (old.groups, new.groups)):
            if source.exists():
                files.copy(source, target)
        _write_lists(Lists.open(old, index), new, gone)
    else:
        loaded = load_parts(old, info.spec, dim)
        _take_out(loaded.faiss, gone)
        write_parts(loaded, new)
    for name in ("values", "weights"):
        if old.column(name, 0).path.exists():
            new.write_column(name, np.asarray(old.open_column(name, len(gone))[~gone], np.int32))


def _write_lists(lists: Lists, new: IndexData, gone: Mask) -> None:
    """Write inverted lists without some records, list by list as they are."""
    kept = ~gone[lists.ids]
    renumbered = np.cumsum(~gone) - 1
    before = np.concatenate(([0], np.cumsum(kept)))
    total = int(before[-1])
    kind = np.dtype(id_type(total))

    def parts(column: Array) -> Iterator[Array]:
        return (column[rows][kept[rows]] for rows in blocks(len(kept), _BLOCK))

    offsets = before[lists.offsets]
    files.write_array(new.offsets, np.int64, offsets.shape, [offsets])
    files.write_array(new.ids, kind, (total,), (renumbered[ids].astype(kind) for ids in parts(lists.ids)))
    files.write_array(new.codes, lists.codes.dtype, (total, lists.codes.shape[1]), parts(lists.codes))
    files.write_array(new.bias, np.float32, (total,), parts(lists.bias))


def _take_out(index: Any, gone: Mask) -> None:
    """Take records out of a FAISS index; the ids of the others close up, as those of a flat index do by themselves."""
    removed = np.flatnonzero(gone)
    before = index.ntotal
    index.remove_ids(faiss.IDSelectorBatch(removed))
    if index.ntotal != before - len(removed):
        raise RuntimeError("not all records were taken out")
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        _renumber(inverted, np.cumsum(~gone) - 1)


def _renumber(inverted: Any, numbers: Ids) -> None:
    """Give the records of inverted lists new ids."""
    for number in range(inverted.nlist):
        count = inverted.invlists.list_size(number)
        if count:
            ids = faiss.rev_swig_ptr(inverted.invlists.get_ids(number), count)
            ids[:] = numbers[ids]
