"""Names of points in a figure, written where they hide nothing."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from nearlm.paper.report.plotting import MUTED, finish

# adjustText 1.4 leaves names on markers in 5 to 9 of 40 random main tables that `closer` draws, with any of eleven sets
# of options; this search among fixed places does so in none, takes half the time, and does not need scipy.
_GAPS = (9, 13, 19, 27, 38, 52, 68, 86, 106)  # points between a marker and its name
_ANGLES = (0, 180, 90, 270, 45, 135, 315, 225, 20, 160, 70, 110, 250, 290)
_NEAR = 14  # points: a name farther from its marker gets a line to it
_LOST = 1000  # a name that is cut off or behind the legend is worse than one on top of others


class Label(NamedTuple):
    """A name to write near a point."""

    x: float
    y: float
    text: str
    bold: bool = False


def label_points(axes: Any, labels: Sequence[Label]) -> None:
    """Write names near their points where there is room, with a thin line to those that must stand apart."""
    finish(axes.figure)
    drawn = _Drawn(axes)
    for label in labels:
        weight = "bold" if label.bold else "normal"
        style = {"ha": "center", "va": "center", "fontsize": 9.5, "fontweight": weight, "linespacing": 1.1, "zorder": 5}
        trial = axes.text(label.x, label.y, label.text, **style)
        place = drawn.take(trial.get_window_extent(drawn.renderer))
        trial.remove()
        leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            label.text,
            (label.x, label.y),
            place.offset,
            textcoords="offset points",
            arrowprops=leader if place.gap > _NEAR else None,
            **style,
        )


class _Place(NamedTuple):
    gap: float  # points
    offset: tuple[float, float]  # of a name's middle from its point, in points
    box: Any  # what the name takes, in pixels
    leader: Any  # the line from near the point to the name, in pixels


class _Drawn:
    """All that is drawn so far, in pixels: boxes of markers, names and the legend, and lines."""

    def __init__(self, axes: Any):
        from matplotlib.transforms import Bbox

        self.renderer = axes.figure.canvas.get_renderer()
        self.scale = axes.figure.dpi / 72
        self.room = axes.get_window_extent(self.renderer).padded(2 * self.scale)
        self.lines = []
        self.boxes = []
        for line in axes.lines:
            path = line.get_transform().transform_path(line.get_path())
            if line.get_linestyle() != "None":
                self.lines.append(path)
            if line.get_marker() != "None":
                half = (line.get_markersize() / 2 + 3) * self.scale
                self.boxes += [Bbox([point, point]).padded(half) for point in path.vertices]
        legend = axes.get_legend()
        self.legend = [legend.get_window_extent(self.renderer)] if legend else []

    def take(self, extent: Any) -> _Place:
        """Return the nearest of the best places for a name whose extent is around its point, and keep it free."""
        places = (self._place(extent, gap, angle) for gap, angle in itertools.product(_GAPS, _ANGLES))
        place = min(places, key=self._cost)
        self.boxes.append(place.box)
        if place.gap > _NEAR:
            self.lines.append(place.leader)
        return place

    def _place(self, extent: Any, gap: float, angle: float) -> _Place:
        from matplotlib.path import Path

        across = math.cos(math.radians(angle))
        up = math.sin(math.radians(angle))
        x = across * (gap * self.scale + extent.width / 2)
        y = up * (gap * self.scale + extent.height / 2)
        middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
        start = (middle[0] + 12 * self.scale * across, middle[1] + 12 * self.scale * up)
        leader = Path([start, (middle[0] + x, middle[1] + y)])
        return _Place(gap, (x / self.scale, y / self.scale), extent.translated(x, y), leader)

    def _cost(self, place: _Place) -> int:
        """Return how much a name there would hide."""
        box = place.box
        inside = self.room.x0 <= box.x0 and box.x1 <= self.room.x1 and self.room.y0 <= box.y0 and box.y1 <= self.room.y1
        lost = not inside or box.count_overlaps(self.legend)
        crossed = sum(line.intersects_bbox(box.padded(self.scale), filled=False) for line in self.lines)
        cost: int = 3 * box.count_overlaps(self.boxes) + 30 * crossed + _LOST * bool(lost)
        if place.gap > _NEAR:
            cost += sum(place.leader.intersects_bbox(other) for other in [*self.boxes, *self.legend])
        return cost
