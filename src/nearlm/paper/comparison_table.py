"""The comparison as records, as a table for people, as rows for other programs, and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from nearlm.base import Json, StoreError, duration, line_up, size, to_json
from nearlm.optimizer.unseen import Quality
from nearlm.paper.continuation import Written

_HEADS = (
    "method",
    "minutes",
    "bits per byte",
    "perplexity",
    "next 5",
    "next 20",
    "rare words",
    "unrelated text, bits per byte",
    "tokens/s",
    "disk",
    "add",
    "remove",
)


@dataclass(frozen=True)
class MethodRow:
    """One method with one budget: what it gives on test and on unrelated text, and what it takes.

    `minutes` are the budget (None: the method needs none), `seconds` what was used of it, `tokens` the training
    tokens that it has read, `text` a hash of the test text.
    """

    method: str
    minutes: float | None
    seconds: float
    tokens: int
    chosen: str
    text: str
    test_tokens: int
    test: Quality
    written: Written
    unrelated: Quality | None
    unrelated_written: Written | None
    tokens_per_second: float
    disk: int
    add_seconds: float | None
    remove_seconds: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row, for people."""
        other = "–" if self.unrelated is None else self.unrelated.cells[0]
        return (
            self.method,
            "–" if self.minutes is None else f"{self.minutes:g}",
            *self.test.cells,
            f"{self.written.next5.share:.1%}",
            f"{self.written.next20.share:.1%}",
            f"{self.written.rare.share:.1%}",
            other,
            f"{self.tokens_per_second:,.0f}",
            size(self.disk) if self.disk else "–",
            _seconds(self.add_seconds),
            _seconds(self.remove_seconds),
        )

    def flat(self) -> Json:
        """Return the row for other programs: one number a column."""
        columns: Json = {}
        _flatten(to_json(self), "", columns)
        return columns


@dataclass(frozen=True)
class Comparison:
    """All rows that have been measured, on one test text."""

    rows: list[MethodRow]

    def __post_init__(self) -> None:
        texts = {(row.text, row.test_tokens) for row in self.rows}
        if len(texts) > 1:
            raise StoreError("rows of the comparison were measured on different test texts; measure them again")

    @property
    def budgets(self) -> list[float]:
        """The budgets that were measured, in minutes."""
        return sorted({row.minutes for row in self.rows if row.minutes is not None})

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of their rows."""
        return list(dict.fromkeys(row.method for row in self.rows))

    def of(self, method: str) -> list[MethodRow]:
        """Return the rows of a method, by budget."""
        return sorted((row for row in self.rows if row.method == method), key=lambda row: row.minutes or 0.0)

    def best(self, minutes: float) -> MethodRow:
        """Return the best row of a budget."""
        rows = [row for row in self.rows if row.minutes in (None, minutes)]
        return min(rows, key=lambda row: row.test.bits_per_byte)

    def table(self) -> str:
        """Return the rows, for people."""
        tokens = self.rows[0].test_tokens if self.rows else 0
        lines = [f"{tokens:,} test tokens, ± standard error over documents"]
        return "\n".join([*lines, *line_up([_HEADS, *(row.cells for row in self.rows)])])

    def markdown(self) -> str:
        """Return the rows as a Markdown table, the best of each budget in bold."""
        best = {id(self.best(minutes)) for minutes in self.budgets}
        lines = ["| " + " | ".join(_HEADS) + " |", "|" + "---|" * len(_HEADS)]
        for row in self.rows:
            cells = [f"**{cell}**" if id(row) in best and at < 4 else cell for at, cell in enumerate(row.cells)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"


def in_order(rows: Sequence[MethodRow], methods: Sequence[str]) -> list[MethodRow]:
    """Sort rows by budget, and then as the methods are listed."""
    return sorted(rows, key=lambda row: (row.minutes or 0.0, methods.index(row.method)))


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 60 else duration(value)


def _flatten(values: Json, prefix: str, columns: Json) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}_", columns)
        else:
            columns[prefix + name] = value
