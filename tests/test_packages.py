"""The packages: what crosses their borders, who is tested where, and how long it is."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "nearlm"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.startswith("__"))
FILES = sorted(SOURCE.rglob("*.py"))
MOST_LINES, MOST_OF_A_FUNCTION = 350, 40


def named(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def package(path: Path) -> str:
    """The package of a file, empty for nearlm's own modules."""
    return path.relative_to(SOURCE).parts[0] if path.parent != SOURCE else ""


def imported(path: Path) -> list[tuple[str, str]]:
    """List what a file imports of nearlm, as (module, name), also inside functions and for type checking only."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)} imports relatively; name the package"
            if (node.module or "").split(".")[0] == "nearlm":
                found += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "nearlm"]
    return found


def exported(module: str) -> set[str]:
    """Return the names that a package's __init__ imports or defines."""
    tree = ast.parse((SOURCE / module.removeprefix("nearlm.").replace(".", "/") / "__init__.py").read_text())
    names = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return names | {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_what_crosses_a_border_is_public(path):
    for module, name in imported(path):
        parts = module.split(".")
        if len(parts) == 1 or parts[1] == package(path):
            continue  # nearlm itself, or the same package
        assert not any(part.startswith("_") for part in (*parts[1:], name)), f"{module} {name} is private"
        place = SOURCE.joinpath(*parts[1:])
        if place.is_dir():
            there = exported(module) | {each.stem for each in place.iterdir()}
            assert not name or name in there, f"{module} does not export {name}"
        else:
            assert place.with_suffix(".py").exists(), f"there is no {module}"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_module_has_a_test_file_of_its_name(path):
    folder = ROOT / "tests" / path.relative_to(SOURCE).parent
    both = (f"test_{path.stem}.py", f"test_{path.parent.name}_{path.stem}.py")  # the longer where two have one name
    there = [name for name in both if (folder / name).exists()]
    assert there, f"{named(path)}: expected {folder.name}/{both[0]}"


def test_test_files_have_names_of_their_own():
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def lengths(path: Path) -> dict[str, int]:
    """Return how many lines a module and each of its functions have that are over the limit."""
    text = path.read_text()
    found = {named(path): len(text.splitlines())} if len(text.splitlines()) > MOST_LINES else {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MOST_OF_A_FUNCTION:
                found[f"{named(path)}:{node.name}"] = length
    return found


@pytest.mark.parametrize("path", FILES, ids=named)
def test_modules_and_functions_are_short(path):
    assert not lengths(path)
