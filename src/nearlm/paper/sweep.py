"""What a smaller or cheaper store costs: one thing varied, everything else matched, point after point.

Every point is measured alike: an index of the same kind, λ and T tuned on the text, searches timed by themselves, each
next to searches of the store as it is, since a machine's speed drifts. What has been measured is noted in the sweep's
folder, so that it resumes after a kill; stores made for a point, and an index that the sweep had to make in the store
itself, are removed when they have served, unless the stores are wanted.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nearlm.base import QUIET, Job, OptionError, Reporter, canonical_hash, check_at_least, files, to_json
from nearlm.mixing import LMTrace, best_settings, perplexity, trace_text
from nearlm.model.lm import LM
from nearlm.optimizer import Bench, Setup, mark_front, own_name
from nearlm.paper.results import OVER, Sweep, SweepPoint
from nearlm.search import AUTO, Retriever, choose_index
from nearlm.shrink import TAKES, PruneOptions
from nearlm.store import Datastore, SearchSettings
from nearlm.text import Texts

_INDEXES = "indexes"  # of a job: what it made in the user's store


@dataclass(frozen=True)
class SweepOptions:
    """What is varied, and what stays the same."""

    over: str
    """dim, keep, neighbors, k or nprobe."""
    method: str | None = None
    """With over keep: random, kmeans, merge or rank. [default: merge]"""
    factory: str = AUTO
    """The index of every point, as for `index`."""
    nprobe: int | None = None
    """Lists a search looks at. [default: the index's]"""
    k: int = 1024
    """Neighbours per token."""
    save_stores: bool = False
    """Keep the stores that were made."""

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise OptionError(f"`over` is {self.over!r}, expected one of {', '.join(OVER)}")
        if self.method is not None and self.method not in TAKES:
            raise OptionError(f"`method` is {self.method!r}, expected one of {', '.join(TAKES)}")
        if self.method is not None and self.over != "keep":
            raise OptionError(f"`method` has no effect with `over={self.over!r}`; it goes with `over='keep'`")
        check_at_least(1, k=self.k)

    def check(self, store: Datastore, values: Sequence[float]) -> None:
        """Refuse, before the work, what cannot be swept."""
        over = self.over
        if not values:
            raise OptionError(f"`over={over!r}` needs values to try, e.g. 0.2 and 0.4 with `over='keep'`")
        for value in values:
            if over == "keep" and not 0 < value < 1:
                raise OptionError(f"`over='keep'` has {value:g}, expected shares between 0 and 1")
            if over != "keep" and not (value >= 1 and float(value).is_integer()):
                raise OptionError(f"`over={over!r}` has {value:g}, expected whole numbers from 1 on")
            if over == "dim" and value > store.dim:
                raise OptionError(f"`over='dim'` has {value:g}, expected at most {store.dim}, the width of a key")
        spec = choose_index(self.factory, len(store), store.dim, self.nprobe)
        if over == "nprobe" and spec.nprobe is None:
            raise OptionError(f"`over='nprobe'` has no effect: {self.factory!r} has no lists at this size")

    @property
    def used_method(self) -> str | None:
        """How records are pruned, if they are."""
        return {"keep": self.method or "merge", "neighbors": "merge"}.get(self.over)


def sweep(
    lm: LM,
    store: Datastore,
    values: Sequence[float],
    text: Texts,
    options: SweepOptions,
    out: Path,
    *,
    reporter: Reporter = QUIET,
) -> Sweep:
    """Vary one thing of a store and measure each point on a text."""
    store.need_keys()
    options.check(store, values)
    traced = trace_text(lm, store, text, reporter)
    out.mkdir(parents=True, exist_ok=True)
    with files.lock(out):
        bench = _SweepBench(store, traced, options, out, reporter)
        points = [bench.point(None)]
        left_out = {}
        for number, value in enumerate(values, 1):
            reporter.say(f"point {number} of {len(values)}: {options.over} {value:g}")
            try:
                points.append(bench.point(value))
            except OptionError as error:  # e.g. merging that cannot get down to so few records
                left_out[f"{value:g}"] = str(error)
                reporter.say(f"left out: {error}")
        bench.close()
    return Sweep(
        over=options.over,
        method=options.used_method,
        factory=options.factory,
        tokens=len(traced),
        nlm_perplexity=perplexity(traced.log_lm),
        points=pareto_front(points),
        left_out=left_out,
    )


def pareto_front(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Mark the points that no other beats in speed and perplexity alike."""
    best = mark_front([(point.perplexity, -point.searches_per_second) for point in points])
    return [replace(point, pareto=mark) for point, mark in zip(points, best, strict=True)]


class _SweepBench(Bench):
    """Makes and measures the points of one sweep, and notes them."""

    def __init__(self, store: Datastore, traced: LMTrace, options: SweepOptions, out: Path, reporter: Reporter):
        super().__init__(store, traced, reporter)
        self.steps = reporter
        self.options = options
        asked = {name: value for name, value in to_json(options).items() if name != "save_stores"}
        plan = {**asked, "text": traced.text.sha256, "store": store.checksum, "trace": traced.key}
        self.job = Job(out, f"sweep-{canonical_hash(plan)[:12]}")
        self.job.resume(plan)
        self.stores = out if options.save_stores else self.job.folder / "stores"
        self.usual: float | None = None  # searches per second of the store as it is, when it was measured

    def name_index(self, store: Datastore, kind: str) -> str:
        """Return how to call an index that has to be made; one in the user's own store is new there, and noted."""
        if store is not self.store:
            return own_name(kind)
        made = self.job.state(_INDEXES)
        if kind not in made:
            numbered = (f"{own_name(kind)}-{number}" for number in itertools.count(1))
            made[kind] = next(name for name in numbered if not store.layout.index(name).folder.exists())
            self.job.note(_INDEXES, made)
        return str(made[kind])

    def close(self) -> None:
        """Remove the indexes that were made in the user's store, and forget what was measured."""
        for name in self.job.state(_INDEXES).values():
            files.remove(self.store.layout.index(name).folder)
        self.job.close()

    def point(self, value: float | None) -> SweepPoint:
        """Measure one value, or the store as it is, unless an earlier run has."""
        over = self.options.over
        label = "all" if value is None else f"{value:g}"
        folder = self.stores / f"{self.options.used_method or over}-{label}"

        def measure() -> SweepPoint:
            k = int(value) if over == "k" and value else self.options.k
            nprobe = int(value) if over == "nprobe" and value else self.options.nprobe
            made = self.store
            if value is not None and over not in ("k", "nprobe"):
                made = self.derive(value, folder)
            return self.measure(made, value, k, nprobe)

        point = self.job.once(folder.name, SweepPoint, measure)
        if not self.options.save_stores:
            files.remove(folder)
        if value is None:
            self.usual = point.searches_per_second
        return point

    def derive(self, value: float, folder: Path) -> Datastore:
        """Make the store of a point."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        if self.options.over == "dim":
            return self.reduce(self.store, int(value), folder)
        method = self.options.used_method or "merge"
        index = self.index(self.store, AUTO) if "index" in TAKES[method] else None
        if self.options.over == "neighbors":
            return self.prune(PruneOptions(method, neighbors=int(value), index=index), folder)
        return self.prune(PruneOptions(method, keep=value, index=index), folder)

    def measure(self, store: Datastore, value: float | None, k: int, nprobe: int | None) -> SweepPoint:
        """Index, search, tune and time one store."""
        retriever = self.open_index(store, nprobe)
        trace = self.trace(retriever, max(k, self.options.k))  # one for all numbers of neighbours
        best = best_settings(trace, (k,))[0]
        speed = self.searches_per_second(retriever, k) / self.pace()
        setup = Setup.of(retriever, SearchSettings(**best.values))
        return SweepPoint(value, setup, round(speed, 1), best.perplexity)

    def open_index(self, store: Datastore, nprobe: int | None) -> Retriever:
        """Open the index of a store that has one, or make it."""
        retriever = Retriever(store, self.index(store, self.options.factory))
        if nprobe and retriever.index.nprobe:
            retriever.index.set_nprobe(nprobe)
        return retriever

    def pace(self) -> float:
        """Return how fast the store as it is is searched now, compared with when it was measured: machines drift."""
        if self.usual is None:
            return 1.0
        return self.searches_per_second(self.open_index(self.store, self.options.nprobe), self.options.k) / self.usual
