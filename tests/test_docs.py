"""Every command that README and docs show exists, and its options parse."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from nearlm.cli import app
from nearlm.cli.app import spell_out

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/nearlm/nearlm"
OURS = (f"{REPOSITORY}/blob/main/", "https://raw.githubusercontent.com/nearlm/nearlm/main/")
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


def links(page: Path) -> list[str]:
    """List the links of a page, without the places inside pages that they lead to."""
    return [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for link in filter(None, links(page)):
        if link.startswith(OURS):
            assert (ROOT / link.removeprefix(OURS[0]).removeprefix(OURS[1])).exists(), link
        elif "://" not in link:
            assert (page.parent / link).exists(), link


def test_links_of_the_readme_work_elsewhere_too():
    found = links(ROOT / "README.md")
    assert any(link.startswith(OURS[0]) for link in found) and any(link.startswith(OURS[1]) for link in found)
    assert all("://" in link or not link for link in found)
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert images and all(image.startswith(OURS[1]) for image in images)


def test_what_the_first_command_of_the_readme_needs_is_no_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", needed)[0] for needed in project["dependencies"]}
    assert {"gguf", "accelerate"} <= names and "gguf" not in project["optional-dependencies"]
    assert all(link.startswith(REPOSITORY) for link in project["urls"].values())
    named = set(re.findall(r"nearlm\[([\w,]+)\]", (ROOT / "README.md").read_text()))
    assert {extra for each in named for extra in each.split(",")} <= set(project["optional-dependencies"])
