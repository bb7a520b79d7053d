"""What can go wrong: a message says what was found, what was expected and what to do."""

import importlib
from typing import Any

_TOO_LARGE = 1 << 63


class NearLMError(Exception):
    """Any error a user can cause and fix; the command line prints it as one line and exits with 2."""


class OptionError(NearLMError):
    """An option's value is invalid, alone or together with others."""


class TextError(NearLMError):
    """A text cannot be read, or holds nothing to learn from."""


class ModelError(NearLMError):
    """A model cannot be loaded, or does not fit the store."""


class StoreError(NearLMError):
    """A store is missing, damaged, busy or of another kind than expected."""


class FetchError(NearLMError):
    """A pinned download failed or did not have the expected hash."""


class NearLMWarning(UserWarning):
    """Something that works, though probably not as it was meant; the command line prints it as one line."""


class MissingExtraError(NearLMError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an optional dependency; install it with: pip install 'nearlm[{extra}]'")


def import_extra(module: str, what: str, extra: str) -> Any:
    """Import an optional dependency; if it is missing, say which extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(what, extra) from None


def check_at_least(least: int, **options: float | None) -> None:
    """Refuse the first of these options that is given and too small, no number, or too large for one of 64 bits."""
    for name, value in options.items():
        if value is not None and not least <= value < _TOO_LARGE:
            most = "" if value < least else " and less than 2^63"
            raise OptionError(f"`{name}` is {value}, expected at least {least}{most}")
