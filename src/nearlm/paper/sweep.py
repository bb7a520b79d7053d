"""What a smaller or cheaper store costs: one thing varied, everything else matched, point after point.

Every point is measured alike: an index of the same kind, λ and T tuned on the text, searches timed by themselves, each
next to searches of the store as it is, since a machine's speed drifts. What has been measured is noted in the sweep's
folder, so that it goes on after a kill; stores made for a point, and an index that the sweep had to make in the store
itself, are removed when they have served, unless the stores are wanted.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nearlm.base import Job, Json, OptionError, Reporter, files, size
from nearlm.mixing import LMTrace, Reading, best_settings, perplexity, read_text, trace_lm, trace_search
from nearlm.model import LM
from nearlm.optimizer import AUTO, TIMED, index_of, known_index, searches_per_second, unbeaten
from nearlm.search import Retriever, choose_index, index_folder
from nearlm.shrink import METHODS, prune_store, reduce_store
from nearlm.store import Datastore

OVER = ("dim", "keep", "neighbors", "k", "nprobe")
_NAME = "sweep"


@dataclass(frozen=True)
class SweepPoint:
    """One store and setting: what it takes on disk, how fast it answers, and the best perplexity it gives."""

    over: str
    value: float | None
    records: int
    dim: int
    k: int
    nprobe: int | None
    store_bytes: int
    index_bytes: int
    retrievals_per_second: float
    perplexity: float
    temperature: float
    lam: float
    index: str
    pareto: bool = False


@dataclass(frozen=True)
class Sweep:
    """All points, the store as it is first, and what they were measured with."""

    over: str
    method: str | None
    factory: str
    tokens: int
    nlm_perplexity: float
    points: list[SweepPoint]
    left_out: dict[str, str]

    def to_json(self) -> Json:
        """Return everything as plain values."""
        return asdict(self)

    def table(self) -> str:
        """Return the points, for people; those that no other beats in both speed and perplexity have a star."""
        what = f"{self.over} ({self.method})" if self.method else self.over
        rows = [
            f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}; index {self.factory}",
            f"{what:>18} {'records':>11} {'dim':>5} {'store':>9} {'index':>9} {'k':>5} {'nprobe':>6} "
            f"{'searches/s':>10} {'perplexity':>10} {'T':>7} {'λ':>5}",
        ]
        for point in self.points:
            value = "as it is" if point.value is None else f"{point.value:g}"
            rows.append(
                f"{'*' if point.pareto else ' '}{value:>17} {point.records:11,} {point.dim:5} "
                f"{size(point.store_bytes):>9} {size(point.index_bytes):>9} {point.k:5} {point.nprobe or '-':>6} "
                f"{point.retrievals_per_second:10,.0f} {point.perplexity:10.3f} {point.temperature:7g} {point.lam:5g}"
            )
        if len({point.index for point in self.points}) > 1:
            rows += [f" {'index':>17} {kind}" for kind in dict.fromkeys(point.index for point in self.points)]
        rows += [f" {value:>17} left out: {why}" for value, why in self.left_out.items()]
        return "\n".join(rows)


def sweep(
    lm: LM,
    store: Datastore,
    over: str,
    values: Sequence[float],
    texts: str | Sequence[str],
    *,
    out: Path,
    method: str | None = None,
    factory: str = "auto",
    k: int = 1024,
    nprobe: int | None = None,
    save_stores: bool = False,
    max_tokens: int | None = None,
    reporter: Reporter | None = None,
    **corpus_options: Any,
) -> Sweep:
    """Vary one thing of a store and measure each point on a text."""
    reporter = reporter or Reporter(quiet=True)
    _check(store, over, values, method, factory, k, nprobe)
    reading = Reading.of_store(store.manifest)
    text = read_text(texts, lm.tokenizer, reading, max_tokens=max_tokens, reporter=reporter, **corpus_options)
    traced = trace_lm(lm, text, reading, reporter)
    name = {"keep": method or "merge", "neighbors": "merge"}.get(over)
    setting = {"over": over, "method": name, "factory": factory, "k": k, "nprobe": nprobe, "text": text.sha256}
    out.mkdir(parents=True, exist_ok=True)
    with files.lock(out):
        notes = _Notes(out, {**setting, "store": store.manifest["checksum"], "trace": traced.key})
        bench = _Bench(store, traced, factory, k, nprobe, out, notes, save_stores, reporter)
        points, left_out = [bench.point(over, None, name)], {}
        bench.usual = points[0].retrievals_per_second
        for number, value in enumerate(values, 1):
            reporter.say(f"point {number} of {len(values)}: {over} {value:g}")
            try:
                points.append(bench.point(over, value, name))
            except OptionError as error:  # e.g. merging that cannot get down to so few records
                left_out[f"{value:g}"] = str(error)
                reporter.say(f"left out: {error}")
        notes.close()
        files.remove(index_folder(store, bench.index))
    nlm = perplexity(np.asarray(traced.logp, np.float64))
    return Sweep(over, name, factory, len(traced), nlm, pareto_front(points), left_out)


def pareto_front(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Mark the points that no other beats in speed and perplexity alike."""
    best = unbeaten([(point.perplexity, -point.retrievals_per_second) for point in points])
    return [replace(point, pareto=mark) for point, mark in zip(points, best, strict=True)]


