"""What experiments found, as records and as plain files in a folder: one JSON and one CSV a part."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from nearlm.base import Json, OptionError, StoreError, files, from_json, line_up, to_json
from nearlm.knnlm import Explanation
from nearlm.optimizer import OVERHEAD, Choice, Fit, Setup
from nearlm.paper.comparison_table import Comparison
from nearlm.paper.mixture_ablation import MixtureAblation
from nearlm.paper.settings import About

NLM = "NLM"
VANILLA = "kNN-LM"
ALL = "+ All"  # the fastest within a budget, as in the paper
WITHIN = f"+ within {100 * OVERHEAD:g} %"  # of the LM's time the best, as `optimize` has it
MIXED = {"+ gate after search": "knn", "+ ∞-gram": "knn,ngram", "+ text so far": "knn,ngram,text"}  # and their sources
FINETUNED = "NLM, fine-tuned"
RANDOM = "random mask, constant λ"
MASK = "learned mask, constant λ"
LEARNED = "learned mask, learned λ"
OVER = ("dim", "keep", "neighbors", "k", "nprobe")  # what is swept over
_SHOWN = 6  # tokens of a continuation


def _check(sound: bool, found: str) -> None:
    """Refuse what no experiment can have measured."""
    if not sound:
        raise OptionError(f"the results have {found}")


@dataclass(frozen=True)
class Row:
    """One LM with or without a memory: what it gives on the test text, and what it takes.

    `microseconds` are those that a token takes beyond the LM. Speed is measured end to end, in one run with the LM, or
    put together from the times of its parts. Searches are timed by themselves.
    """

    name: str
    perplexity: float
    tokens_per_second: float
    microseconds: float = 0.0
    end_to_end: bool = False
    searches_per_second: float | None = None
    skipped: float = 0.0
    setup: Setup | None = None

    def __post_init__(self) -> None:
        _check(0 < self.tokens_per_second < float("inf"), f"{self.tokens_per_second} tokens/s")


@dataclass(frozen=True)
class MainTable:
    """The paper's main table: the LM, the vanilla kNN-LM, and its remedies one by one and together.

    `rounds` has the tokens/s, round by round, of those that were timed end to end.
    """

    tokens: int
    rows: list[Row]
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def row(self, name: str) -> Row:
        """Return the row of a name."""
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise StoreError(f"the table has no row {name!r}, only {', '.join(map(repr, rows))}; measure it again")
        return rows[name]

    def speedup(self, row: Row, than: str = VANILLA) -> float:
        """Return a row's speed against that of another."""
        return row.tokens_per_second / self.row(than).tokens_per_second

    def nlm_share(self, row: Row) -> str:
        """Return a row's speed as a share of the LM's, for people: ≈ 100 % where the rounds cannot tell them apart.

        That is a difference of at most half the rounds' range, or any gain: a memory does not make the LM faster.
        """
        share = self.speedup(row, NLM)
        rounds = zip(self.rounds.get(row.name, ()), self.rounds.get(NLM, ()), strict=False)
        shares = [speed / alone for speed, alone in rounds] or [share]
        if row.setup and share + (max(shares) - min(shares)) / 2 >= 1:
            return "≈\xa0100\xa0%"
        return f"{100 * share:.0f}\xa0%"

    def table(self) -> str:
        """Return the rows, for people."""
        speeds = ("tokens/s", "speed-up", "of NLM", "µs beyond", "skipped")
        rows: list[tuple[str, ...]] = [("", "perplexity", *speeds, "records", "store", "index")]
        for row in self.rows:
            speed = f"{row.tokens_per_second:,.0f}{'*' if row.end_to_end else ' '}"
            faster = (f"{self.speedup(row):.2f}×", self.nlm_share(row))
            costs = (f"{row.microseconds:.0f}", f"{row.skipped:.0%}")
            sizes = row.setup.sizes if row.setup else ()
            rows.append((row.name, f"{row.perplexity:.3f}", speed, *faster, *costs, *sizes))
        end = "* timed end to end; the others from their parts"
        return "\n".join([f"{self.tokens:,} test tokens", *line_up(rows), end])


