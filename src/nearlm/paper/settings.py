"""The settings of the paper's experiments (`settings.toml`): which LM, which texts, how much, what the paper found."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from nearlm.base import Json, OptionError, from_json
from nearlm.text import TextSource

TRAINED = "trained-here"  # a small LM that is trained from scratch on the setting's own training text
_FEWEST = 2000  # tokens of a store
_MOST_MINUTES = 1e5


@dataclass(frozen=True)
class PaperRow:
    """What the paper found for a row of its main table."""

    name: str
    perplexity: float
    tokens_per_second: float


@dataclass(frozen=True)
class About:
    """What was measured, with what, where, and how long it took."""

    setting: str
    title: str
    text: str
    model: str
    records: int  # 0: a comparison, where every method has a store of its own
    dim: int
    store_bytes: int
    valid_tokens: int
    test_tokens: int
    cores: int
    machine: str
    versions: dict[str, str]
    command: str
    seconds: float
    paper: list[PaperRow]


@dataclass(frozen=True)
class Setting:
    """One experiment: an LM, a store of its training text, and the texts it is tuned and tested on."""

    name: str
    title: str
    text: str
    model: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    unrelated: tuple[str, ...] = ()  # a text that the store says nothing of
    store: str | None = None
    lm: str = ""  # the name of an LM that is trained here, by default the setting's
    budgets: tuple[float, ...] = ()  # minutes, of a comparison of methods
    max_tokens: int | None = None
    pack: bool = False
    valid_tokens: int | None = 20_000
    test_tokens: int | None = 20_000
    sweep_tokens: int | None = 12_000
    timed_tokens: int = 4_000
    rounds: int = 3
    keeps: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    dims: tuple[int, ...] = (32, 64, 128, 256, 384, 512)
    ks: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    prompt: str = ""  # none: how a document of the test text begins
    paper: tuple[PaperRow, ...] = ()

    @property
    def valid_source(self) -> TextSource:
        """The text to tune on."""
        return TextSource(self.valid, max_tokens=self.valid_tokens)

    @property
    def test_source(self) -> TextSource:
        """The text to test on."""
        return TextSource(self.test, max_tokens=self.test_tokens)

    @property
    def unrelated_source(self) -> TextSource:
        """The text that shows what a memory costs where it cannot help."""
        return TextSource(self.unrelated, max_tokens=self.test_tokens)


def _read() -> dict[str, Setting]:
    path = Path(__file__).with_name("settings.toml")
    tables = tomllib.loads(path.read_text("utf-8"))
    settings = {}
    for name, table in tables["settings"].items():
        own = {field: None if value == "all" else value for field, value in table.items()}
        settings[name] = from_json(Setting, {**own, "name": name, "paper": tables["paper"][own["paper"]]}, path)
    return settings


SETTINGS = _read()
DEMO = SETTINGS.pop("demo")


def resize(setting: Setting, max_tokens: int | None) -> Setting:
    """Return a setting with a store of so many tokens, and no more tokens to tune, test and time than that is worth."""
    if max_tokens is None:
        return setting
    if max_tokens < _FEWEST:
        raise OptionError(f"`max_tokens` is {max_tokens}, expected at least {_FEWEST:,} to measure anything")
    most = {
        "valid_tokens": max_tokens // 8,
        "sweep_tokens": max_tokens // 8,
        "test_tokens": max_tokens // 16,
        "timed_tokens": max_tokens // 40,
    }
    most = {name: max(count, _FEWEST // 2) for name, count in most.items()}
    few: Json = {name: min(getattr(setting, name) or count, count) for name, count in most.items()}
    return replace(setting, max_tokens=max_tokens, **few)


def find_setting(name: str) -> Setting:
    """Return a setting by name."""
    if name not in SETTINGS:
        raise OptionError(f"`setting` is {name!r}, expected one of {', '.join(SETTINGS)}")
    return SETTINGS[name]


def change(setting: Setting, **given: str | tuple[str, ...] | None) -> Setting:
    """Return a setting with another model or other texts, and words that name them.

    Another model or training text makes a store of its own; other texts are continued from how one of them begins.
    """
    new: Json = {name: value for name, value in given.items() if value}
    if not new:
        return setting
    if new.keys() & {"model", "train"}:
        new["store"] = None
    if new.keys() & {"train", "test"}:
        new["prompt"] = ""
    if "train" in new:
        new.setdefault("unrelated", ())
    own = replace(setting, **new)
    return replace(own, title=_title(own), text=_text(own))


def give_budgets(setting: Setting, budgets: tuple[float, ...], methods: tuple[str, ...]) -> Setting:
    """Return a comparison with other budgets, in minutes."""
    if not budgets and not methods:
        return setting
    if not setting.budgets:
        given = "budgets" if budgets else "methods"
        raise OptionError(f"`{given}` is for comparisons, but `setting` is {setting.name!r}; leave it out")
    if not all(0 < minutes < _MOST_MINUTES for minutes in budgets):
        raise OptionError(f"`budgets` are {', '.join(map(str, budgets))}, expected minutes above 0")
    return replace(setting, budgets=tuple(sorted(set(budgets or setting.budgets))))


def _title(setting: Setting) -> str:
    """Name the model and the texts, without the folders that they lie in."""
    model = "A small LM" if setting.model == TRAINED else Path(setting.model).name
    train, test = (", ".join(Path(text).name or text for text in texts) for texts in (setting.train, setting.test))
    if setting.budgets:
        return f"Equal time, equal text: {model} on {train}, tested on {test}"
    return f"{model} with a memory of {train}, tested on {test}"


def _text(setting: Setting) -> str:
    model = f"The model is {setting.model}"
    if setting.model == TRAINED:
        model = "The model is a small LM that was trained on the store's text"
    train, valid, test = (", ".join(texts) for texts in (setting.train, setting.valid, setting.test))
    if setting.budgets:
        return (
            f"{model}. It is to learn {train}; what must be chosen is chosen on {valid}; the text to test on is {test}."
        )
    return f"{model}. The store holds {train}; the text to tune on is {valid}, the text to test on {test}."
