"""What `fit` found, and what it keeps with the store: which documents are held out, and how well the memory does."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from nearlm.base import FileInfo, StoreError, check_at_least, check_files, files, read_record, size, write_record
from nearlm.optimizer.continuations import Continuation
from nearlm.optimizer.unseen import Unseen
from nearlm.store import FitFiles
from nearlm.text import Split

FORMAT = 1
_PROMPT_WORDS = 8


@dataclass(frozen=True, repr=False)
class Fit:
    """A memory that `fit` made: what it holds, what was held out, what was chosen, and how well it does.

    `notes` say what could not be tuned or measured, and what else is worth knowing.
    """

    model: str
    records: int
    documents: int
    bytes: int
    valid_documents: int
    valid_tokens: int
    test_documents: int
    left_documents: int
    chosen: str
    notes: tuple[str, ...]
    unseen: Unseen | None
    continuation: Continuation | None

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return all of it, for people."""
        held = f"{self.valid_documents:,} held out to tune on, {self.test_documents:,} to measure"
        later = f", {self.left_documents:,} left for another time" if self.left_documents else ""
        parts = [
            [f"{self.records:,} records of {self.documents:,} documents, {size(self.bytes)} ({held}{later})"],
            [f"Chosen: {self.chosen}.", *(f"Note: {note}" for note in self.notes)],
            self.unseen.lines() if self.unseen else [],
            self.continuation.lines() if self.continuation else [],
        ]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def commands(self, store: str | Path) -> list[str]:
        """Return the commands to go on with, for a store as its user calls it."""
        words = self.continuation.prompt.split() if self.continuation else ["Once"]
        prompt = re.sub(r"[\"`$\\!]", "", " ".join(words[:_PROMPT_WORDS]))
        prompt = "".join(letter for letter in prompt if letter.isprintable())
        place = shlex.quote(str(store))
        return [f"nearlm serve {place}", f'nearlm generate {place} "{prompt}"']


@dataclass(frozen=True)
class FitRecord:
    """What `fit.json` says: what was asked for, of which text (hashes), how it is cut, its table, what was found."""

    format: int
    request: str
    text: str
    block: int | None
    rows: int
    files: dict[str, FileInfo]
    fit: Fit

    def __post_init__(self) -> None:
        check_at_least(0, rows=self.rows)
        check_at_least(1, block=self.block)  # a text is never cut into nothing


def write_fit(place: FitFiles, request: str, text: str, split: Split, found: Fit) -> None:
    """Keep what was found and the split, whole or not at all."""
    rows = split.to_array()
    place.folder.mkdir(parents=True, exist_ok=True)
    table = place.documents(f"documents-{files.canonical_hash(rows.tolist())[:8]}.npy", len(rows))
    table.write(rows)
    write_record(
        place.description,
        FitRecord(FORMAT, request, text, split.block, len(rows), FileInfo.by_name([table.path]), found),
    )
    for path in place.all_documents():
        if path != table.path:
            files.remove(path)


def read_fit(place: FitFiles) -> tuple[FitRecord, Split] | None:
    """Return what was kept, None if nothing was."""
    if not place.description.exists():
        return None
    found = files.read_json(place.description).get("format")
    if found != FORMAT:
        raise StoreError(f"{place.description} has format {found}, this nearlm reads {FORMAT}; use another `out`")
    record = read_record(FitRecord, place.description)
    if len(record.files) != 1:
        raise StoreError(f"{place.description} names {len(record.files)} tables of documents, expected one")
    table = place.documents(next(iter(record.files)), record.rows)
    remedy = f"restore it, or remove {place.folder} and use another `out`"
    check_files(place.folder, record.files, remedy, every_byte=True)
    table.check()
    return record, Split.from_array(table.open(), record.block)


def verify_fit(place: FitFiles) -> None:
    """Refuse what was kept if it is not as it was written."""
    read_fit(place)
