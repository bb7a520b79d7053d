"""What experiments found, as records and as plain files in a folder: one JSON and one CSV a part."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from nearlm.base import Json, StoreError, files, from_json, size, to_json
from nearlm.knnlm import Explanation
from nearlm.optimizer import Choice, Setup

NLM = "NLM"
VANILLA = "kNN-LM"
ALL = "+ All"
FINETUNED = "NLM, fine-tuned"
RANDOM = "random mask, constant λ"
MASK = "learned mask, constant λ"
LEARNED = "learned mask, learned λ"
_SHOWN = 6  # tokens of a continuation


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

    def table(self) -> str:
        """Return the rows, for people."""
        lines = [
            f"{self.tokens:,} test tokens",
            f"{'':22} {'perplexity':>10} {'tokens/s':>9} {'speed-up':>8} {'of NLM':>7} {'µs beyond':>9} {'skipped':>8} "
            f"{'records':>10} {'store':>9} {'index':>9}",
        ]
        for row in self.rows:
            bulk = ""
            if row.setup:
                bulk = f"{row.setup.records:10,} {size(row.setup.store_bytes):>9} {size(row.setup.index_bytes):>9}"
            lines.append(
                f"{row.name:22} {row.perplexity:10.3f} {row.tokens_per_second:9,.0f}{'*' if row.end_to_end else ' '}"
                f"{self.speedup(row):7.2f}× {self.speedup(row, NLM):7.1%} {row.microseconds:9.1f} "
                f"{row.skipped:8.0%} {bulk}"
            )
        return "\n".join([*(line.rstrip() for line in lines), "* timed end to end; the others from their parts"])


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

    def table(self) -> str:
        """Return the points, for people; those that no other beats in both speed and perplexity have a star."""
        what = f"{self.over} ({self.method})" if self.method else self.over
        rows = [
            f"{self.tokens:,} tokens; the LM alone has perplexity {self.nlm_perplexity:.3f}; index {self.factory}",
            f"{what:>18} {'records':>11} {'dim':>5} {'store':>9} {'index':>9} {'k':>5} {'nprobe':>6} "
            f"{'searches/s':>10} {'perplexity':>10} {'T':>7} {'λ':>5}",
        ]
        for point in self.points:
            setup = point.setup
            search = setup.search
            value = "as it is" if point.value is None else f"{point.value:g}"
            rows.append(
                f"{'*' if point.pareto else ' '}{value:>17} {setup.records:11,} {setup.dim:5} "
                f"{size(setup.store_bytes):>9} {size(setup.index_bytes):>9} {search.k:5} {search.nprobe or '-':>6} "
                f"{point.searches_per_second:10,.0f} {point.perplexity:10.3f} "
                f"{search.knn_temperature:7g} {search.lam:5g}"
            )
        kinds = list(dict.fromkeys(point.setup.kind for point in self.points))
        if len(kinds) > 1:
            rows += [f" {'index':>17} {kind}" for kind in kinds]
        rows += [f" {value:>17} left out: {why}" for value, why in self.left_out.items()]
        return "\n".join(rows)


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

    @property
    def all_curves(self) -> dict[str, list[float]]:
        """The curves of masks and weights, and of other objectives."""
        return {**self.curves, **self.objectives}

    def table(self) -> str:
        """Return what was found, for people."""
        rows = [
            f"{self.tokens:,} tokens; perplexity of the LM {self.nlm_perplexity:.3f}, with λ={self.lam:g} "
            f"{self.vanilla_perplexity:.3f}, with the test's own best λ={self.best_lam:g} "
            f"{self.best_constant_perplexity:.3f}",
            f"{'share skipped':28}" + "".join(f"{share:8.0%}" for share in self.shares[::2]),
        ]
        for name, values in self.all_curves.items():
            rows.append(f"{name:28}" + "".join(f"{value:8.3f}" for value in values[::2]))
        speeds = "".join(f"{value:8.0f}" for value in self.speed.tokens_per_second[::2])
        rows.append(f"{'tokens/s, from its parts':28}{speeds}")
        rows.append(f"the gate is as good as λ={self.lam:g} for all up to {self.equal_share:.0%} skipped")
        rows.append(
            f"oracle: {self.oracle.skipped:.0%} need no memory; perplexity {self.oracle.constant:.3f} with "
            f"λ={self.lam:g}, {self.oracle.best:.3f} with the better of the two"
        )
        rows += [f"  {'+'.join(row.features):28} at 50 %: {row.perplexity[10]:.3f}" for row in self.features]
        return "\n".join(rows)


@dataclass(frozen=True)
class Continuation:
    """A prompt continued without and with the memory, and what the memory had to do with each token."""

    prompt: str
    without: str
    written: str
    tokens: list[Explanation]

    def table(self) -> str:
        """Show both continuations, and the tokens that owe the memory most."""
        lines = [f"{self.prompt} …", f"  without: {self.without!r}", f"  with:    {self.written!r}"]
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
class PaperRow:
    """What the paper found for a row of its main table."""

    name: str
    perplexity: float
    tokens_per_second: float


@dataclass(frozen=True)
class About:
    """What was measured, with what, where, and how long it took."""

    setting: str
    title: str
    text: str
    model: str
    records: int
    dim: int
    store_bytes: int
    valid_tokens: int
    test_tokens: int
    cores: int
    machine: str
    versions: dict[str, str]
    command: str
    seconds: float
    paper: list[PaperRow]


@dataclass(frozen=True)
class Parts:
    """All that an experiment may have measured, in the order of reading; None has not been."""

    about: About | None = None
    main: MainTable | None = None
    continuation: Continuation | None = None
    baseline: MainTable | None = None
    choice: Choice | None = None
    adaptive: Ablation | None = None
    pruning: dict[str, Sweep] | None = None
    pca: Sweep | None = None
    k: Sweep | None = None

    def table(self) -> str:
        """Return the main table, the choice and the continuation, for people."""
        shown = [
            self.main and self.main.table(),
            self.choice and self.choice.paragraph,
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
            text = io.StringIO()
            writer = csv.DictWriter(
                text, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n"
            )
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
