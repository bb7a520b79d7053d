"""How much RAM there is, and refusing what would need more."""

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


def check_ram(needed: int, what: str) -> None:
    """Refuse something that needs more memory than there is, before it is asked for."""
    available = available_ram()
    if available is not None and needed > available:
        raise OptionError(f"{what} need {size(needed)} of RAM, and {size(available)} are free; ask for less")
