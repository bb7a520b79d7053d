"""What needs more memory than there is, is refused before it is asked for."""

import pytest

from nearlm.base import OptionError, available_ram, check_ram, parse_size


@pytest.mark.skipif(available_ram() is None, reason="this system does not tell")
def test_more_memory_than_there_is_is_refused():
    check_ram(1000, "few things")
    with pytest.raises(OptionError, match=r"all things need .* of RAM, and .* are free"):
        check_ram(1 << 60, "all things")


def test_sizes_are_read_as_people_write_them():
    sizes = {"2GB": 2 * 10**9, "1.5 MB": 1_500_000, "3g": 3 * 10**9, "7": 7, "9 kB": 9000, "1TiB": 10**12}
    assert {text: parse_size("ram", text) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["", "GB", "-2GB", "0", "two", "2XB", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match=r"`ram` is .*, expected a size like 2GB"):
        parse_size("ram", text)