@dataclass(frozen=True)
class SweepPoint:
    """One store and setting: what it takes on disk, how fast it answers, and the best perplexity it gives."""

    value: float | None
    setup: Setup
    searches_per_second: float
    perplexity: float
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

    def __post_init__(self) -> None:
        _check(self.over in OVER, f"a sweep over {self.over!r}")
        _check(all(point.setup.tuned for point in self.points), "points that were not tuned")

    def table(self) -> str:
        """Return the points, for people; those that no other beats in both speed and perplexity have a star."""
        what = f"{self.over} ({self.method})" if self.method else self.over
        names = ("records", "store", "index", "dim", "k", "nprobe", "searches/s", "perplexity", "T", "λ")
        rows: list[tuple[str, ...]] = [(f"  {what}", *names)]
        for point in self.points:
            search = point.setup.search
            value = "as it is" if point.value is None else f"{point.value:g}"
            name = f"{'*' if point.pareto else ' '} {value}"
            settings = (f"{point.setup.dim}", f"{search.k}", f"{search.nprobe or '-'}")
            found = (f"{point.searches_per_second:,.0f}", f"{point.perplexity:.3f}")
            tuned = (f"{search.knn_temperature:g}", f"{search.lam:g}")
            rows.append((name, *point.setup.sizes, *settings, *found, *tuned))
        lines = [
            f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}; index {self.factory}",
            *line_up(rows),
        ]
        kinds = list(dict.fromkeys(point.setup.kind for point in self.points))
        if len(kinds) > 1:
            lines += [f"  index {kind}" for kind in kinds]
        lines += [f"  {value} left out: {why}" for value, why in self.left_out.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Oracle:
    """What retrieving only where p_kNN ≥ p_LM would give: share skipped, perplexity with λ, with the better of both."""

    skipped: float
    constant: float
    best: float


@dataclass(frozen=True)
class FeatureRow:
    """A network trained with some features: its perplexity at every share skipped."""

    features: list[str]
    perplexity: list[float]
    epochs: int


@dataclass(frozen=True)
class PartSpeed:
    """The times of the parts, and the tokens/s that they add up to at every share skipped."""

    seconds_per_token: dict[str, float]
    tokens_per_second: list[float]


@dataclass(frozen=True)
class Ablation:
    """What was found on a text: a perplexity for every share of removed retrievals, row by row."""

    tokens: int
    nlm_perplexity: float
    lam: float
    vanilla_perplexity: float
    best_lam: float
    best_constant_perplexity: float
    shares: list[float]
    curves: dict[str, list[float]]
    skipped: list[float]
    equal_share: float
    oracle: Oracle
    features: list[FeatureRow]
    objectives: dict[str, list[float]]
    speed: PartSpeed

    def __post_init__(self) -> None:
        rows = [*self.all_curves.values(), *(row.perplexity for row in self.features), self.speed.tokens_per_second]
        _check({len(row) for row in rows} == {len(self.shares)} != {0}, "curves that were cut")
        _check({RANDOM, LEARNED} <= self.curves.keys(), "no curves of a gate")

    @property
    def all_curves(self) -> dict[str, list[float]]:
        """The curves of masks and weights, and of other objectives."""
        return {**self.curves, **self.objectives}

    def table(self) -> str:
        """Return what was found, for people."""
        rows = [["share skipped", *(f"{share:.0%}" for share in self.shares[::2])]]
        rows += [[name, *(f"{value:.3f}" for value in values[::2])] for name, values in self.all_curves.items()]
        rows.append(["tokens/s, from its parts", *(f"{value:.0f}" for value in self.speed.tokens_per_second[::2])])
        half = len(self.shares) // 2
        halves = [[f"  {'+'.join(row.features)}", f"at 50 %: {row.perplexity[half]:.3f}"] for row in self.features]
        lines = [
            f"{self.tokens:,} tokens; perplexity of the LM {self.nlm_perplexity:.3f}, with λ={self.lam:g} "
            f"{self.vanilla_perplexity:.3f}, with the test's own best λ={self.best_lam:g} "
            f"{self.best_constant_perplexity:.3f}",
            *line_up(rows),
            f"the gate is as good as λ={self.lam:g} for all up to {self.equal_share:.0%} skipped",
            f"oracle: {self.oracle.skipped:.0%} need no memory; perplexity {self.oracle.constant:.3f} with "
            f"λ={self.lam:g}, {self.oracle.best:.3f} with the better of the two",
            *line_up(halves),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Continuation:
    """A prompt continued without and with the memory, and what the memory had to do with each token."""

    prompt: str
    without: str
    written: str
    tokens: list[Explanation]
    truth: str = ""  # how the document goes on that the prompt is from

    def table(self) -> str:
        """Show both continuations, and the tokens that owe the memory most."""
        lines = [f"{self.prompt} …", f"  without: {self.without!r}", f"  with:    {self.written!r}"]
        lines += [f"  true:    {self.truth!r}"] if self.truth else []
        owed = sorted(self.tokens, key=lambda one: one.p_lm - one.p)[:_SHOWN]
        for one in (token for token in self.tokens if token in owed):
            lines.append(
                f"    {one.token!r:14} p_LM {one.p_lm:.3f}  p_kNN {one.p_knn:.3f}  λ {one.lam:.2f}  p {one.p:.3f}"
            )
            for _, near in one.nearest[:1]:
                before = " ".join(near.text.split())[-50:]
                lines.append(f"      …{before} → {near.target!r}  ({near.document})")
        return "\n".join(lines)


@dataclass(frozen=True)
class Parts:
    """All that an experiment may have measured, in the order of reading; None has not been."""

    about: About | None = None
    comparison: Comparison | None = None
    fit: Fit | None = None
    main: MainTable | None = None
    continuation: Continuation | None = None
    baseline: MainTable | None = None
    choice: Choice | None = None
    within: Choice | None = None
    mixture: MixtureAblation | None = None
    adaptive: Ablation | None = None
    pruning: dict[str, Sweep] | None = None
    pca: Sweep | None = None
    k: Sweep | None = None

    def table(self) -> str:
        """Return the main table, the choice and the continuation, for people."""
        shown = [
            self.comparison and self.comparison.table(),
            self.fit and self.fit.table(),
            self.main and self.main.table(),
            self.choice and f"{ALL}: {self.choice.paragraph}",
            self.within and f"{WITHIN}: {self.within.paragraph}",
            self.continuation and self.continuation.table(),
        ]
        return "\n\n".join(part for part in shown if part)


_KINDS = get_type_hints(Parts)


class Results:
    """A folder of parts."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, part: str, found: Any, rows: Sequence[Any] = ()) -> None:
        """Write a part, and its rows as a table for other programs."""
        assert part in _KINDS
        self.folder.mkdir(parents=True, exist_ok=True)
        if rows:
            flat = [_flat(to_json(row)) for row in rows]
            names = dict.fromkeys(name for row in flat for name in row)
            text = io.StringIO()
            writer = csv.DictWriter(text, list(names), lineterminator="\n")
            writer.writeheader()
            writer.writerows(flat)
            files.write_bytes(self.folder / f"{part}.csv", text.getvalue().encode())
        files.write_json(self.folder / f"{part}.json", to_json(found))  # last: with it a part is done

    def has(self, part: str) -> bool:
        """Tell whether a part has been measured."""
        return (self.folder / f"{part}.json").exists()

    def load(self, part: str) -> Any:
        """Return a part, or None if it has not been measured."""
        path = self.folder / f"{part}.json"
        return from_json(_KINDS[part], files.read_json(path), path) if self.has(part) else None

    def all(self) -> Parts:
        """Return every part that has been measured."""
        return Parts(**{part.name: self.load(part.name) for part in fields(Parts)})


def _flat(row: Json) -> Json:
    """Return a row with what is nested in it as columns of its own."""
    columns: Json = {}
    for name, value in row.items():
        if isinstance(value, dict):
            columns |= _flat(value)
        elif name != "setup":  # of a row without a memory
            columns[name] = value
    return columns
