"""Which documents of a text are stored now, held out, set aside or left for another time."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from nearlm.base import OptionError, Reporter, TextError, check_at_least
from nearlm.optimizer.fit_plan import Amounts
from nearlm.text import ASIDE, TEST, TRAIN, VALID, Corpus, Split, Survey

_BLOCKS = 40  # a text of too few documents is cut into about so many
_BLOCK = (400, 8000)  # characters, the least and the most


@dataclass(frozen=True)
class HeldOut:
    """Documents and characters of every part that are in the text; what is new; how much is wanted; what to say.

    `text` is a hash of all documents; the table of them has so many rows.
    """

    counts: dict[str, int]
    characters: dict[str, int]
    new_keys: list[str]
    left: int
    block: int | None
    amounts: Amounts
    notes: tuple[str, ...]
    text: str
    rows: int

    def __post_init__(self) -> None:
        check_at_least(0, left=self.left, rows=self.rows)
        check_at_least(1, block=self.block)
        for key in self.new_keys:
            if not re.fullmatch(r"[0-9a-f]{32}", key):
                raise OptionError(f"`new_keys` holds {key!r}, expected 32 hexadecimal digits")

    @property
    def new(self) -> frozenset[bytes]:
        """The keys of the documents that are to be stored and are not yet."""
        return frozenset(map(bytes.fromhex, self.new_keys))

    def warn(self, corpus: Corpus, reporter: Reporter) -> None:
        """Say what could not be read, and what else is worth knowing."""
        if corpus.skipped:
            kinds = ", ".join(f"{count:,} × {suffix}" for suffix, count in corpus.skipped.most_common(6))
            reporter.say(f"warning: skipped files of other kinds ({kinds}); choose files with `glob`")
        for problem, count in corpus.problems.items():
            reporter.say(f"warning: {count:,} × {problem}, e.g. {corpus.examples[problem]}")
        for note in self.notes:
            reporter.say(note)


def text_hash(keys: Iterable[bytes]) -> str:
    """Return what tells the documents of a text, in any order, from those of another."""
    return hashlib.sha256(b"".join(sorted(keys))).hexdigest()


def hold_out(
    corpus: Corpus, known: Split, plan: Callable[[int], Amounts], own: Collection[str]
) -> tuple[HeldOut, Split]:
    """Survey a text and say which of its documents go where; the split holds those of earlier times too.

    `plan` says how much is wanted of a text of so many characters; for parts in `own` nothing is held out.
    """
    survey = Survey.of(corpus, known.block)
    if not survey.keys:
        problems = "; ".join(f"{count} × {problem}" for problem, count in corpus.problems.items())
        raise TextError(f"the text ({', '.join(corpus.texts)}) holds no document{f' ({problems})' if problems else ''}")
    amounts = plan(survey.characters)
    wanted = _wanted(survey, amounts, own)
    parts = known.assign(survey, wanted)
    notes: tuple[str, ...] = ()
    lacking = {part for part, count in wanted.items() if count} - set(parts.values())
    if lacking and not known.parts:
        block = int(np.clip(survey.characters // _BLOCKS, *_BLOCK))
        blocks = Survey.of(corpus, block)
        cut = Split(block=block)
        cut_parts = cut.assign(blocks, wanted)
        if set(wanted) & set(cut_parts.values()):
            notes = (_say_cut(len(survey.keys), len(blocks.keys)),)
            survey, known, parts = blocks, cut, cut_parts
    return _take(survey, known, parts, amounts, notes)


def _wanted(survey: Survey, amounts: Amounts, own: Collection[str]) -> dict[str, int]:
    """Return the characters that are wanted of each held-out part."""
    tokens = {VALID: amounts.valid, TEST: amounts.test}
    per_token = survey.characters / max(1, amounts.tokens)
    return {part: 0 if part in own else max(1, int(count * per_token)) for part, count in tokens.items()}


def _say_cut(documents: int, blocks: int) -> str:
    few = f"{documents:,} document{'s are' if documents > 1 else ' is'}"
    return (
        f"{few} too few to hold whole ones out: cut at headings and blank lines into {blocks:,} parts, of which some "
        "are held out, without the lines next to other parts"
    )


def _take(
    survey: Survey, known: Split, parts: Mapping[bytes, str], amounts: Amounts, notes: tuple[str, ...]
) -> tuple[HeldOut, Split]:
    """Choose, in the order of their keys, the new documents that there is room for; the smallest at least."""
    sizes = dict(zip(survey.keys, survey.sizes, strict=True))
    waiting = sorted(key for key, part in parts.items() if part == TRAIN and key not in known.parts)
    room = float("inf")
    if amounts.store is not None:
        room = amounts.store * survey.characters / max(1, amounts.tokens)
    taken = []
    for key in waiting:
        if sizes[key] <= room:
            taken.append(key)
            room -= sizes[key]
    if waiting and not taken and not known.parts:
        taken = [min(waiting, key=lambda key: sizes[key])]
    left = set(waiting) - set(taken)
    adopted = {key: part for key, part in parts.items() if key not in left}
    counts = Counter(adopted.values())
    characters: Counter[str] = Counter()
    for key, part in adopted.items():
        if part != TRAIN or key not in known.parts:
            characters[part] += sizes[key]
    counts[TRAIN] = len(taken)
    if counts[ASIDE]:
        near = f"{counts[ASIDE]:,} documents are near to held-out and to stored ones"
        notes = (*notes, f"{near}: set aside, neither stored nor measured")
    split = known.adopt(survey, adopted)
    held = HeldOut(
        counts=dict(counts),
        characters=dict(characters),
        new_keys=[key.hex() for key in taken],
        left=len(left),
        block=known.block,
        amounts=amounts,
        notes=notes,
        text=text_hash(survey.keys),
        rows=len(split.to_array()),
    )
    return held, split
