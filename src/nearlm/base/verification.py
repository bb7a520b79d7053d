"""Files are read whole and compared with their checksums before they are used for the first time on this machine.

What was found sound is noted in the cache with the files' sizes, times and inodes; while those stay the same, the next
use costs a stat per file. `NEARLM_VERIFY` says `first` (the default), `always` or `never`.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from nearlm.base.cache import cache_dir
from nearlm.base.errors import OptionError, StoreError
from nearlm.base.files import Json, canonical_hash
from nearlm.base.records import FileInfo, check_files

MODES = ("first", "always", "never")
_RULES = 3  # what is checked; what was noted under other rules is checked again
_SETTLED = 2 * 10**9  # nanoseconds: a younger file may change once more without its time showing it


def verify_mode() -> str:
    """Return when files are verified: what `NEARLM_VERIFY` says, or `first`."""
    mode = os.environ.get("NEARLM_VERIFY") or MODES[0]
    if mode not in MODES:
        raise OptionError(f"NEARLM_VERIFY is {mode!r}, expected one of {', '.join(MODES)}")
    return mode


def check_before_use(
    folder: Path,
    listed: dict[str, FileInfo],
    remedy: str,
    check_contents: Callable[[], None] | None = None,
    depends_on: Json | None = None,
) -> bool:
    """Refuse files that are missing, cut or not as they were written, or whose contents a further check refuses.

    What that check depends on beside the files is remembered with them. Return whether contents are known to be sound.
    """
    mode = verify_mode()
    if mode == "never":
        check_files(folder, listed, remedy)
        return False
    note = cache_dir() / "verified" / canonical_hash([str(folder.resolve()), sorted(listed)])[:32]
    state = _state(folder, listed, depends_on)
    if mode == "first" and state and _read(note) == state:
        return True
    check_files(folder, listed, remedy, every_byte=True)
    if check_contents:
        check_contents()
    if _newest(folder, listed) < time.time_ns() - _SETTLED:
        _remember(note, state)
    return True


def check_that(sound: object, path: Path, expected: str) -> None:
    """Refuse a file whose numbers are not what they are used as."""
    if not sound:
        raise StoreError(f"{path} does not hold {expected}, so it cannot be used; restore it or make it again")


def _state(folder: Path, listed: dict[str, FileInfo], depends_on: Json | None) -> str:
    """Return a hash that changes when one of the files does, empty if one is not there."""
    seen = []
    for name, info in listed.items():
        try:
            found = (folder / name).stat()
        except OSError:
            return ""
        seen.append([name, found.st_size, found.st_mtime_ns, found.st_ino, info.bytes, info.sha256])
    return canonical_hash([_RULES, depends_on, seen])


def _newest(folder: Path, listed: dict[str, FileInfo]) -> int:
    return max(((folder / name).stat().st_mtime_ns for name in listed), default=0)


def _read(note: Path) -> str | None:
    try:
        return note.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _remember(note: Path, state: str) -> None:
    """Write a note; one that is cut off or cannot be written only means that files are read again."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(state)
