"""The cache: one folder for all that is downloaded or computed once, `NEARLM_CACHE` or nearlm in the user's cache."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from nearlm.base import files
from nearlm.base.errors import FetchError, OptionError
from nearlm.base.progress import QUIET, Reporter


def cache_dir() -> Path:
    """Return the cache folder: $NEARLM_CACHE, else nearlm in the user's cache."""
    if own := os.environ.get("NEARLM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "nearlm"


def store_folder(store: str | Path) -> Path:
    """Return the folder of a store, which may be in the cache (`cache:NAME`)."""
    name = str(store).removeprefix("cache:")
    if not name:
        raise OptionError(f"a store is named {str(store)!r}; expected a folder or cache:NAME")
    _check_name(name)
    if name == str(store):
        with contextlib.suppress(RuntimeError):  # no such ~user
            return Path(store).expanduser()
        return Path(store)
    if Path(name).name != name or name == "..":
        raise OptionError(f"{str(store)!r} is not a store in the cache; expected cache:NAME without slashes")
    return cache_dir() / "stores" / name


def _check_name(name: str) -> None:
    """Refuse what no store can be called: FAISS takes UTF-8 only."""
    try:
        name.encode()
        Path(name).stat()
    except ValueError:  # also of a NUL
        raise OptionError(f"a store is named {name!r}, which is no UTF-8 file name; choose another") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OptionError(f"{name} is a symbolic link that leads back to itself; choose another folder") from None


@contextlib.contextmanager
def cache_lock(folder: Path, reporter: Reporter = QUIET) -> Iterator[None]:
    """Make a folder of the cache and hold its lock, waiting for another process that holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise FetchError(f"cannot write to the cache ({error}); set NEARLM_CACHE to a folder you own") from None
    with files.lock(folder, wait=reporter.say):
        yield
