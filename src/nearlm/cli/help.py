"""How help looks: options in groups, and for each value a word that says what it is, not its Python type."""

from typing import Any

from cyclopts import Group
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel

_TYPES = {"INT": "N", "FLOAT": "X", "STR": "NAME", "STR...": "NAME..."}
_VALUES = {
    "--store": "STORE",
    "--budgets": "MINUTES...",
    "--text": "TEXT...",
    "--valid": "TEXT...",
    "--train": "TEXT...",
    "--test": "TEXT...",
    "--glob": "PATTERN",
    "--source": "PATTERN",
    "--matching": "REGEX",
    "--model": "MODEL",
    "--adapter": "FOLDER",
    "--quantization": "8bit|4bit",
    "--separator": "TEXT",
    "--key-dtype": "TYPE",
    "--dtype": "TYPE",
    "--out": "FOLDER",
    "--figure": "FILE",
    "--api-key-file": "FILE",
    "--host": "ADDRESS",
    "--prompt": "TEXT",
    "--lam": "0..1",
    "--keep": "0..1",
    "--skip": "0..1|auto",
    "--top-p": "0..1",
    "--knn-temperature": "T",
    "--temperature": "T",
    "--k": "K",
    "--top-k": "K",
    "--features": "LIST",
    "--l1": "X|auto",
    "--clear": "WHAT...",
    "--tasks": "TASK...",
    "--include-path": "FOLDER",
    "--shell": "SHELL",
    "--license": "LICENCE",
    "--verify": "first|always|never",
    "--ray": "[ADDRESS]",
    "--records": "N",
    "--ram": "SIZE",
}

_TITLES = "Store Server Text Fit Sweep Generation Sampling Training Search Model Records Cluster Output"
STORE, SERVER, TEXT, FIT, SWEEP, GENERATION, SAMPLING, TRAINING, SEARCH, MODEL, RECORDS, CLUSTER, OUTPUT = (
    Group(title, sort_key=place) for place, title in enumerate(_TITLES.split())
)


class HelpFormatter(DefaultFormatter):
    """Cyclopts' own help, with other words for values."""

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        """Print one group of options or commands."""
        super().__call__(console, options, panel.copy(entries=[_name_value(entry) for entry in panel.entries]))


def _name_value(entry: HelpEntry) -> HelpEntry:
    if entry.metavar is None:
        return entry
    known = (_VALUES[name] for name in entry.positive_names if name in _VALUES)
    return entry.copy(metavar=next(known, _TYPES.get(entry.metavar, entry.metavar)))


def show_default(value: Any) -> Any:
    """Return a default as help shows it; what is off by default needs no word."""
    return None if value is None or value is False or value == () else value