def _check(
    store: Datastore,
    over: str,
    values: Sequence[float],
    method: str | None,
    factory: str,
    k: int,
    nprobe: int | None,
) -> None:
    """Refuse, before the work, what cannot be swept."""
    if over not in OVER:
        raise OptionError(f"--over is {over!r}, expected one of {', '.join(OVER)}")
    if method is not None and method not in METHODS:
        raise OptionError(f"--method is {method!r}, expected one of {', '.join(METHODS)}")
    if method is not None and over != "keep":
        raise OptionError(f"--method means nothing to --over {over}; it goes with --over keep")
    if k < 1:
        raise OptionError(f"--k is {k}, expected at least 1")
    if not values:
        raise OptionError(f"--over {over} needs values to try, e.g. nearlm sweep STORE 0.2 0.4 --over keep --text …")
    for value in values:
        if over == "keep" and not 0 < value < 1:
            raise OptionError(f"--over keep has {value:g}, expected shares between 0 and 1")
        if over != "keep" and (value < 1 or value != int(value)):
            raise OptionError(f"--over {over} has {value:g}, expected whole numbers from 1 on")
        if over == "dim" and value > store.dim:
            raise OptionError(f"--over dim has {value:g}, expected at most {store.dim}, the width of the store's keys")
    spec = choose_index(factory, len(store), store.dim, nprobe)
    if over == "nprobe" and spec.nprobe is None:
        raise OptionError(f"an index of kind {factory!r} has no lists at this size, so --over nprobe means nothing")


class _Notes:
    """The points measured so far, on disk."""

    def __init__(self, folder: Path, setting: Json):
        self.job = Job(folder, f"{_NAME}-{files.canonical_hash(setting)[:12]}")
        if not self.job.started:
            self.job.begin(setting)

    def get(self, name: str, measure: Callable[[], SweepPoint]) -> SweepPoint:
        """Return a point that has been measured, or measure and note it."""
        noted = self.job.state(name)
        if not noted:
            noted = asdict(measure())
            self.job.note(name, noted)
        return SweepPoint(**noted)

    def close(self) -> None:
        """Forget the points: a sweep that is asked for again is measured again."""
        self.job.close()


@dataclass
class _Bench:
    """Makes and measures points; `usual` is how many searches a second the store as it is gave."""

    store: Datastore
    traced: LMTrace
    factory: str
    k: int
    nprobe: int | None
    out: Path
    notes: _Notes
    save_stores: bool
    reporter: Reporter
    usual: float | None = None

    @property
    def index(self) -> str:
        """The name of the index that a point gets, unless it has one of the kind."""
        return f"{_NAME}-{self.factory}".replace(",", "-")

    def point(self, over: str, value: float | None, method: str | None) -> SweepPoint:
        """Measure one value, or the store as it is."""
        name = f"{method or over}-{'all' if value is None else f'{value:g}'}"

        def measured() -> SweepPoint:
            if value is None or over in ("k", "nprobe"):
                k = int(value) if over == "k" and value else self.k
                nprobe = int(value) if over == "nprobe" and value else self.nprobe
                return self.measure(self.store, over, value, k, nprobe)
            made = self.derived(over, value, method, folder)
            return self.measure(made, over, value, self.k, self.nprobe)

        folder = (self.out if self.save_stores else self.notes.job.folder / "stores") / name
        point = self.notes.get(name, measured)
        if not self.save_stores:
            files.remove(folder)
        return point

    def derived(self, over: str, value: float, method: str | None, folder: Path) -> Datastore:
        """Make the store of a point."""
        quiet = self.reporter.quiet
        folder.parent.mkdir(parents=True, exist_ok=True)
        if over == "dim":
            return reduce_store(self.store, int(value), folder, quiet=quiet)
        options: dict[str, Any] = {"neighbors": int(value)} if over == "neighbors" else {"keep": value}
        if method in ("merge", "rank"):
            options["index"] = known_index(self.store, AUTO)
        return prune_store(self.store, method or "merge", folder, quiet=quiet, **options)

    def measure(self, store: Datastore, over: str, value: float | None, k: int, nprobe: int | None) -> SweepPoint:
        """Index, search, tune and time one store."""
        retriever = self.opened(store, nprobe)
        spec = retriever.index.spec
        trace = trace_search(self.traced, retriever, max(k, self.k), self.reporter)  # one for all numbers of neighbours
        best = best_settings(trace, (k,))[0]
        speed = self.timed(retriever, k) / self.pace()
        return SweepPoint(
            over,
            value,
            len(store),
            store.dim,
            best.k,
            retriever.index.nprobe,
            store.bytes,
            retriever.bytes,
            round(speed, 1),
            best.perplexity,
            best.temperature,
            best.lam,
            f"{spec.factory} over {spec.pca} axes" if spec.pca else spec.factory,
        )

    def opened(self, store: Datastore, nprobe: int | None) -> Retriever:
        """Open the index of a store that has one, or make it."""
        retriever = Retriever(store, index_of(store, self.factory, self.reporter.quiet, self.index))
        if nprobe and retriever.index.nprobe:
            retriever.index.set_nprobe(nprobe)
        return retriever

    def timed(self, retriever: Retriever, k: int) -> float:
        """Return searches a second."""
        return searches_per_second(retriever, np.asarray(self.traced.keys[:TIMED]), k)

    def pace(self) -> float:
        """Return how fast the store as it is is searched now, compared with when it was measured: machines drift."""
        if self.usual is None:
            return 1.0
        return self.timed(self.opened(self.store, self.nprobe), self.k) / self.usual
