"""Equal time, equal text: what each method makes of a training text within a budget, measured row by row.

Every row is a job of its own in `comparison/METHOD-MINUTES`: what was made stays until all is measured, and then a file
`METHOD-MINUTES.json` remains. A making that was interrupted begins again, since its time is what is compared; a
measurement resumes with what is missing.
"""

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nearlm.base import Job, OptionError, Reporter, files, import_extra, read_record, write_record
from nearlm.knnlm.evaluation import words_and_bytes
from nearlm.model import ModelSpec
from nearlm.model.lm import LM
from nearlm.optimizer.unseen import Quality, quality_of
from nearlm.paper.comparison_budgets import Made, Task
from nearlm.paper.comparison_methods import ALONE, METHODS
from nearlm.paper.comparison_reading import Reader, reading_of, tokens_per_second
from nearlm.paper.comparison_table import Comparison, MethodRow, in_order
from nearlm.paper.comparison_updates import typical_document
from nearlm.paper.continuation import Written, written
from nearlm.paper.settings import Setting
from nearlm.text import TextSource, TokenText, read_text

_EXTRAS = {"LoRA": ("peft", "peft"), "RAG": ("bm25s", "compare")}


@dataclass(frozen=True)
class _Read:
    """What was measured on a text."""

    quality: Quality
    written: Written


class Comparer:
    """Measures the rows of a setting in a folder."""

    def __init__(self, setting: Setting, model: str, out: Path, reporter: Reporter):
        self.setting = setting
        self.spec = ModelSpec(model)
        self.out = out / "comparison"
        self.reporter = reporter

    def run(self, methods: Sequence[str] = ()) -> Iterator[Comparison]:
        """Measure the rows that are missing; yield all that there are after each of them."""
        check_methods(methods)
        self.out.mkdir(parents=True, exist_ok=True)
        wanted = methods or list(METHODS)
        rows: list[tuple[str, float | None]] = [(ALONE, None)] if ALONE in wanted else []
        rows += [(name, minutes) for minutes in self.setting.budgets for name in wanted if name != ALONE]
        for number, (method, minutes) in enumerate(rows, 1):
            if not self._file(method, minutes).exists():
                said = "" if minutes is None else f", {minutes:g} min"
                self.reporter.say(f"— {method}{said} ({number} of {len(rows)}) —")
                self._measure(method, minutes)
                yield self.known()
        yield self.known()

    def known(self) -> Comparison:
        """Return all rows that have been measured, of these methods and budgets or others."""
        rows = [read_record(MethodRow, path) for path in sorted(self.out.glob("*.json"))]
        return Comparison(in_order(rows, list(METHODS)))

    def _file(self, method: str, minutes: float | None) -> Path:
        return self.out / f"{_slug(method)}{'' if minutes is None else f'-{minutes:g}'}.json"

    def _measure(self, method: str, minutes: float | None) -> None:
        path = self._file(method, minutes)
        work = path.with_suffix("")
        job = Job(work, "row")
        job.resume({"method": method, "minutes": minutes})
        made = job.once("made", Made, lambda: self._make(method, minutes, work))
        row = self._row(method, minutes, job, made, self._task(minutes, work))
        write_record(path, row)
        files.remove(work)

    def _make(self, method: str, minutes: float | None, work: Path) -> Made:
        """Let a method use its time, in an empty folder."""
        place = work / "made"
        files.remove(place)
        place.mkdir(parents=True)
        return METHODS[method].make(self._task(minutes, work))

    def _task(self, minutes: float | None, work: Path) -> Task:
        train = TextSource(self.setting.train, max_tokens=self.setting.max_tokens)
        seconds = 60 * (minutes or 0.0)
        return Task(self.spec, train, self.setting.valid_source, seconds, work / "made", self.reporter)

    def _row(self, method: str, minutes: float | None, job: Job, made: Made, task: Task) -> MethodRow:
        """Measure what was made: on the test text, on unrelated text, its speed, and changes last."""
        how = METHODS[method]
        opened = _Opened(how, task)
        test = job.once("test", _Read, lambda: self._read(opened.reader, self.test))
        other: Any = None
        if self.setting.unrelated:
            other = job.once("unrelated", _Read, lambda: self._read(opened.reader, self.unrelated))
        speed = job.once("speed", float, lambda: tokens_per_second(opened.reader, self.timed))
        disk = job.once("disk", int, lambda: how.disk(task))
        document = typical_document(self.setting.valid_source)
        added = job.once("add", dict[str, float | None], lambda: {"s": how.add(task, made, document)})["s"]
        removed = job.once("remove", dict[str, float | None], lambda: {"s": how.remove(task, made)})["s"]
        return MethodRow(
            method=method,
            minutes=minutes,
            seconds=made.seconds,
            tokens=made.tokens,
            chosen=made.chosen,
            text=self.test.sha256,
            test_tokens=len(self.test.targets),
            test=test.quality,
            written=test.written,
            unrelated=other.quality if other else None,
            unrelated_written=other.written if other else None,
            tokens_per_second=speed,
            disk=disk,
            add_seconds=added,
            remove_seconds=removed,
        )

    def _read(self, reader: Reader, text: TokenText) -> _Read:
        """Measure a reader on a text."""
        started = time.monotonic()
        predicted = reader.predict(text, self.reporter)
        count = words_and_bytes(text, reader.lm.tokenizer)[1]
        found = _Read(quality_of(predicted.logp, text.documents, count), written(text, predicted, reader.lm.tokenizer))
        bits, perplexity = found.quality.cells
        self.reporter.say(f"  {bits} bits per byte, perplexity {perplexity} ({time.monotonic() - started:.0f} s)")
        return found

    @cached_property
    def test(self) -> TokenText:
        """The test text, the same for every method."""
        return self._text("test", self.setting.test_source)

    @cached_property
    def unrelated(self) -> TokenText:
        """The text that the training text says nothing of."""
        return self._text("unrelated", self.setting.unrelated_source)

    @cached_property
    def timed(self) -> TokenText:
        """The beginning of the test text, to be timed on."""
        test = self.setting.test_source
        most = min(self.setting.timed_tokens, test.max_tokens or self.setting.timed_tokens)
        return self._text("timed", replace(test, max_tokens=most))

    @cached_property
    def _lm(self) -> LM:
        return LM.load(self.spec)

    def _text(self, name: str, source: TextSource) -> TokenText:
        folder = self.out / "texts" / name
        folder.mkdir(parents=True, exist_ok=True)
        return read_text(source, self._lm.tokenizer, reading_of(self._lm), folder, self.reporter)


class _Opened:
    """What a method made, opened when it is first used."""

    def __init__(self, method: Any, task: Task):
        self._method = method
        self._task = task

    @cached_property
    def reader(self) -> Reader:
        """What reads a text."""
        found: Reader = self._method.open(self._task)
        return found


def check_methods(methods: Sequence[str]) -> None:
    """Refuse, before the work, methods that do not exist or lack what they need."""
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise OptionError(f"`methods` has {unknown[0]!r}, expected some of {', '.join(map(repr, METHODS))}")
    for name in methods or METHODS:
        for part, (module, extra) in _EXTRAS.items():
            if part in name:
                import_extra(module, f"the method {name!r}", extra)


def _slug(method: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")
