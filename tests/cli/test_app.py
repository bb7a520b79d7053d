"""The command line as a whole: help, one line for an error, interrupts, and output that cannot be written."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import is_refusal

from nearlm import __version__, mixing
from nearlm.cli.app import spell_out
from nearlm.store.datastore import Datastore


def subprocess_run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearlm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


COMMANDS = """
fit build index gate serve chat generate eval lm-eval add forget compact serve-index optimize reduce prune info verify
plan cache doctor push pull tune demo reproduce sweep ablate
""".split()


def test_help_lists_the_commands(nearlm):
    code, out, err = nearlm("--help")
    assert (code, err) == (0, "")
    assert re.findall(r"^│ ([a-z][\w-]+) ", out, re.M) == COMMANDS
    assert re.findall(r"^╭─ (.*?) ─", out, re.M) == [
        "All in one",
        "Make a memory (in this order)",
        "Use it",
        "Edit it",
        "On several machines",
        "Make it smaller and faster",
        "Look into it",
        "Share it",
        "The paper's experiments",
        "Options",
    ]
    assert "--install-completion" in out and "--debug" in out
    assert nearlm() == (0, out, "")


def test_help_shows_the_steps_of_the_readme(nearlm):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    blocks = (readme.split("```")[1], readme.split("## Use")[1].split("```")[1])
    quick, slow = (re.findall(r"^nearlm (\w+)", block, re.M) for block in blocks)
    out = nearlm("--help")[1]
    assert re.findall(r"^  nearlm (\w+)", out, re.M) == quick
    make = out.split("Make a memory")[1].split("╰")[0]
    assert re.findall(r"^│ (\w+) ", make, re.M) == slow


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_fits_80_columns(nearlm, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = nearlm(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: nearlm {command} ")
    assert all(len(line) <= 80 for line in out.splitlines())


def test_version(nearlm):
    assert nearlm("--version") == (0, f"nearlm {__version__}\n", "")


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['nearlm', '--help']\n"
        "import nearlm.cli\n"
        "try: nearlm.cli.main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    modules = set(done.stderr.split())
    assert "Usage" in done.stdout
    assert "nearlm.cli" in modules
    assert modules.isdisjoint(
        {"torch", "transformers", "numpy", "faiss", "datasets", "pyarrow", "nearlm.store.builder"}
    )


BAD = [
    ["nosuchcommand"],
    [""],
    ["--nosuchoption"],
    ["info"],
    ["info", "nosuch"],
    ["info", "--nosuchoption", "x"],
    ["info", "STORE", "extra"],
    ["info", "STORE", "--record", "abc"],
    ["info", "STORE", "--record", "99999999999999999999999"],
    ["info", "STORE", "--record", "-99999"],
    ["info", "TEXTS"],
    ["info", "MODEL/config.json"],
    ["info", ""],
    ["info", "cache:"],
    ["info", "cache:nosuch"],
    ["info", "cache:../x"],
    ["info", "cache:/etc"],
    ["info", "x" * 5000],
    ["info", "nul\0"],
    ["verify", "nosuch"],
    ["verify"],
    ["build"],
    ["build", "TEXTS"],
    ["build", "nosuch", "--model", "MODEL", "--out", "OUT"],
    ["build", "TEXTS", "--model", "MODEL"],
    ["build", "TEXTS", "--nosuch", "--model", "MODEL", "--out", "OUT"],
    ["build", "--model", "MODEL", "--out", "OUT"],
    *([command, "STORE"] for command in ("eval", "tune", "gate", "ablate", "generate")),
    ["optimize", "STORE", "--out", "OUT"],
    ["sweep", "STORE", "0.5", "--over", "keep"],
    ["generate", "STORE", "the", "prompt"],
    ["generate", "STORE", "the prompt", "--prompt", "another"],
    ["generate", "STORE", "--nosuch", "prompt"],
    ["info", "STORE", "-"],
    ["--install-completion", "--shell", "nosuch"],
    ["build", "--text", "TEXTS"],
    ["build", "--out", "OUT"],
    ["build", "--text"],
    ["build", "--text", "TEXTS", "--out", "OUT"],
    ["build", "--text", "TEXTS", "--out", ""],
    ["build", "--text", "TEXTS", "--model", "MODEL", "--out", "TEXTS"],
    ["build", "--text", "TEXTS", "--model", "MODEL", "--out", "TEXTS/doc0.txt"],
    ["build", "--text", "TEXTS", "--model", "MODEL", "--out", "TEXTS/doc0.txt/below"],
    ["build", "--text", "TEXTS", "--model", "MODEL", "--out", "/proc/nearlm/x"],
    ["build", "--text", "TEXTS", "--model", "MODEL", "--out", "STORE"],
    ["build", "--text", "TEXTS", "--model", "nosuch", "--out", "OUT"],
    ["build", "--text", "TEXTS", "--model", "TEXTS", "--out", "OUT"],
    *(
        ["build", "--model", "MODEL", "--out", "OUT", "--text", text]
        for text in ("nosuch", "no*such", "", "spdx", "spdx:tset", "hf:", "x" * 5000, "~nosuchuser/x", "OUT")
    ),
    *(
        ["build", "--model", "MODEL", "--out", "OUT", "--text", "TEXTS", *option]
        for option in (
            ["--window", "0"],
            ["--window", "-5"],
            ["--window", "99999999999999999999"],
            ["--window", "many"],
            ["--stride", "0"],
            ["--stride", "9999"],
            ["--max-tokens", "1"],
            ["--batch-tokens", "0"],
            ["--shard-records", "0"],
            ["--key-dtype", "int4"],
            ["--dtype", "int3"],
            ["--device", "moon"],
            ["--separator", ""],
            ["--key-tap", "no.such.module"],
            ["--glob", "/etc/*"],
            ["--glob", "*.zip"],
            ["--append"],
            ["--quantization", "3bit"],
            ["nosuch-extra-text"],
            ["-"],
        )
    ),
]


@pytest.mark.parametrize("command", BAD, ids=lambda command: " ".join(command)[-60:].replace("\0", "0") or "empty")
def test_bad_input_is_one_line_and_exit_code_2(nearlm, tmp_path, store, text_folder, model_folder, command):
    places = {"STORE": store, "TEXTS": text_folder, "MODEL": model_folder, "OUT": tmp_path / "out"}
    for name, path in places.items():
        command = [re.sub(rf"^{name}(?=$|/)", str(path), each) for each in command]
    before = {path: path.stat().st_mtime_ns for path in store.iterdir() if path.name != ".lock"}
    result = nearlm(*command)
    assert is_refusal(result), result
    assert before == {path: path.stat().st_mtime_ns for path in store.iterdir() if path.name != ".lock"}


def test_mistakes_in_a_command_point_to_its_help(nearlm):
    assert "(see `nearlm build --help`)" in nearlm("build", "--nosuch")[2]
    assert "(see `nearlm --help`)" in nearlm("nosuch")[2]


@pytest.mark.parametrize("command", [["--debug", "info", "nosuch"], ["info", "nosuch", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(nearlm, command):
    code, _, err = nearlm(*command)
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("nearlm: nosuch does not exist")


def test_a_bug_of_ours_is_one_line_too_but_another_code(nearlm, monkeypatch, store):
    monkeypatch.setattr(Datastore, "summary", lambda self: 1 / 0)
    code, out, err = nearlm("info", store)
    assert (code, out) == (1, "")
    assert err == "nearlm: unexpected ZeroDivisionError: division by zero (--debug shows where; please report it)\n"


def test_an_error_of_many_lines_becomes_one(nearlm, store, monkeypatch):
    def fail(self):
        raise PermissionError(13, "Permission\ndenied", "/some/where")

    monkeypatch.setattr(Datastore, "summary", fail)
    assert nearlm("info", store) == (2, "", "nearlm: /some/where: Permission denied (--debug shows where)\n")


def test_interrupting_a_build_says_that_it_can_go_on(nearlm, monkeypatch, store):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(mixing, "build_text_first", interrupt)
    command = ("build", "--model", "m", "--text", "t", "--out", "o")
    assert nearlm(*command) == (130, "", "nearlm: interrupted; the same command resumes where it stopped\n")
    monkeypatch.setattr(Datastore, "verify", interrupt)
    assert nearlm("verify", store) == (130, "", "nearlm: interrupted\n")


def test_ctrl_c_leaves_a_build_that_goes_on(tmp_path, model_folder, nearlm):
    text = tmp_path / "text.txt"
    text.write_text("the licence grants rights to any person who uses copies. " * 4000)
    command = ["build", "--model", model_folder, "--text", text, "--out", tmp_path / "store", "--batch-tokens", 256]
    process = subprocess.Popen(
        [sys.executable, "-m", "nearlm", *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a CI in the background ignores it
    )
    while not list((tmp_path / "store").glob("keys-*")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "nearlm: interrupted; the same command resumes where it stopped"
    assert "Traceback" not in err
    code, _, err = nearlm(*command, "--max-tokens", 100)
    assert code == 2
    assert "--restart" in err


def test_a_closed_pipe_is_no_error_to_talk_about(store):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nearlm", "info", str(store)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


def test_a_full_disk_is_one_line(store):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "nearlm", "info", str(store)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert re.fullmatch(r"nearlm: No space left on device[^\n]*\n", done.stderr)


def test_closed_output_and_other_encodings_do_no_harm(store):
    script = f"exec {sys.executable} -m nearlm info {store} >&-"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess_run("info", store.parent / "snö", env=ascii_only)
    assert done.returncode == 2
    assert "sn\\xf6 does not exist" in done.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["build", "--text", "-", "--out", "o"], ["build", "--text", "(stdin)", "--out", "o"]),
        (["build", "a", "-", "b"], ["build", "a", "(stdin)", "b"]),
        (["generate", "s", "--prompt", "-"], ["generate", "s", "--prompt=-"]),
        (["generate", "s", "--prompt", "- a list"], ["generate", "s", "--prompt=- a list"]),
        (["--debug", "info", "s"], ["info", "s"]),
        (["info", "s", "--debug"], ["info", "s"]),
        (["build", "--text", "--debug", "-"], ["build", "--text", "(stdin)"]),
        (["info", "--text=-"], ["info", "--text=-"]),
        (["generate", "s", "-"], ["generate", "s", "(stdin)"]),
        (["generate", "s", "--prompt"], ["generate", "s", "--prompt"]),
        ([], []),
    ],
)
def test_a_lone_hyphen_is_stdin_and_debug_is_no_option_of_a_command(typed, expected):
    assert list(spell_out(typed)) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_that_cannot_be_said_keeps_its_exit_code(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-m", "nearlm", "info", "no-such-store"], stderr=full, check=False)
    assert ran.returncode == 2


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_warning_that_cannot_be_said_does_not_matter(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    warned = "lambda *_: [warnings.warn(kind('of something'), stacklevel=1) for kind in (NearLMWarning, UserWarning)]"
    script = (
        "import sys, warnings, nearlm.cli; from nearlm.base import NearLMWarning; app = sys.modules['nearlm.cli.app']\n"
        f"app.app = type('App', (), dict(__call__={warned}))()\n"
        "sys.argv = ['nearlm', 'info', 'x']; app.main()"
    )
    with open("/dev/full", "w") as full:
        ran = subprocess.run([sys.executable, "-c", script], stderr=full, check=False)
    assert ran.returncode == 0
