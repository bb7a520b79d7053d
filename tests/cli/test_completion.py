"""Shell completion: what a shell learns of the commands, and where it finds it."""

import shutil
import subprocess

import pytest
from refusals import is_refusal
from test_app import COMMANDS

from nearlm.cli.app import app


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZSH", "ZSH_CUSTOM", "SHELL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def complete(script: str, *words: str) -> list[str]:
    """Ask bash what it would complete the last word to."""
    typed = " ".join(f"'{word}'" for word in words)
    ask = f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _nearlm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=30).stdout.split()


def test_bash_completes_commands_options_and_files(tmp_path, monkeypatch):
    script = app.generate_completion(shell="bash")
    assert set(COMMANDS) <= set(complete(script, "nearlm", ""))
    assert complete(script, "nearlm", "build", "--max-t") == ["--max-tokens"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mystore").mkdir()
    (tmp_path / "mytext.txt").touch()
    assert set(complete(script, "nearlm", "info", "my")) == {"mystore", "mytext.txt"}
    assert complete(script, "nearlm", "eval", "mystore", "myt") == ["mytext.txt"]


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/nearlm"),
        ("zsh", ".zsh/completions/_cyclopts_nearlm"),
        ("fish", ".config/fish/completions/nearlm.fish"),
    ],
)
def test_a_script_is_put_where_the_shell_finds_it(nearlm, home, shell, place):
    code, out, err = nearlm("--install-completion", "--shell", shell)
    assert (code, err) == (0, "") and out.startswith(f"{home / place}: ")
    script = (home / place).read_text()
    assert "reproduce" in script and "max-tokens" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", home / place], timeout=30).returncode == 0


def test_the_shell_is_that_of_the_user_or_must_be_named(nearlm, home, monkeypatch):
    monkeypatch.setattr("cyclopts.completion.detect.detect_shell", lambda: "fish")
    assert ".config/fish" in nearlm("--install-completion")[1]

    def fail():
        from cyclopts.completion.detect import ShellDetectionError

        raise ShellDetectionError("no shell")

    monkeypatch.setattr("cyclopts.completion.detect.detect_shell", fail)
    result = nearlm("--install-completion")
    assert is_refusal(result) and "--shell" in result[2]
