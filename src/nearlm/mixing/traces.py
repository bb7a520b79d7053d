"""One LM pass and one search over a text, kept on disk: what tuning, gates, sweeps and ablations read.

The LM half depends on the model and the text, the search half also on the store and its index; each is kept in the
cache under a hash of just what it depends on, so that it is computed once.
"""

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import (
    QUIET,
    ArrayFile,
    Doubles,
    FileInfo,
    Floats,
    Ids,
    Int32s,
    Reporter,
    cache_dir,
    cache_lock,
    canonical_hash,
    check_before_use,
    files,
    read_record,
    size,
    write_record,
)
from nearlm.base.errors import OptionError, StoreError
from nearlm.base.jobs import Job, Pieces
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.equations import back_off, log_p_knn, mix
from nearlm.mixing.mixture_features import Known
from nearlm.model.lm import LM
from nearlm.search import Neighbors, Retriever
from nearlm.store import Datastore, SearchSettings
from nearlm.text import SCORE_BATCH_TOKENS, Reading, Segment, Texts, TokenText, fill_batch, plan_batches, read_text

_SEARCH_BATCH = 2048
_WORTH_SAYING = 100_000_000  # bytes
_MOST_GB = 1_000_000_000
_PLACE: ContextVar[Path | None] = ContextVar("place of traces", default=None)


def trace_folder() -> Path:
    """Return the folder of all traces: in the cache, unless `traces_in` names another."""
    return _PLACE.get() or cache_dir() / "traces"


@contextlib.contextmanager
def traces_in(folder: Path) -> Iterator[None]:
    """Keep traces in a folder of one's own, e.g. to see how long they take when nothing was computed before."""
    before = _PLACE.set(folder)
    try:
        yield
    finally:
        _PLACE.reset(before)


def cache_text(texts: Texts, tokenizer: Any, reading: Reading, reporter: Reporter = QUIET) -> TokenText:
    """Tokenise a text into the cache, where its traces are."""
    folder = trace_folder() / "reading"
    with cache_lock(folder, reporter):
        text = read_text(texts, tokenizer, reading, folder, reporter)
        kept = Segment(_text_folder(text.sha256), 0)
        kept.folder.mkdir(parents=True, exist_ok=True)
        for source, target in zip(Segment(folder, 0).files, kept.files, strict=True):
            files.replace(source, target)
    return text


def _text_folder(sha256: str) -> Path:
    return trace_folder() / f"text-{sha256[:24]}"


@dataclass(frozen=True)
class LMTrace:
    """What the LM says of every target of a text, in corpus order: keys [n, dim], log p and statistics.

    `conf` is max p, `ent` the entropy of p, `top` the likeliest token.
    """

    text: TokenText
    key: str
    keys: Floats
    logp: Floats
    conf: Floats
    ent: Floats
    top: Int32s

    def __len__(self) -> int:
        return len(self.logp)

    @property
    def log_lm(self) -> Doubles:
        """Log p of the LM for every target."""
        return np.asarray(self.logp, np.float64)

    def known(self) -> Known:
        """Return what is known of every target before a search."""
        text = self.text
        contexts = Contexts.of_text(text.tokens, text.bounds, text.windows.target_positions)
        return Known(self.conf, self.ent, self.top, contexts)


