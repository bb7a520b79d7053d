"""What an experiment found, as plain files in a folder: one JSON and one CSV a part, from which pages are made."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nearlm.base import Json, files, size

PARTS = ("about", "baseline", "main", "choice", "adaptive", "pruning", "pca", "k", "continuation")
NLM, VANILLA, ALL, FINETUNED = "NLM", "kNN-LM", "+ All", "NLM, fine-tuned"
RANDOM, MASK, LEARNED = "random mask, constant λ", "learned mask, constant λ", "learned mask, learned λ"
_SHOWN = 6  # tokens of a continuation


@dataclass(frozen=True)
class Row:
    """One LM with or without a memory: what it gives on the test text, and what it takes.

    `microseconds` are those that a token takes beyond the LM. Speed is measured end to end, in one run with the LM, or
    put together from the times of its parts. Searches are timed by themselves. `index_bytes` are those of all that is
    needed beside the records: the index, and an adaptor with its tables.
    """

    name: str
    perplexity: float
    tokens_per_second: float
    microseconds: float = 0.0
    end_to_end: bool = False
    searches_per_second: float | None = None
    records: int | None = None
    dim: int | None = None
    store_bytes: int | None = None
    index_bytes: int | None = None
    index: str | None = None
    nprobe: int | None = None
    k: int | None = None
    temperature: float | None = None
    lam: float | None = None
    skipped: float = 0.0


@dataclass(frozen=True)
class MainTable:
    """The paper's main table: the LM, the vanilla kNN-LM, and its remedies one by one and together.

    `rounds` has the tokens/s, round by round, of those that were timed end to end.
    """

    tokens: int
    rows: list[Row]
    rounds: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Json) -> "MainTable":
        """Read a table back."""
        names = Row.__dataclass_fields__
        rows = [Row(**{name: row[name] for name in names}) for row in found["rows"]]
        return cls(found["tokens"], rows, found.get("rounds", {}))

    def row(self, name: str) -> Row:
        """Return the row of a name."""
        return next(row for row in self.rows if row.name == name)

    def to_json(self) -> Json:
        """Return everything as plain values, with each row's speed against the vanilla kNN-LM's and the LM's."""
        nlm, vanilla = (self.row(name).tokens_per_second for name in (NLM, VANILLA))
        ratios = [
            {"speedup": row.tokens_per_second / vanilla, "share_of_nlm": row.tokens_per_second / nlm}
            for row in self.rows
        ]
        return {
            "tokens": self.tokens,
            "rows": [asdict(row) | ratio for row, ratio in zip(self.rows, ratios, strict=True)],
            "rounds": self.rounds,
        }

    def table(self) -> str:
        """Return the rows, for people."""
        lines = [
            f"{self.tokens:,} test tokens",
            f"{'':22} {'perplexity':>10} {'tokens/s':>9} {'speed-up':>8} {'of NLM':>7} {'µs beyond':>9} {'skipped':>8} "
            f"{'records':>10} {'store':>9} {'index':>9}",
        ]
        for row in self.to_json()["rows"]:
            sizes = (f"{size(row[part]):>9}" for part in ("store_bytes", "index_bytes"))
            bulk = " ".join([f"{row['records']:10,}", *sizes]) if row["records"] else ""
            lines.append(
                f"{row['name']:22} {row['perplexity']:10.3f} {row['tokens_per_second']:9,.0f}"
                f"{'*' if row['end_to_end'] else ' '}{row['speedup']:7.2f}× {row['share_of_nlm']:7.1%} "
                f"{row['microseconds']:9.1f} {row['skipped']:8.0%} {bulk}"
            )
        return "\n".join([*(line.rstrip() for line in lines), "* timed end to end; the others from their parts"])


class Results:
    """A folder of parts."""

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, part: str, found: Json, rows: Sequence[Json] = ()) -> None:
        """Write a part, and its rows as a table for other programs."""
        assert part in PARTS
        self.folder.mkdir(parents=True, exist_ok=True)
        if rows:
            text = io.StringIO()
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            files.write_bytes(self.folder / f"{part}.csv", text.getvalue().encode())
        files.write_json(self.folder / f"{part}.json", found)  # last: with it a part is done

    def load(self, part: str) -> Json | None:
        """Return a part, or None if it has not been measured."""
        path = self.folder / f"{part}.json"
        return files.read_json(path) if path.exists() else None

    def all(self) -> dict[str, Json]:
        """Return every part that has been measured."""
        found = {part: self.load(part) for part in PARTS}
        return {part: value for part, value in found.items() if value is not None}

    def told(self) -> str:
        """Return the main table, the choice and the continuation, for people."""
        found, said = self.all(), []
        if "main" in found:
            said.append(MainTable.from_json(found["main"]).table())
        if "choice" in found:
            said.append(found["choice"]["paragraph"])
        if "continuation" in found:
            said.append(_told_continuation(found["continuation"]))
        return "\n\n".join(said)


def _told_continuation(found: Json) -> str:
    """Show a continuation without and with the memory, and the tokens that owe the memory most."""
    lines = [f"{found['prompt']} …", f"  without: {found['without']!r}", f"  with:    {found['with']!r}"]
    owed = sorted(found["tokens"], key=lambda one: one["p_lm"] - one["p"])[:_SHOWN]
    for one in (token for token in found["tokens"] if token in owed):
        lines.append(
            f"    {one['token']!r:14} p_LM {one['p_lm']:.3f}  p_kNN {one['p_knn']:.3f}  λ {one['lam']:.2f}  "
            f"p {one['p']:.3f}"
        )
        for near in one["nearest"][:1]:
            before = " ".join(near["text"].split())[-50:]
            lines.append(f"      …{before} → {near['token']!r}  ({near['source']})")
    return "\n".join(lines)
