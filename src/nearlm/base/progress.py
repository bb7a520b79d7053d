"""What a long job tells its user: lines and bars on standard error, or nothing at all."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_LINE_SECONDS = 15.0


def silence(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: Python, which writes it at its end, would fail as well."""
    with contextlib.suppress(OSError):  # it is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Console(Console):
    """Standard error; a job continues after the reading end of a pipe is closed."""

    def on_broken_pipe(self) -> None:
        """Say no more."""
        self.quiet = True
        silence(sys.stderr)


class Reporter:
    """Reports to the user: a live bar on a terminal, occasional lines elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self._console = _Console(stderr=True, highlight=False, emoji=False)

    def say(self, line: str) -> None:
        """Print one line."""
        if self.quiet:
            return
        try:
            self._console.print(printable(line), markup=False, soft_wrap=True)
        except OSError:  # a full disk
            self._console.on_broken_pipe()

    @contextlib.contextmanager
    def bar(self, label: str, total: int | None, unit: str, done: int = 0) -> Iterator[Advance]:
        """Show how far a job has come; the yielded function takes what was done since its last call."""
        if self.quiet:
            yield lambda count: None
        elif self._console.is_terminal:
            yield from self._live_bar(label, total, unit, done)
        else:
            yield self._lines(label, total, unit, done)

    def _live_bar(self, label: str, total: int | None, unit: str, done: int) -> Iterator[Advance]:
        speed = TextColumn("{task.fields[rate]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(label, total=total, completed=done, rate="")
            rate = Rate()
            yield lambda count: progress.update(task, advance=count, rate=f"{rate(count):,.0f} {unit}/s")

    def _lines(self, label: str, total: int | None, unit: str, done: int) -> Advance:
        rate = Rate()
        due = time.monotonic() + _LINE_SECONDS

        def advance(count: int) -> None:
            nonlocal due
            speed = rate(count)
            if time.monotonic() < due:
                return
            due = time.monotonic() + _LINE_SECONDS
            reached = done + rate.count
            left = f" of {total:,}, {duration((total - reached) / max(speed, 1e-9))} left" if total else ""
            self.say(f"{label}: {reached:,.0f}{left}, {speed:,.0f} {unit}/s")

        return advance


QUIET = Reporter(quiet=True)


class Rate:
    """Things done per second since the start."""

    def __init__(self) -> None:
        self.count = 0
        self._start = time.monotonic()

    def __call__(self, count: int) -> float:
        """Count some more and return the rate."""
        self.count += count
        return self.count / max(time.monotonic() - self._start, 1e-9)


def duration(seconds: float) -> str:
    """Write a time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def printable(text: str) -> str:
    """Write out control characters, which could command a terminal; a text may come from a stranger."""
    return text.translate(_CONTROLS)


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
