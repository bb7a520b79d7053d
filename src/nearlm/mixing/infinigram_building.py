"""Making the suffix array of a store's text, and bringing it up to date after an append.

The arrays of a new state of the text are written into a folder of their own, `data-` and the number of its tokens. Then
`suffixes.json` names them, by one rename, and the earlier ones go. Until then those are used, by whoever opens the
store before and after the append: its text begins with theirs.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearlm.base import (
    QUIET,
    Array,
    ArrayFile,
    FileInfo,
    Ids,
    Int32s,
    Ints,
    Job,
    Reporter,
    StoreError,
    available_ram,
    blocks,
    check_that,
    duration,
    files,
    read_if_there,
    size,
    write_record,
)
from nearlm.mixing.infinigram import InfiniGram, SuffixInfo, all_arrays, first_segment, read_suffix_info
from nearlm.mixing.suffix_array import context_depths, position_dtype, sort_contexts, sorting_bytes
from nearlm.store import AnyStore, Datastore, SuffixFiles

_BLOCK = 1 << 20
_LARGE = 1 << 30  # bytes of memory that are worth a word


def build_infinigram(store: AnyStore, reporter: Reporter = QUIET) -> InfiniGram:
    """Make the suffix array of a store's text, bring it up to date, or find that it has been done.

    Whoever reads the store meanwhile uses the suffix array from before the last appends, if there is one.

    Example:
        >>> store = nearlm.build("smollm2-135m", "docs/", "instant", nearlm.BuildOptions(keys="none"))
        >>> infinigram = nearlm.build_infinigram(store)
        >>> knnlm = nearlm.KNNLM.load(store)
    """
    opened = Datastore.open(store) if isinstance(store, str | Path) else store
    place = opened.layout.suffixes
    place.folder.mkdir(exist_ok=True)
    with files.lock(place.folder, wait=reporter.say):
        if isinstance(store, str | Path):
            opened = Datastore.open(store)  # it may have been appended to while this waited
        job = Job(
            place.folder, "suffixes"
        )  # tells arrays that are not described yet from those whose description is lost
        used = _usable(opened)
        if used is None or used.tokens < len(opened.tokens):
            _refuse_changed(opened)
            job.resume({})
            _remove_others(place, used)
            used = _build(opened, reporter)
        _remove_others(place, used)
        job.close()
    return InfiniGram.open(opened)


def prepare_infinigram(coming: Datastore, reporter: Reporter = QUIET) -> None:
    """Make the suffix array of a store as it will be, if it has one or no keys; it takes effect with its manifest."""
    place = coming.layout.suffixes
    if not (place.description.exists() or not len(coming)):
        return
    place.folder.mkdir(exist_ok=True)
    with files.lock(place.folder, wait=reporter.say):
        now = read_if_there(SuffixInfo, place.description)
        _remove_all_but(place, now)
        _build(coming, reporter, place.prepared)


def settle_infinigram(store: Datastore) -> None:
    """Remove the arrays that are not used any more."""
    info = read_suffix_info(store)
    if info is not None:
        _remove_all_but(store.layout.suffixes, info)


def _remove_all_but(place: SuffixFiles, used: SuffixInfo | None) -> None:
    for path in place.others(used.data if used else None):
        files.remove(path)


def _usable(store: Datastore) -> SuffixInfo | None:
    """Return what is known of the suffix array that is there, None if it is none of this text's, or damaged."""
    with contextlib.suppress(StoreError):
        InfiniGram.open(store)
        return read_suffix_info(store)
    return None


def _refuse_changed(store: Datastore) -> None:
    """Refuse a store that another process has appended to: the suffix array would be made of the text before."""
    manifest = store.layout.manifest
    if manifest.exists() and files.read_json(manifest).get("checksum") != store.checksum:
        raise StoreError(f"{store.path} was changed since it was opened; open it again")


def _remove_others(place: SuffixFiles, used: SuffixInfo | None) -> None:
    """Remove all arrays but those that are used, if any are; without them, their description goes first."""
    if used is None:
        files.remove(place.description)
    _remove_all_but(place, used)


def _build(store: Datastore, reporter: Reporter, description: Path | None = None) -> SuffixInfo:
    """Sort the contexts of a store's text and write `suffixes.json`, or another description, last."""
    started = time.monotonic()
    place = store.layout.suffixes
    count = len(store.tokens)
    data = f"data-{count:012d}"
    if (place.folder / data).exists():  # of another text of the same length, which is in use
        data = f"data-{count:013d}"
    _check_memory(store, reporter)
    (place.folder / data).mkdir()
    tokens = _whole_text(store, data)
    check_that(tokens.min(initial=0) >= 0, store.path, "tokens of a vocabulary")
    depths = context_depths(store.document_bounds)
    dtype = position_dtype(count)
    with reporter.bar("sorting contexts", int(np.count_nonzero(depths)), "tokens") as advance:
        order, starts = sort_contexts(tokens, depths, dtype, advance)
    info = SuffixInfo(store.checksum, count, len(order), len(starts) - 1, dtype.name, {}, data, store.state)
    arrays = all_arrays(place, info)
    arrays["order"].write(order)
    arrays["starts"].write(starts)
    _write_rows(arrays["following"], order, lambda places: tokens[places + 1])
    _write_rows(arrays["depths"], order, lambda places: depths[places])
    there = [array for array in arrays.values() if array.path.exists()]
    listed = {place.name_of(array): FileInfo.of(array.path) for array in there}
    whole = replace(info, files=listed)
    write_record(description or place.description, whole)
    reporter.say(f"sorted {count:,} tokens in {duration(time.monotonic() - started)}")
    return whole


def _check_memory(store: Datastore, reporter: Reporter) -> None:
    """Say how much memory sorting takes if it is much; refuse what there is no room for."""
    count = len(store.tokens)
    needed = sorting_bytes(count)
    if needed >= _LARGE:
        reporter.say(f"sorting {count:,} tokens takes {size(needed)} of RAM")
    available = available_ram()
    if available is not None and needed > available:
        raise StoreError(
            f"sorting the {count:,} tokens of {store.path} takes {size(needed)} of RAM, and {size(available)} "
            "are free; end other programs, or use a larger machine"
        )


def _whole_text(store: Datastore, data: str) -> Int32s:
    """Return the text as one array, which is written if it lies in several files."""
    if len(store.tokens.shards) == 1:
        return first_segment(store)
    whole = store.layout.suffixes.arrays(data, len(store.tokens), 0, 0, "int32")["tokens"]
    files.write_array(whole.path, whole.dtype, whole.shape, iter(store.tokens.shards))
    return whole.open()


def _write_rows(file: ArrayFile, order: Ids, of: Callable[[Ints], Array]) -> None:
    """Write something of each row's position, one block in memory at a time."""
    parts = (of(order[rows].astype(np.int64)) for rows in blocks(len(order), _BLOCK))
    files.write_array(file.path, file.dtype, file.shape, parts)
