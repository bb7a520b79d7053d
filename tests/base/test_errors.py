"""Every error that a user can mend is one of ours, so that the command line prints it as one line."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from nearlm.base import errors
from nearlm.base.errors import MissingExtraError, NearLMError, import_extra

OURS = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if one.__module__ == errors.__name__ and not issubclass(one, Warning)
]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_is_caught_as_one_of_ours(kind):
    assert issubclass(kind, NearLMError) and kind.__doc__


def test_a_missing_extra_says_how_to_install_it():
    assert import_extra("os.path", "anything", "none").join("a", "b") == "a/b"
    with pytest.raises(MissingExtraError, match=r"^reading Parquet needs .*pip install 'nearlm\[parquet\]'$"):
        import_extra("nearlm_has_no_such_dependency", "reading Parquet", "parquet")


SOURCE = Path(errors.__file__).parents[1]
LIBRARY = [path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] != "cli"]


def flags_in(node: ast.AST) -> list[str]:
    strings = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return [text for text in strings if re.search(r"(^|[\s`'(])--([a-z]|$)", text)]


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_library_names_parameters_and_never_flags(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise):
            assert not flags_in(node), f"line {node.lineno}"
        if isinstance(node, ast.JoinedStr) and "nearlm " in ast.unparse(node):  # a command in a message
            assert not flags_in(node), f"line {node.lineno}"
