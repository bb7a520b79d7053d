"""Which documents of a text a memory holds, and which are held out to tune it and to measure it.

Whole documents are held out, in the order of a hash of their content, so that more text does not reshuffle them. Near
duplicates go to the same part. What has a part keeps it: a document that is added later follows what it is a near
duplicate of, or of which it is a new version; one that is near to documents of several parts is set aside, neither
stored nor measured.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from nearlm.base import Ints
from nearlm.text.corpus import Corpus, Document
from nearlm.text.duplicates import ShingleSets, connect, group
from nearlm.text.sections import cut

TRAIN, VALID, TEST, ASIDE = PARTS = ("train", "valid", "test", "aside")
_HELD_OUT = (VALID, TEST)
_LARGEST = (0.25, 1.0, 4.0)  # of what is wanted, that one family may be; more only if there is nothing else
_ENOUGH = 0.75  # of what is wanted: the next family may be much more than what is missing
_MOST = 0.4  # of the text that is held out
_COLUMNS = 4


@dataclass(frozen=True)
class Passage:
    """A document, or a block of one, in memory."""

    document: Document
    name: str
    row: int
    text: str
    key: bytes
    """A hash of the text."""


def passages(corpus: Corpus, block: int | None = None) -> Iterator[Passage]:
    """Yield the documents of a corpus, each text once; or all of them cut into blocks of about so many characters."""
    seen = set()
    for document in corpus.documents():
        text = "".join(document.pieces)
        blocks = [text] if block is None else cut(text, block)
        for number, part in enumerate(blocks):
            key = hashlib.sha256(part.encode()).digest()[:16]
            if part.strip() and key not in seen:
                seen.add(key)
                name = document.source if len(blocks) == 1 else f"{document.source}#{number + 1}"
                yield Passage(document, name, document.row, part, key)


@dataclass(frozen=True)
class Survey:
    """What a text holds: a key, a name's hash and the characters of each document, and near duplicates in pairs."""

    keys: list[bytes]
    names: list[int]
    sizes: list[int]
    pairs: list[tuple[int, int]]

    @classmethod
    def of(cls, corpus: Corpus, block: int | None = None) -> "Survey":
        """Read a corpus."""
        keys, names, sizes = [], [], []
        sets = ShingleSets()
        for passage in passages(corpus, block):
            keys.append(passage.key)
            names.append(_hash(f"{passage.name}\0{passage.row}"))
            sizes.append(len(passage.text))
            sets.add(passage.text)
        return cls(keys, names, sizes, sets.near_pairs())

    @property
    def characters(self) -> int:
        """The characters of all documents."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Split:
    """The parts of documents, by their keys, and of the last version of each name; `block`: all are cut so."""

    parts: Mapping[bytes, str] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    block: int | None = None

    def assign(self, survey: Survey, wanted: Mapping[str, int]) -> dict[bytes, str]:
        """Return the part of every document of a survey, with about so many characters held out."""
        return dict(zip(survey.keys, _assign(survey, self, wanted), strict=True))

    def adopt(self, survey: Survey, parts: Mapping[bytes, str]) -> "Split":
        """Return the split with some more documents, which a survey knows."""
        named = zip(survey.keys, survey.names, strict=True)
        names = {name: parts[key] for key, name in named if key in parts}
        return Split({**self.parts, **parts}, {**self.names, **names}, self.block)

    def passages(self, corpus: Corpus) -> Iterator[Passage]:
        """Yield the documents of a corpus, cut as those of this split are."""
        return passages(corpus, self.block)

    def select(self, part: str) -> frozenset[bytes]:
        """Return the keys of a part."""
        return frozenset(key for key, other in self.parts.items() if other == part)

    def move(self, source: str, target: str) -> "Split":
        """Return the split with all documents of one part in another."""
        moved = {source: target}
        parts = {key: moved.get(part, part) for key, part in self.parts.items()}
        return Split(parts, {name: moved.get(part, part) for name, part in self.names.items()}, self.block)

    def to_array(self) -> Ints:
        """Return all of it as rows of a key's halves, 0 and a part's number, and of 0, 0, a name and its part."""
        keys = [[*_halves(key), 0, PARTS.index(part)] for key, part in sorted(self.parts.items())]
        names = [[0, 0, name, PARTS.index(part)] for name, part in sorted(self.names.items())]
        return np.array([*keys, *names], np.int64).reshape(-1, _COLUMNS)

    @classmethod
    def from_array(cls, rows: Ints, block: int | None) -> "Split":
        """Return what `to_array` wrote."""
        parts: dict[bytes, str] = {}
        names: dict[int, str] = {}
        for row in rows.tolist():
            part = PARTS[row[3] % len(PARTS)]
            if row[0] or row[1]:
                parts[np.array(row[:2], "<i8").tobytes()] = part
            else:
                names[row[2]] = part
        return cls(parts, names, block)


def _assign(survey: Survey, known: Split, wanted: Mapping[str, int]) -> list[str]:
    """Return the part of every document of a survey."""
    parts = [known.parts.get(key) for key in survey.keys]
    seen: list[set[str]] = [set() for _ in parts]
    for number, name in enumerate(survey.names):
        if parts[number] is None and name in known.names:
            seen[number].add(known.names[name])
    for one, other in survey.pairs:
        for new, old in ((one, other), (other, one)):
            old_part = parts[old]
            if parts[new] is None and old_part is not None:
                seen[new].add(old_part)
    new_pairs = [pair for pair in survey.pairs if parts[pair[0]] is None and parts[pair[1]] is None]
    families = [members for members in group(connect(len(parts), new_pairs)).values() if parts[members[0]] is None]
    free = []
    for members in families:
        near = set.union(*(seen[number] for number in members)) - {ASIDE}
        if near:
            _set(parts, members, near.pop() if len(near) == 1 else ASIDE)
        else:
            free.append(members)
    _hold_out(survey, parts, free, wanted)
    return [part or TRAIN for part in parts]


def _hold_out(survey: Survey, parts: list[str | None], families: list[list[int]], wanted: Mapping[str, int]) -> None:
    """Give families to the held-out parts, in the order of their keys, until these hold what is wanted of them."""
    held = {part: 0 for part in _HELD_OUT if wanted[part] > 0}
    for number, part in enumerate(parts):
        if part in held:
            held[part] += survey.sizes[number]
    room = _MOST * survey.characters - sum(held.values())
    ordered = sorted(families, key=lambda members: min(survey.keys[number] for number in members))
    for largest in _LARGEST:
        left = []
        for members in ordered:
            size = sum(survey.sizes[number] for number in members)
            part = min(held, key=lambda part: held[part] / wanted[part], default=TRAIN)
            if part == TRAIN or held[part] >= _ENOUGH * wanted[part]:
                return
            if size > min(room, largest * wanted[part]):
                left.append(members)
                continue
            _set(parts, members, part)
            held[part] += size
            room -= size
        ordered = left
        if all(held[part] >= wanted[part] / 2 for part in held):  # larger ones would dominate
            return


def _set(parts: list[str | None], members: Sequence[int], part: str) -> None:
    for number in members:
        parts[number] = part


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _halves(key: bytes) -> list[int]:
    return [int(half) for half in np.frombuffer(key, "<i8")]
