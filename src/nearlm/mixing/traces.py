"""One LM pass and one search over a text, kept on disk: what tuning, adaptors, sweeps and ablations read.

The LM half depends on the model and the text, the search half also on the store and its index; each is kept in the
cache under a hash of just what it depends on, so that it is computed once. This is the only cache of computed things.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearlm.base import (
    ArrayFile,
    Job,
    Json,
    OptionError,
    Pieces,
    Reporter,
    StoreError,
    cache_dir,
    cache_lock,
    files,
    size,
)
from nearlm.mixing.equations import found, log_p_knn
from nearlm.model import LM
from nearlm.search import Retriever
from nearlm.text import (
    Corpus,
    Framing,
    Ints,
    Segment,
    Windows,
    check_not_empty,
    check_predictable,
    check_window,
    document_bounds,
    fill_batch,
    plan_batches,
    plan_windows,
    tokenise,
)

SCORE_BATCH_TOKENS = 2048
_SEARCH_BATCH = 2048
_WORTH_SAYING = 100_000_000  # bytes
_STATISTICS = ("logp", "conf", "ent")


@dataclass(frozen=True)
class Reading:
    """How a text is cut up: framed and windowed as the store was, with a stride of its own."""

    framing: Framing
    window: int
    stride: int
    pack: bool = False

    @classmethod
    def of_store(cls, manifest: Json, stride: int | None = None) -> "Reading":
        """Read a text as a store's own text was read."""
        window = manifest["window"]
        check_window(window, stride or window)
        framing = Framing(tuple(manifest["bos"]), tuple(manifest["separator"]))
        return cls(framing, window, stride or window, manifest["pack"])


@dataclass(frozen=True)
class TokenText:
    """A tokenised text on disk: its tokens, where documents begin, its windows, and a hash of the tokens."""

    tokens: npt.NDArray[np.int32]
    bounds: Ints
    windows: Windows
    sha256: str

    @property
    def targets(self) -> npt.NDArray[np.int32]:
        """The tokens that are predicted, in corpus order."""
        return np.asarray(self.tokens[self.windows.target_positions])

    @property
    def documents(self) -> Ints:
        """The number of each target's document."""
        return np.searchsorted(self.bounds, self.windows.target_positions, side="right") - 1


def read_text(
    texts: str | Sequence[str],
    tokenizer: Any,
    reading: Reading,
    *,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> TokenText:
    """Tokenise a text into the cache and lay its windows."""
    corpus = Corpus([texts] if isinstance(texts, str) else texts, **corpus_options)
    reporter = reporter or Reporter(quiet=True)
    folder = cache_dir() / "traces" / "reading"
    with cache_lock(folder):
        segment, job = Segment(folder, 0), Job(folder, "read")
        job.begin({})
        state = tokenise(corpus, tokenizer, reading.framing, segment, job, max_tokens, reporter)
        check_not_empty(state, corpus.texts)
        for problem, count in state["problems"].items():
            reporter.say(f"warning: {count:,} × {problem}, e.g. {state['examples'][problem]}")
        digest = files.canonical_hash([files.checksum(segment.tokens), files.checksum(segment.docs)])
        kept = _keep(segment, cache_dir() / "traces" / f"text-{digest[:24]}")
        job.close()
    tokens = ArrayFile(kept.tokens, np.dtype("int32"), (state["tokens"],)).open()
    docs = ArrayFile(kept.docs, np.dtype("int64"), (state["documents"], 3)).open()
    bounds = document_bounds(docs, state["tokens"])
    windows = plan_windows(bounds, reading.window, reading.stride, reading.pack)
    check_predictable(windows, corpus.texts)
    return TokenText(tokens, bounds, windows, digest)


def _keep(segment: Segment, folder: Path) -> Segment:
    kept = Segment(folder, 0)
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in zip(segment.files, kept.files, strict=True):
        files.replace(source, target)
    return kept


@dataclass(frozen=True)
class LMTrace:
    """What the LM says of every target of a text, in corpus order: keys [n, dim], log p, confidence, entropy."""

    text: TokenText
    key: str
    keys: npt.NDArray[np.float32]
    logp: npt.NDArray[np.float32]
    conf: npt.NDArray[np.float32]
    ent: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logp)


def trace_lm(lm: LM, text: TokenText, reading: Reading, reporter: Reporter | None = None) -> LMTrace:
    """Run the LM over a text, or find that it has been done."""
    reporter = reporter or Reporter(quiet=True)
    key = files.canonical_hash(
        {
            "model": lm.fingerprint(),
            "probe": files.canonical_hash(lm.probe().tolist()),
            "dtype": lm.dtype,
            "tap": lm.tap.path,
            "text": text.sha256,
            "window": [reading.window, reading.stride, reading.pack],
        }
    )[:24]
    folder, records = cache_dir() / "traces" / f"lm-{key}", text.windows.records
    columns = {
        "keys": ArrayFile(folder / "keys.npy", np.dtype("float32"), (records, lm.dim)),
        **{name: ArrayFile(folder / f"{name}.npy", np.dtype("float32"), (records,)) for name in _STATISTICS},
    }
    batches = plan_batches(text.windows, SCORE_BATCH_TOKENS)

    def compute(number: int) -> Pieces:
        rows = text.windows[batches[number]]
        scores = lm.score(fill_batch(text.tokens, rows))
        begin = 0
        for record, count in zip(text.windows.first_record[batches[number]], rows.targets, strict=True):
            for name in columns:
                yield name, int(record), getattr(scores, name)[begin : begin + count].float().cpu().numpy()
            begin += count

    sizes = [int(text.windows.inputs[batch].sum()) for batch in batches]
    _fill(folder, columns, sizes, compute, "scoring", reporter)
    return LMTrace(text, key, **{name: column.open() for name, column in columns.items()})


