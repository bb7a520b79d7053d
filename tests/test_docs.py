"""Every command that README and docs show exists, and its options parse."""

import re
import shlex
from pathlib import Path

import pytest

from nearlm.cli import app
from nearlm.cli.app import spell_out

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown(pattern: str) -> list[str]:
    """Collect the commands in code blocks, without comments, placeholders filled in."""
    blocks = [block for page in PAGES for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.S)]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return sorted({line for line in lines if re.match(pattern, line)})


@pytest.mark.parametrize("command", shown(r"nearlm "))
def test_a_documented_command_parses(command):
    app.parse_args(list(spell_out(shlex.split(command)[1:])), print_error=False, exit_on_error=False)


@pytest.mark.parametrize("command", shown(r"(\.venv/bin/)?python benchmarks/"))
def test_a_documented_benchmark_exists(command):
    script = next(part for part in shlex.split(command) if part.endswith(".py"))
    source = (ROOT / script).read_text()
    for option in re.findall(r"--[a-z-]+", command):
        assert f'"{option}"' in source, f"{command}: {script} has no {option}"


@pytest.mark.parametrize("command", shown(r"make "))
def test_a_documented_make_target_exists(command):
    target = shlex.split(command)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
