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
    assert import_extra("os.path", "anything", "none").join("a", "b") == "a/b"
    with pytest.raises(MissingExtraError, match=r"^reading Parquet needs .*pip install 'nearlm\[parquet\]'$"):
        import_extra("nearlm_has_no_such_dependency", "reading Parquet", "parquet")
