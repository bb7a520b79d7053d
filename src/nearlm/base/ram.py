"""How much RAM there is, and refusing what would need more."""

import re
from pathlib import Path

from nearlm.base.errors import OptionError
from nearlm.base.progress import size


def available_ram() -> int | None:
    """Return how many bytes of memory are free or hold files, None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def parse_size(option: str, text: str) -> int:
    """Read a number of bytes as people write it: 2GB, 500 MB, 1.5G, or the number itself."""
    read = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?)i?[bB]?", text.strip())
    if not read or not float(read[1]):
        raise OptionError(f"`{option}` is {text!r}, expected a size like 2GB or 500MB")
    return int(float(read[1]) * 1000 ** " KMGT".index(read[2].upper() or " "))


def check_ram(needed: int, what: str) -> None:
    """Refuse something that needs more memory than there is, before it is asked for."""
    available = available_ram()
    if available is not None and needed > available:
        raise OptionError(f"{what} need {size(needed)} of RAM, and {size(available)} are free; ask for less")
