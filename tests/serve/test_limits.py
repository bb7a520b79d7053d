"""Limits are positive."""

import pytest

from nearlm.base import OptionError
from nearlm.serve.limits import Limits


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(OptionError, match="max_batch"):
        Limits(max_batch=0)