def trace_lm(lm: LM, text: TokenText, reading: Reading, reporter: Reporter = QUIET) -> LMTrace:
    """Run the LM over a text, or find that it has been done."""
    kinds = {"keys": "float32", "logp": "float32", "conf": "float32", "ent": "float32", "top": "int32"}
    depends_on = {
        "columns": sorted(kinds),
        "model": lm.fingerprint(),
        "weights": lm.weights_hash(),
        "dtype": lm.dtype,
        "tap": lm.tap.path,
        "text": text.sha256,
        "window": [reading.window, reading.stride, reading.pack],
    }
    if lm.packing.rounds:
        depends_on["packing"] = lm.packing.weights
    key = canonical_hash(depends_on)[:24]
    folder = trace_folder() / f"lm-{key}"
    columns = {
        name: ArrayFile(folder / f"{name}.npy", np.dtype(dtype), (text.windows.records, lm.dim)[: 1 + (name == "keys")])
        for name, dtype in kinds.items()
    }
    batches = plan_batches(text.windows, SCORE_BATCH_TOKENS)

    def compute(number: int) -> Pieces:
        rows = text.windows[batches[number]]
        scores = lm.score(fill_batch(text.tokens, rows))
        begin = 0
        for record, count in zip(text.windows.first_record[batches[number]], rows.targets, strict=True):
            for name, column in columns.items():
                values = getattr(scores, name)[begin : begin + count]
                yield name, int(record), (values.float() if column.dtype.kind == "f" else values).cpu().numpy()
            begin += count

    sizes = [int(text.windows.inputs[batch].sum()) for batch in batches]
    fill_trace(folder, {_text_folder(text.sha256)}, columns, sizes, compute, "scoring", reporter)
    return LMTrace(text, key, **{name: column.open() for name, column in columns.items()})


def trace_text(
    lm: LM, store: Datastore, texts: "AnyText", reporter: Reporter = QUIET, *, stride: int | None = None
) -> LMTrace:
    """Tokenise a text into the cache unless that was done, cut up as a store's own, and run the LM over it.

    A text that is traced already is returned as it is.
    """
    if isinstance(texts, LMTrace):
        return texts
    reading = store.reading(stride)
    read = texts if isinstance(texts, TokenText) else cache_text(texts, lm.tokenizer, reading, reporter)
    return trace_lm(lm, read, reading, reporter)


AnyText = Texts | TokenText | LMTrace


@dataclass(frozen=True)
class Trace:
    """An LM trace with the neighbours of every key, [n, k]: all that a mixture depends on but λ, T and k."""

    lm: LMTrace
    retriever: Retriever
    distances: Floats
    ids: Ids

    @property
    def k(self) -> int:
        """How many neighbours were searched."""
        return int(self.ids.shape[1])

    @property
    def log_lm(self) -> Doubles:
        """Log p of the LM for every target."""
        return self.lm.log_lm

    def neighbors(self, rows: slice, k: int | None = None) -> Neighbors:
        """Return the first k neighbours of some targets."""
        k = min(k or self.k, self.k)
        if k < self.k and not self.retriever.nested:
            raise OptionError(f"neighbours re-scored with k={self.k} say nothing of k={k}; search again with that k")
        return self.retriever.neighbors(self.distances[rows, :k], self.ids[rows, :k])

    def log_p_knn(self, temperature: float = 1.0, k: int | None = None) -> Doubles:
        """Return log p_kNN of every target from its first k neighbours, reading some rows at a time."""
        targets = self.lm.text.targets
        out = np.empty(len(self.lm))
        for start in range(0, len(out), _SEARCH_BATCH):
            rows = slice(start, start + _SEARCH_BATCH)
            near = self.neighbors(rows, k)
            log_knn = log_p_knn(near.distances, near.tokens, targets[rows], temperature, near.weights)
            out[rows] = back_off(log_knn, self.lm.logp[rows], near.tokens)
        return out

    def log_p_knn_of(self, settings: SearchSettings) -> Doubles:
        """Return log p_kNN of every target with the T and k of settings."""
        return self.log_p_knn(settings.knn_temperature or 1.0, settings.k)

    def log_p(self, settings: SearchSettings) -> Doubles:
        """Return log p of every target when LM and memory are mixed as settings say."""
        return mix(self.log_lm, self.log_p_knn_of(settings), settings.lam or 0.0)


