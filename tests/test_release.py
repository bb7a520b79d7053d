"""What a release needs beside the code: bounds, a citation of this version, archives that hold all of it."""

import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

import nearlm

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
sys.path.insert(0, str(ROOT / "tools"))


def test_the_citation_is_of_this_version():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == nearlm.__version__ and cited["license"] == PROJECT["project"]["license"]
    assert cited["cff-version"] == "1.2.0" and cited["repository-code"] == PROJECT["project"]["urls"]["Repository"]
    assert "aclanthology.org/2021.emnlp-main.461" in cited["references"][0]["url"]


def test_every_dependency_has_a_lower_bound_that_is_tried():
    import versions

    bounds = versions.lowest()
    names = {re.split(r"[<>=\[]", one)[0] for one in PROJECT["project"]["dependencies"]}
    assert {one.partition("==")[0] for one in bounds} == names - {"torch"} and "torch" in names
    assert versions.pinned("torch").startswith("torch==") and requires("nearlm")


def test_what_is_installed_is_within_the_bounds():
    from packaging.version import Version

    import versions

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    lower = {name.lower().replace("-", "_"): version for name, version in pins.items()}
    for bound in versions.lowest():
        name, least = bound.split("==")
        assert Version(lower[name.lower().replace("-", "_")]) >= Version(least), bound


def test_archives_are_to_hold_what_the_check_looks_for():
    import release_check

    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in release_check.IN_SDIST:
        assert (ROOT / name).exists()
        assert name == "pyproject.toml" or any(name == one or name.startswith(f"{one}/") for one in included), name


@pytest.mark.parametrize("target", ["release-check", "versions", "lowest"])
def test_the_targets_are_there(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
