import io
import os
import re
import subprocess
import sys

import pytest

from nearlm.base import progress
from nearlm.base.progress import Rate, Reporter, duration, printable, size


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by ten seconds whenever it is looked at."""
    now = iter(range(0, 10**6, 10))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))


def test_lines_elsewhere_than_on_a_terminal_are_plain(capfd, clock):
    reporter = Reporter()
    reporter.say("[bold]x[/bold] :smile: a[1].txt " + "long " * 40)
    with reporter.bar("building", 1000, "tokens", done=100) as advance:
        for _ in range(4):
            advance(200)
    out, err = capfd.readouterr()
    first, *lines = err.splitlines()
    assert out == ""
    assert first == "[bold]x[/bold] :smile: a[1].txt " + "long " * 40
    assert re.fullmatch(r"building: \d+ of 1,000, \d+ s left, \d+ tokens/s", lines[0])
    assert "\x1b" not in err and "\r" not in err


def test_lines_without_a_total_say_no_end(capfd, clock):
    with Reporter().bar("tokenising", None, "tokens") as advance:
        advance(5000)
        advance(5000)
    assert re.match(r"tokenising: [\d,]+, \d+ tokens/s", capfd.readouterr().err)


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Reporter().bar("building", 10, "tokens") as advance:
        advance(10)
    assert "building" in terminal.getvalue() and "10/10" in terminal.getvalue()


def test_quiet_says_nothing(capfd, clock):
    reporter = Reporter(quiet=True)
    reporter.say("something")
    with reporter.bar("building", 10, "tokens") as advance:
        advance(10)
    assert capfd.readouterr() == ("", "")


def test_an_error_inside_a_bar_comes_out(clock):
    with pytest.raises(KeyError), Reporter().bar("building", 10, "tokens"):
        raise KeyError("x")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_job_goes_on_when_nobody_listens(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    script = (
        "from nearlm.base.progress import Reporter\n"
        "reporter = Reporter()\n"
        "for _ in range(3): reporter.say('something')\n"
        "print('done')"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", script], stderr=writer, stdout=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.stdout == b"done\n"
    assert done.returncode == 0


def test_rate_counts_from_the_start(monkeypatch):
    now = iter([0.0, 2.0, 4.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    rate = Rate()
    assert rate(10) == 5.0
    assert rate(30) == 10.0


def test_times_and_sizes_are_written_for_people():
    assert [duration(s) for s in (0.4, 89, 600, 7200)] == ["0 s", "89 s", "10 min", "2.0 h"]
    assert [size(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e12, 5e15)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
        "4.0 TB",
        "5000.0 TB",
    ]


def test_commands_to_a_terminal_are_written_out(capsys):
    said = "a\x1b]0;title\x07 b\r\x9b2J\x7f, c\td\ne – 東京"
    assert printable(said) == "a\\x1b]0;title\\x07 b\\x0d\\x9b2J\\x7f, c\td\ne – 東京"
    Reporter().say("\x1b[31mred")
    assert "\\x1b[31mred" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_job_goes_on_when_what_it_says_cannot_be_written(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    script = "from nearlm.base.progress import Reporter\nfor _ in range(3): Reporter().say('something')\nprint('done')"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stderr=full, stdout=subprocess.PIPE, timeout=60)
    assert (done.stdout, done.returncode) == (b"done\n", 0)
