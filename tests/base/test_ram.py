"""What needs more memory than there is, is refused before it is asked for."""

import pytest

from nearlm.base import OptionError, available_ram, check_ram


@pytest.mark.skipif(available_ram() is None, reason="this system does not tell")
def test_more_memory_than_there_is_is_refused():
    check_ram(1000, "few things")
    with pytest.raises(OptionError, match=r"all things need .* of RAM, and .* are free"):
        check_ram(1 << 60, "all things")
