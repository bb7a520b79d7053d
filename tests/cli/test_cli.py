import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from nearlm import __version__
from nearlm.cli.options import show
from nearlm.store import BuildOptions, builder
from nearlm.store.datastore import Datastore


@pytest.fixture(scope="session")
def store(tmp_path_factory, model_folder) -> Path:
    """A small finished store of documents with odd names; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    texts = folder / "te[bold]xts"
    texts.mkdir()
    (texts / "a[red] :smile:.txt").write_text("the licence grants rights to any person\nwho uses copies")
    builder.build(str(model_folder), [str(texts)], folder / "store")
    return folder / "store"


def subprocess_run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearlm", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)


# Help and version


COMMANDS = "build info verify reduce prune index tune adapt eval generate ablate sweep optimize demo reproduce".split()


def test_help_lists_the_commands(nearlm):
    code, out, err = nearlm("--help")
    assert (code, err) == (0, "")
    listed = re.findall(r"^│ (\w+) ", out, re.M)
    assert listed == COMMANDS
    assert nearlm() == (0, out, "")


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


# Commands that work


def test_build_info_verify(nearlm, tmp_path, model_folder, text_folder):
    out = tmp_path / "store"
    code, stdout, stderr = nearlm("build", "--model", model_folder, "--text", text_folder, "--out", out)
    assert (code, stdout) == (0, "")
    assert "records" in stderr and "needs" in stderr
    assert "\x1b" not in stderr and "\r" not in stderr

    code, stdout, stderr = nearlm("info", out)
    assert (code, stderr) == (0, "")
    opened = Datastore.open(out)
    assert f"records            {len(opened):,}\n" in stdout
    assert "pack               no\n" in stdout

    code, stdout, stderr = nearlm("verify", out)
    assert code == 0
    assert "all as they were written" in stdout


def test_options_reach_the_build(nearlm, tmp_path, model_folder, text_folder):
    options = "--window 64 --stride 32 --pack --separator none --max-tokens 300 --batch-tokens 256 --shard-records 128"
    more = "--key-dtype float32 --key-tap last_hidden --glob doc[01].txt --strict --quiet"
    command = ("build", *options.split(), *more.split(), "--text", text_folder, "--model", model_folder)
    assert nearlm(*command, "--out", tmp_path / "store") == (0, "", "")
    manifest = Datastore.open(tmp_path / "store").manifest
    expected = {"window": 64, "stride": 32, "pack": True, "separator": [], "tokens": 300, "records": 299}
    assert {name: getattr(manifest, name) for name in expected} == expected
    assert manifest.key_dtype == "float32"
    assert len(manifest.shards) > 1


def test_every_build_option_is_passed_on(nearlm, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(builder, "build", lambda *args, **options: seen.update(options, args=args))
    nearlm("build", "--model", "m", "--text", "t", "--out", "o", "--revision", "r", "--adapter", "a", "--field", "f")
    spec, source, out, options = seen.pop("args")
    assert (spec.model, spec.revision, spec.adapter, spec.device) == ("m", "r", "a", "auto")
    assert (source.text, source.field, out, options) == (("t",), "f", "o", BuildOptions())


def test_text_takes_what_a_shell_makes_of_a_glob(nearlm, monkeypatch):
    seen = []
    monkeypatch.setattr(builder, "build", lambda spec, source, *_, **options: seen.append(source.text))
    assert nearlm("build", "--text", "a", "b", "c", "--out", "o", "--model", "m")[0] == 0
    assert nearlm("build", "--text", "a", "--text", "b", "--out", "o", "--model", "m")[0] == 0
    assert seen == [("a", "b", "c"), ("a", "b")]


def test_stdin_is_a_text(nearlm, monkeypatch, tmp_path, model_folder):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the licence grants rights to any person")))
    command = ("build", "--model", model_folder, "--text", "-", "--out", tmp_path / "store", "-q")
    assert nearlm(*command) == (0, "", "")
    assert Datastore.open(tmp_path / "store").context_of(0).document == "stdin"


def test_info_as_json(nearlm, store):
    code, out, err = nearlm("info", store, "--json")
    assert (code, err) == (0, "")
    values = json.loads(out)
    assert values["records"] == len(Datastore.open(store))
    assert nearlm("info", "--json", store)[1] == out


def test_info_traces_a_record(nearlm, store):
    code, out, err = nearlm("info", store, "--record", 3)
    assert (code, err) == (0, "")
    assert "document  te[bold]xts/a[red] :smile:.txt\n" in out
    traced = json.loads(nearlm("info", "--json", store, "--record", 3)[1])
    assert traced["document"] == "te[bold]xts/a[red] :smile:.txt"
    assert traced["record"] == 3


def test_brackets_in_names_are_not_eaten(nearlm, store):
    assert "texts              te[bold]xts\n" in nearlm("info", store)[1]


def on_terminal(*arguments: object, columns: int) -> list[str]:
    """Run a command on a terminal of so many columns and return the lines that it shows."""
    main, side = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    command = [sys.executable, "-m", "nearlm", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=side, stderr=side, stdin=side, env=environment)
    os.close(side)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_info_on_a_narrow_terminal_loses_nothing(store):
    lines = on_terminal("info", store, columns=80)
    assert all(len(line) <= 80 for line in lines)
    checksum = Datastore.open(store).checksum
    last = next(number for number, line in enumerate(lines) if line.startswith("checksum"))
    assert "".join(line.split()[-1] for line in lines[last : last + 2]) == checksum


def test_what_goes_elsewhere_is_not_wrapped(nearlm, store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert Datastore.open(store).checksum in nearlm("info", store)[1]


def test_a_text_of_many_lines_stays_aligned(capfd):
    show({"text": "one\n two\n\nthree", "nothing": None, "yes": True, "n": 1234567, "f": 0.5}, as_json=False)
    assert capfd.readouterr().out.splitlines() == [
        "text     one",
        "          two",
        "",
        "         three",
        "nothing  none",
        "yes      yes",
        "n        1,234,567",
        "f        0.5",
    ]


def test_stores_in_the_cache_have_names(nearlm, tmp_path, monkeypatch, store):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path))
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "mine").symlink_to(store)
    assert nearlm("info", "cache:mine")[0] == 0
    assert nearlm("verify", "cache:mine")[0] == 0


def test_tilde_is_the_home_folder(nearlm, monkeypatch, store):
    monkeypatch.setenv("HOME", str(store.parent))
    assert nearlm("info", "~/store")[0] == 0


# Commands that do not


def is_refusal(result: tuple[int, str, str]) -> bool:
    code, out, err = result
    return (
        code == 2 and out == "" and re.fullmatch(r"nearlm: \S[^\n]*\n", err) is not None and "please report" not in err
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
            ["--key-dtype", "int8"],
            ["--dtype", "int3"],
            ["--device", "moon"],
            ["--separator", ""],
            ["--key-tap", "no.such.module"],
            ["--glob", "/etc/*"],
            ["--glob", "*.zip"],
            ["--append"],
            ["--quantization", "3bit"],
            ["nosuch-extra-text"],
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


def test_verify_names_the_damaged_file(nearlm, tmp_path, model_folder, text_folder):
    out = tmp_path / "store"
    nearlm("build", "--model", model_folder, "--text", text_folder, "--out", out, "--quiet")
    path = out / "values-00000.npy"
    values = np.load(path)
    values[3] += 1
    np.save(path, values)
    result = nearlm("verify", out)
    assert is_refusal((result[0], result[1], result[2].splitlines()[-1] + "\n"))
    assert "values-00000.npy" in result[2]


def test_interrupting_a_build_says_that_it_can_go_on(nearlm, monkeypatch, store):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(builder, "build", interrupt)
    command = ("build", "--model", "m", "--text", "t", "--out", "o")
    assert nearlm(*command) == (130, "", "nearlm: interrupted; the same command goes on where it stopped\n")
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
    assert err.splitlines()[-1] == "nearlm: interrupted; the same command goes on where it stopped"
    assert "Traceback" not in err
    code, _, err = nearlm(*command, "--max-tokens", 100)
    assert code == 2
    assert "--restart" in err


# Output that cannot be written


def test_a_closed_pipe_is_no_error_to_talk_about(store):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nearlm", "info", str(store)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (1, 141)


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
