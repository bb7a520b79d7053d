"""One page of everything that was measured: a single HTML file that needs nothing else to be read."""

import os
from collections.abc import Callable
from dataclasses import fields
from importlib import resources
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any
from urllib.parse import quote

from nearlm.base import StoreError, duration, files, import_extra
from nearlm.paper.report import comparison_figure, figures, formatting
from nearlm.paper.report.plotting import inline, save
from nearlm.paper.results import ALL, FINETUNED, LEARNED, NLM, RANDOM, VANILLA, WITHIN, Parts, Results

FIGURES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "main": {"intro": figures.intro, "closer": figures.closer},
    "comparison": {"comparison": comparison_figure.comparison},
    "choice": {"choice": figures.choice},
    "within": {"within": figures.choice},
    "mixture": {"mixture-sources": figures.mixture_sources, "mixture-features": figures.mixture_features},
    "adaptive": {
        "adaptive": figures.adaptive,
        "adaptive-speed": figures.adaptive_speed,
        "masks": figures.masks,
        "features": figures.features,
    },
    "pruning": {"pruning": figures.pruning, "pruning-speed": figures.pruning_speed},
    "pca": {"pca": figures.sweep_perplexity, "pca-speed": figures.sweep_speed},
    "k": {"k": figures.sweep_perplexity, "k-speed": figures.sweep_speed},
}
_NAMES = {
    "NLM": NLM,
    "VANILLA": VANILLA,
    "ALL": ALL,
    "WITHIN": WITHIN,
    "FINETUNED": FINETUNED,
    "RANDOM": RANDOM,
    "LEARNED": LEARNED,
}
_STYLE = resources.files("nearlm.paper.report").joinpath("style.css")


def write_report(results: Results, path: Path | None = None) -> Path:
    """Draw every figure there are numbers for, and write the page, by default `report.html` beside the numbers."""
    parts = results.all()
    if parts == Parts():
        raise StoreError(f"{results.folder} holds no results such as main.json; run an experiment first")
    path = path or results.folder / "report.html"
    template = _environment().get_template("page.html")
    pictures = _draw(parts, path.parent / "figures")
    measured = {part.name: getattr(parts, part.name) for part in fields(Parts)}
    data = {part: _data(results.folder, part, path.parent) for part in measured if measured[part] is not None}
    files.write_bytes(path, template.render(measured, pictures=pictures, data=data).encode())
    return path


def _draw(parts: Parts, folder: Path) -> dict[str, str]:
    """Draw the figures into files, and return each as it stands in the page."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {}
    for part, draws in FIGURES.items():
        found = getattr(parts, part)
        for name, draw in draws.items():
            if found is not None and _worth_drawing(name, parts):
                drawn = draw(found)
                for kind in ("png", "svg"):
                    save(drawn, folder / f"{name}.{kind}")
                pictures[name] = inline((folder / f"{name}.svg").read_text("utf-8"), f"figure-{name}")
    return pictures


def _worth_drawing(name: str, parts: Parts) -> bool:
    if name == "closer":
        return parts.main is not None and len(parts.main.rows) > 2
    if name == "features":
        return parts.adaptive is not None and bool(parts.adaptive.features)
    return True


def _data(folder: Path, part: str, beside: Path) -> dict[str, str]:
    """Return the files of a part and the addresses of each, seen from the page."""
    kept = [folder / f"{part}{suffix}" for suffix in (".json", ".csv")]
    return {one.name: quote(Path(os.path.relpath(one, beside)).as_posix()) for one in kept if one.exists()}


def _environment() -> Any:
    """Return what makes the page of its templates: every text is escaped, and nothing unknown passes in silence."""
    jinja2 = import_extra("jinja2", "a page", "report")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nearlm.paper.report"),
        autoescape=True,
        finalize=_show,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(getmembers(formatting, isfunction), method_name=figures.method_name, duration=duration)
    environment.globals.update(_NAMES, style=_STYLE.read_text("utf-8"))
    return environment


def _show(value: Any) -> Any:
    """Return what a template writes; a text that is HTML already stays so."""
    return type(value)(formatting.displayable(value)) if isinstance(value, str) else value
