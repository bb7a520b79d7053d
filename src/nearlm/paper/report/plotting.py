"""How every figure looks: one palette, one style, files that stay the same."""

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Concatenate, TypeVar

from nearlm.base import OptionError, files, import_extra

# Okabe and Ito's palette: told apart with any kind of colour vision; line styles and markers differ too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ("-", "v"), ("--", "P"))
INK = "#1f2933"
MUTED = "#5b6673"
GRID = "#e1e5ea"
WHITE = "#ffffff"
_NEEDED = ("a figure", "report")  # matplotlib, for what, in which extra
_FORMATS = (".png", ".svg", ".pdf")
_SIZE = (5.2, 3.7)  # inches a panel: its letters are still readable on a phone
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "figure.facecolor": WHITE,
    "axes.facecolor": WHITE,
    "savefig.facecolor": WHITE,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.titlesize": 10.5,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.facecolor": WHITE,
    "legend.edgecolor": WHITE,
    "legend.framealpha": 0.85,
    "legend.borderpad": 0.2,
    "legend.fontsize": 9.5,
    "legend.handlelength": 2.6,
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.09,
    "text.parse_math": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "nearlm",
    "pdf.fonttype": 42,
}
_THEME = {
    **{colour: f"--figure-{number}" for number, colour in enumerate(COLOURS)},
    **{INK: "--figure-ink", MUTED: "--figure-muted", GRID: "--figure-grid", WHITE: "--figure-paper"},
}
_STEADY: dict[str, dict[str, None]] = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}

Drawable = TypeVar("Drawable")


def check_figure(path: Path) -> None:
    """Refuse, before the work, a figure that cannot be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise OptionError(f"`figure` is {path.name!r}, expected a name that ends in {', '.join(_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"`figure` is {path}, but {path.parent} is no folder; make it first")
    import_extra("matplotlib", *_NEEDED)


def figure(panels: int = 1) -> Callable[[Callable[Concatenate[Drawable, ...], None]], Callable[[Drawable], Any]]:
    """Let a function that draws what was found on panels side by side return the whole figure."""

    def decorate(draw: Callable[Concatenate[Drawable, ...], None]) -> Callable[[Drawable], Any]:
        @functools.wraps(draw)
        def draw_figure(found: Drawable) -> Any:
            with _style():
                canvas = _blank(panels)
                draw(found, *canvas.axes)
                return finish(canvas)

        return draw_figure

    return decorate


def finish(figure: Any) -> Any:
    """Fix where everything stands, so that every file of a figure is alike."""
    if engine := figure.get_layout_engine():
        for _ in range(2):  # the first pass changes tick labels, and with them what the second has to fit
            engine.execute(figure)
        figure.set_layout_engine("none")
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        if legend := axes.get_legend():  # the best place for it is another at another resolution
            corner = legend.get_window_extent(renderer).min
            legend.set_loc(tuple(axes.transAxes.inverted().transform(corner)))
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, as the name ends; the same figure gives the same bytes."""
    kind = path.suffix.lower()[1:]
    data = io.BytesIO()
    with _style():
        figure.savefig(data, format=kind, dpi=160, metadata=_STEADY.get(kind, {"Software": None}))
    files.write_bytes(path, data.getvalue())


def inline(svg: str, name: str) -> str:
    """Return a saved SVG, after its opening `<svg`, for use in a page: with ids of its own and the page's colours."""
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body).replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", body)
    body = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: _theme(found[0]), body)
    return re.split(r'<svg width="[^"]*" height="[^"]*"', body, maxsplit=1)[1].strip()


def _theme(colour: str) -> str:
    return f"var({_THEME[colour]}, {colour})" if colour in _THEME else colour


def _blank(panels: int) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panels * _SIZE[0], _SIZE[1]), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(1, panels)
    return figure


@contextlib.contextmanager
def _style() -> Iterator[None]:
    """Draw in the style of all figures, whatever the user's own settings are."""
    import_extra("matplotlib", *_NEEDED)
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]):
        yield
