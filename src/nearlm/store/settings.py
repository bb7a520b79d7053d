"""How a memory is searched and mixed: one record from the command line to disk, and what was tuned for an index."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from nearlm.base import OptionError, StoreError, check_at_least, files, from_json, write_record
from nearlm.store.layout import Layout

DEFAULT = "default"  # the name of an index, gate or mixture
NONE = "none"  # of a gate or mixture that is not wanted
DISTANCES = ("index", "store", "parent")
_RENAMED = {"temperature": "knn_temperature", "adaptor": "gate"}  # since 0.1
Kind = TypeVar("Kind", bound="SearchSettings")


@dataclass(frozen=True)
class SearchSettings:
    """How a memory is searched and mixed with the LM; None stands for what was tuned, or else for a default."""

    index: str | None = None
    """Which index of the store. [default: the store's choice]"""
    lam: float | None = None
    """λ, the weight of the memory in the mixture: 0 is the model alone. [default: tuned]"""
    knn_temperature: float | None = None
    """Distances are divided by T: a larger one trusts far neighbours more. [default: tuned, or 1]"""
    k: int | None = None
    """Neighbours per token. [default: tuned, or 1024]"""
    nprobe: int | None = None
    """Lists of the index that a search looks at; more find more, slower. [default: the index's]"""
    distances: str | None = None
    """Distances by the keys of the index (rounded), the store, or the parent it was made from. [default: index]"""
    mixture: str | None = None
    """Mixture that weighs what was found for each token, or none. [default: the store's choice]"""
    gate: str | None = None
    """Gate that decides which tokens skip retrieval, and without a mixture λ, or none. [default: the store's choice]"""
    skip: float | Literal["auto"] | None = None
    """Share of tokens that skip retrieval: 0 to 1, or auto."""
    budget: float | None = None
    """With skip auto: perplexity it may cost. [default: 0.1]"""

    def __post_init__(self) -> None:
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise OptionError(f"`lam` is {self.lam}, expected 0 to 1")
        if self.knn_temperature is not None and not self.knn_temperature > 0:
            raise OptionError(f"`knn_temperature` is {self.knn_temperature}, expected more than 0")
        check_at_least(1, k=self.k, nprobe=self.nprobe)
        if self.distances not in (None, *DISTANCES):
            raise OptionError(f"`distances` is {self.distances!r}, expected one of {', '.join(DISTANCES)}")
        if isinstance(self.skip, float | int) and not 0 <= self.skip <= 1:
            raise OptionError(f"`skip` is {self.skip}, expected 0 to 1 or auto")
        if self.budget is not None and not self.budget >= 0:
            raise OptionError(f"`budget` is {self.budget}, expected 0 or more perplexity")

    @property
    def values(self) -> dict[str, Any]:
        """The settings that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(SearchSettings)}
        return {name: value for name, value in values.items() if value is not None}

    def over(self, others: "SearchSettings | None") -> Self:
        """Return these settings, with those of others where these are None."""
        known = others.values if others is not None else {}
        return replace(self, **{name: value for name, value in known.items() if getattr(self, name) is None})


@dataclass(frozen=True)
class Tuned(SearchSettings):
    """Settings that were tuned on a text: their perplexity there, its tokens and hash, and which index they are for.

    Older ones do not say for which index they were tuned (`index_hash` is empty).
    """

    perplexity: float = float("inf")
    tokens: int = 0
    text: str = ""
    index_hash: str = ""


def read_defaults(layout: Layout) -> SearchSettings:
    """Read which index, gate and share of skipped searches are used when none is named."""
    for chose in (layout.optimized, layout.fit.description):
        if chose.exists() and not layout.defaults.exists():
            raise StoreError(
                f"{layout.defaults} is missing, which says what {chose.name} has chosen; restore it, or remove "
                f"{chose.name} too, to use the store without a gate"
            )
    noted = _read(SearchSettings, layout.defaults) or SearchSettings()
    for kind, always in (("index", DEFAULT), ("gate", NONE), ("mixture", NONE)):
        name = getattr(noted, kind)
        if name not in (None, always) and name not in layout.names(kind):
            raise _not_there(kind, name, layout.defaults)
    if noted.skip is not None and noted.gate in (None, NONE):
        raise StoreError(f"{layout.defaults} says skip {noted.skip}, but names no gate; remove that file")
    return noted.over(SearchSettings(index=DEFAULT))


def _not_there(kind: str, name: str, path: Path) -> StoreError:
    again = f"nearlm index {path.parent}" if kind == "index" else f"nearlm gate {path.parent} `text=…`"
    return StoreError(f"{path} names {kind} {name!r}, which is not there; make it ({again}), or remove that file")


def write_defaults(layout: Layout, settings: SearchSettings) -> None:
    """Choose what is used when none is named."""
    write_record(layout.defaults, settings)


def read_tuned(layout: Layout, index: str) -> Tuned | None:
    """Read what was tuned for an index, None if nothing was."""
    tuned = _read(Tuned, layout.index(index).settings)
    return tuned and replace(tuned, index=index)


def write_tuned(layout: Layout, tuned: Tuned) -> None:
    """Keep what was tuned for an index with it, where it becomes the default."""
    write_record(layout.index(tuned.index or DEFAULT).settings, tuned)


def _read(kind: type[Kind], path: Path) -> Kind | None:
    """Read settings, also as older versions wrote them; None if there is no such file."""
    if not path.exists():
        return None
    noted = files.read_stamped(path)
    return from_json(kind, {_RENAMED.get(name, name): value for name, value in noted.items()}, path)
