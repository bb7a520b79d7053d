"""How every figure looks: one palette, one style, labels that keep clear of each other, files that stay the same."""

import contextlib
import functools
import io
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from nearlm.base import MissingExtraError, OptionError, files
from nearlm.paper.report.markup import text

# Okabe and Ito's palette: told apart with any kind of colour vision; line styles and markers differ too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ("-", "v"), ("--", "P"))
INK, MUTED, GRID, PAPER = "#1f2933", "#5b6673", "#e1e5ea", "#ffffff"
_FORMATS = (".png", ".svg", ".pdf")
_SIZE = (5.2, 3.7)  # inches a panel: its letters are still readable on a phone
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
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
    "legend.facecolor": PAPER,
    "legend.edgecolor": PAPER,
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
    **{INK: "--figure-ink", MUTED: "--figure-muted", GRID: "--figure-grid", PAPER: "--figure-paper"},
}
_STEADY: dict[str, dict[str, None]] = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
_CUT_OFF = 1000  # a name that is not all inside is worse than one on top of others
_NEAR = 14  # points: a name farther from its point gets a line to it
_GAPS = (9, 13, 19, 27, 38, 52, 68, 86, 106)
_ANGLES = (0, 180, 90, 270, 45, 135, 315, 225, 20, 160, 70, 110, 250, 290)

Options = ParamSpec("Options")
Drawn = TypeVar("Drawn")
Boxes = npt.NDArray[np.float64]  # left, lower, right, upper, in pixels


def check_figure(path: Path) -> None:
    """Refuse, before the work, a figure that cannot be drawn."""
    if path.suffix.lower() not in _FORMATS:
        raise OptionError(f"--figure is {path.name!r}, expected a name that ends in {', '.join(_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"--figure is {path}, but {path.parent} is no folder; make it first")
    _matplotlib()


def styled(draw: Callable[Options, Drawn]) -> Callable[Options, Drawn]:
    """Let a function draw in the style of all figures, whatever the user's own settings are."""

    @functools.wraps(draw)
    def drawn(*args: Options.args, **kwargs: Options.kwargs) -> Drawn:
        with _style():
            return draw(*args, **kwargs)

    return drawn


def panels(count: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, side by side."""
    _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(count * _SIZE[0], _SIZE[1]), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def finish(figure: Any) -> Any:
    """Fix where everything stands, so that every file of a figure is alike."""
    if engine := figure.get_layout_engine():
        for _ in range(2):  # the first pass changes tick labels, and with them what the second has to fit
            engine.execute(figure)
        figure.set_layout_engine("none")
    return figure


@styled
def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, as the name ends; the same figure gives the same bytes."""
    kind = path.suffix.lower()[1:]
    data = io.BytesIO()
    figure.savefig(data, format=kind, dpi=160, metadata=_STEADY.get(kind, {"Software": None}))
    files.write_bytes(path, data.getvalue())


def inline(svg: str, name: str, label: str) -> str:
    """Return a saved SVG for use inside a page: ids of its own, the page's colours, and a text for screen readers."""
    body = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->\n?", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    body = re.sub(r' xmlns(:\w+)?="[^"]*"', "", body).replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", body)
    body = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: _themed(found[0]), body)
    opening = f'<svg role="img" aria-label="{text(label)}"'
    return re.sub(r'<svg width="[^"]*" height="[^"]*"', lambda _: opening, body, count=1).strip()


class Label(NamedTuple):
    """A name to write near a point."""

    x: float
    y: float
    text: str
    bold: bool = False


def label_points(axes: Any, labels: Sequence[Label]) -> None:
    """Write names near their points where there is room, with a thin line to those that must stand apart."""
    figure = axes.figure
    finish(figure)
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    room = axes.get_window_extent(renderer).padded(2 * scale).extents
    taken = _obstacles(axes, renderer, scale)
    leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
    for label in labels:
        style = {"fontsize": 9.5, "fontweight": "bold" if label.bold else "normal", "linespacing": 1.1}
        trial = axes.text(0, 0, label.text, transform=None, **style)
        extent = trial.get_window_extent(renderer)
        trial.remove()
        point = axes.transData.transform((label.x, label.y))
        place = min(_places(point, (extent.width, extent.height), room, taken, scale), key=lambda one: one.cost)
        axes.annotate(
            *(label.text, (label.x, label.y), place.offset),
            textcoords="offset points",
            ha="center",
            va="center",
            arrowprops=leader if place.gap > _NEAR else None,
            zorder=5,
            **style,
        )
        taken = np.concatenate([taken, place.boxes])


class _Place(NamedTuple):
    cost: int
    offset: tuple[float, float]  # points
    gap: float  # points between a point and its name
    boxes: Boxes  # what the name and its line take, in pixels


def _places(point: Any, size: tuple[float, float], room: Any, taken: Boxes, scale: float) -> Iterator[_Place]:
    """Yield places for a name, near ones first, with what each would hide; a free one is the last."""
    for gap, angle in itertools.product(_GAPS, _ANGLES):
        way = np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
        middle = point + way * (gap * scale + np.array(size) / 2)
        box = np.concatenate([middle - np.array(size) / 2, middle + np.array(size) / 2])[None]
        line = _squares(_along(point + way * 8 * scale, middle, 4 * scale), scale)
        line = line[~_overlaps(line, box)[:, 0]] if gap > _NEAR else line[:0]
        outside = (box[0, :2] < room[:2]).any() or (box[0, 2:] > room[2:]).any()
        hidden, crossed = _overlaps(box, taken).sum(), _overlaps(line, taken).any(axis=0).sum()
        x, y = (middle - point) / scale
        place = _Place(int(3 * hidden + crossed + _CUT_OFF * outside), (x, y), gap, np.concatenate([box, line]))
        yield place
        if not place.cost:
            return


def _obstacles(axes: Any, renderer: Any, scale: float) -> Boxes:
    """Return boxes around everything drawn so far: markers, pieces of lines, the legend."""
    boxes = [np.empty((0, 4))]
    for line in axes.lines:
        corners = line.get_transform().transform(line.get_xydata())
        if line.get_linestyle() != "None":
            boxes += [_squares(_along(*pair, 4 * scale), 2 * scale) for pair in itertools.pairwise(corners)]
        if line.get_marker() != "None":
            boxes.append(_squares(corners, (line.get_markersize() / 2 + 3) * scale))
    if legend := axes.get_legend():
        boxes.append(legend.get_window_extent(renderer).extents[None])
    return np.concatenate(boxes)


def _along(start: Any, end: Any, step: float) -> Any:
    """Return points on a straight line, a step apart."""
    return np.linspace(start, end, max(2, round(math.dist(start, end) / step)))


def _squares(points: Any, half: float) -> Boxes:
    return np.concatenate([points - half, points + half], axis=1)


def _overlaps(some: Boxes, others: Boxes) -> npt.NDArray[np.bool_]:
    """Return which boxes overlap which, [some, others]."""
    low, high = np.maximum(some[:, None, :2], others[None, :, :2]), np.minimum(some[:, None, 2:], others[None, :, 2:])
    return np.asarray((low < high).all(axis=2))


def _themed(colour: str) -> str:
    return f"var({_THEME[colour]}, {colour})" if colour in _THEME else colour


@contextlib.contextmanager
def _style() -> Iterator[None]:
    _matplotlib()
    import matplotlib.style

    with matplotlib.style.context(["default", _STYLE]):
        yield


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("a figure", "report") from None