def trace_search(lm_trace: LMTrace, retriever: Retriever, k: int, reporter: Reporter = QUIET) -> Trace:
    """Search for every key of an LM trace, or find that it has been done."""
    k = min(k, retriever.max_k)
    key = canonical_hash({"lm": lm_trace.key, "search": retriever.describe(), "k": k})[:24]
    folder = trace_folder() / f"search-{key}"
    types = {"distances": "float32", "ids": "int32" if len(retriever.store) < 1 << 31 else "int64"}
    columns = {
        name: ArrayFile(folder / f"{name}.npy", np.dtype(dtype), (len(lm_trace), k)) for name, dtype in types.items()
    }
    starts = range(0, len(lm_trace), _SEARCH_BATCH)

    def compute(number: int) -> Pieces:
        start = starts[number]
        near = retriever.search(lm_trace.keys[start : start + _SEARCH_BATCH], k)
        yield "distances", start, near.distances
        yield "ids", start, near.ids

    sizes = [min(_SEARCH_BATCH, len(lm_trace) - start) for start in starts]
    fill_trace(folder, {_text_folder(lm_trace.text.sha256)}, columns, sizes, compute, "searching", reporter)
    return Trace(lm_trace, retriever, **{name: column.open() for name, column in columns.items()})


def fill_trace(
    folder: Path,
    read: set[Path],
    columns: dict[str, ArrayFile],
    sizes: list[int],
    compute: Any,
    label: str,
    reporter: Reporter,
) -> None:
    """Fill a trace's columns unless they are complete, with a bar that counts tokens; what it has `read` stays."""
    with cache_lock(folder, reporter):
        done = folder / "trace.json"
        job = Job(folder, "trace")
        if done.exists() and is_sound(folder, columns, reporter):
            done.touch()
            job.close()  # a kill may have left it
            return
        files.remove(done)
        wanted = sum(column.bytes for column in columns.values())
        if wanted > _WORTH_SAYING:
            reporter.say(f"keeping {size(wanted)} in {folder}")
        _make_room(wanted, {folder, *read})
        job.resume({})
        with reporter.bar(label, sum(sizes), "tokens", job.count_done("fill", sizes)) as advance:
            job.fill("fill", columns, sizes, compute, advance)
        write_record(done, TraceInfo(sum(sizes), FileInfo.by_name(column.path for column in columns.values())))
        job.close()


@dataclass(frozen=True)
class TraceInfo:
    """What `trace.json` says of a finished trace: its tokens and the checksums of its arrays."""

    tokens: int
    files: dict[str, FileInfo]


def is_sound(folder: Path, columns: dict[str, ArrayFile], reporter: Reporter) -> bool:
    """Tell whether a finished trace is as it was written; say why, if it has to be made again."""
    try:
        noted = read_record(TraceInfo, folder / "trace.json")
        check_before_use(folder, {column.path.name: noted.files[column.path.name] for column in columns.values()}, "")
    except (StoreError, KeyError) as error:
        reporter.say(f"warning: {str(error).partition(';')[0]}; computing that trace again")
        return False
    return all(column.sound for column in columns.values())


def _make_room(wanted: int, used: set[Path]) -> None:
    """Remove the traces and texts that were not used for the longest time, as far as a new trace needs their room."""
    kept: list[tuple[float, int, Path]] = []
    for kind in ("lm", "search", "text", "samples"):
        for other in trace_folder().glob(f"{kind}-*"):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                count = sum(file.stat().st_size for file in other.glob("*.*"))
                noted = (other / "trace.json") if (other / "trace.json").exists() else other
                kept.append((noted.stat().st_mtime, count, other))
    excess = sum(count for _, count, _ in kept) + wanted - room_for_traces()
    for _, count, old in sorted(kept):
        if excess > 0 and old not in used:
            with contextlib.suppress(StoreError, OSError), files.lock(old):  # one that is in use stays
                files.remove(old / "trace.json")
                files.remove(old)
                excess -= count


def room_for_traces() -> int:
    """Return how many bytes all traces may take: `NEARLM_TRACE_GB`, or 20 GB."""
    text = os.environ.get("NEARLM_TRACE_GB", "20")
    try:
        room = float(text)
    except ValueError:
        room = -1.0
    if not 0 <= room <= _MOST_GB:
        raise OptionError(f"NEARLM_TRACE_GB is {text!r}, expected a number of gigabytes, 0 to {_MOST_GB:,}")
    return int(room * 1e9)
