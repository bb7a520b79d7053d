"""Every error that a user can mend is one of ours, so that the command line prints it as one line."""

import inspect

import pytest

from nearlm.base import errors
from nearlm.base.errors import MissingExtraError, NearLMError, import_extra

OURS = [one for _, one in inspect.getmembers(errors, inspect.isclass) if one.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_is_caught_as_one_of_ours(kind):
    assert issubclass(kind, NearLMError) and kind.__doc__


def test_a_missing_extra_says_how_to_install_it():
    assert str(MissingExtraError("reading GGUF", "gguf")).endswith("pip install 'nearlm[gguf]'")


def test_a_missing_dependency_names_its_extra():
    assert import_extra("json", "reading", "none").loads("1") == 1
    with pytest.raises(MissingExtraError, match=r"a page needs .*nearlm\[report\]"):
        import_extra("nearlm_has_no_such_module", "a page", "report")