@dataclass(frozen=True)
class Trace:
    """An LM trace with the neighbours of every key, [n, k]: all that a mixture depends on but λ, T and k."""

    lm: LMTrace
    retriever: Retriever
    distances: npt.NDArray[np.float32]
    ids: npt.NDArray[np.integer[Any]]

    @property
    def k(self) -> int:
        """How many neighbours were searched."""
        return int(self.ids.shape[1])

    def log_p_knn(self, temperature: float = 1.0, k: int | None = None) -> npt.NDArray[np.float64]:
        """Return log p_kNN of every target from its first k neighbours, reading some rows at a time."""
        k, targets = min(k or self.k, self.k), self.lm.text.targets
        if k < self.k and not self.retriever.nested:
            raise OptionError(f"neighbours re-scored with k={self.k} say nothing of k={k}; search again with that k")
        out = np.empty(len(self.lm))
        for start in range(0, len(out), _SEARCH_BATCH):
            rows = slice(start, start + _SEARCH_BATCH)
            near = self.retriever.neighbors(self.distances[rows, :k], self.ids[rows, :k])
            log_knn = log_p_knn(near.distances, near.tokens, targets[rows], temperature, near.weights)
            out[rows] = found(log_knn, self.lm.logp[rows], near.tokens)
        return out


def trace_search(lm_trace: LMTrace, retriever: Retriever, k: int, reporter: Reporter | None = None) -> Trace:
    """Search for every key of an LM trace, or find that it has been done."""
    reporter = reporter or Reporter(quiet=True)
    k = min(k, retriever.max_k)
    key = files.canonical_hash({"lm": lm_trace.key, "search": retriever.describe(), "k": k})[:24]
    folder, shape = cache_dir() / "traces" / f"search-{key}", (len(lm_trace), k)
    columns = {
        "distances": ArrayFile(folder / "distances.npy", np.dtype("float32"), shape),
        "ids": ArrayFile(folder / "ids.npy", np.dtype("int32" if len(retriever.store) < 1 << 31 else "int64"), shape),
    }
    starts = range(0, len(lm_trace), _SEARCH_BATCH)

    def compute(number: int) -> Pieces:
        start = starts[number]
        near = retriever.search(lm_trace.keys[start : start + _SEARCH_BATCH], k)
        yield "distances", start, near.distances
        yield "ids", start, near.ids

    sizes = [min(_SEARCH_BATCH, len(lm_trace) - start) for start in starts]
    _fill(folder, columns, sizes, compute, "searching", reporter)
    return Trace(lm_trace, retriever, **{name: column.open() for name, column in columns.items()})


def _fill(
    folder: Path, columns: dict[str, ArrayFile], sizes: list[int], compute: Any, label: str, reporter: Reporter
) -> None:
    """Fill a trace's columns unless they are complete, with a bar that counts tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    with files.lock(folder):
        done = folder / "trace.json"
        if done.exists() and all(column.sound for column in columns.values()):
            done.touch()
            return
        files.remove(done)
        _make_room(folder, sum(column.bytes for column in columns.values()), reporter)
        job = Job(folder, "trace")
        if not job.started:
            job.begin({})
        ahead = sum(sizes[: job.state("fill").get("batches", 0)])
        with reporter.bar(label, sum(sizes), "tokens", ahead) as advance:
            job.fill("fill", columns, len(sizes), compute, lambda batch: advance(sizes[batch]))
        files.write_json(done, {"tokens": sum(sizes)})
        job.close()


def _make_room(folder: Path, wanted: int, reporter: Reporter) -> None:
    """Remove the traces that were not used for the longest time, as far as a new one needs their room."""
    kept: list[tuple[float, int, Path]] = []
    for other in (*folder.parent.glob("lm-*"), *folder.parent.glob("search-*")):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            arrays = [file.stat() for file in other.glob("*.npy")]
            used = (other / "trace.json") if (other / "trace.json").exists() else other
            kept.append((used.stat().st_mtime, sum(array.st_size for array in arrays), other))
    excess = sum(count for _, count, _ in kept) + wanted - room_for_traces()
    if wanted > _WORTH_SAYING:
        reporter.say(f"keeping {size(wanted)} in {folder}")
    for _, count, old in sorted(kept):
        if excess > 0 and old != folder:
            with contextlib.suppress(StoreError, FileNotFoundError), files.lock(old):  # one that is in use stays
                files.remove(old / "trace.json")
                files.remove(old)
                excess -= count


def room_for_traces() -> int:
    """Return how many bytes all traces may take: `NEARLM_TRACE_GB`, or 20 GB."""
    text = os.environ.get("NEARLM_TRACE_GB", "20")
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise OptionError(f"NEARLM_TRACE_GB is {text!r}, expected a number of gigabytes") from None
