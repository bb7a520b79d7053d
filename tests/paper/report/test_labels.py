"""Names of points hide nothing and are all inside."""

import random
from dataclasses import replace

import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import measured
from nearlm.paper.report import figures


def boxes(figure):
    """Return boxes around names, around markers and the legend, and lines and the room, all after drawing."""
    figure.canvas.draw()
    axes = figure.axes[-1]
    renderer = figure.canvas.get_renderer()
    names = [Text.get_window_extent(text, renderer) for text in axes.texts]
    lines = [
        line.get_transform().transform_path(line.get_path()) for line in axes.lines if line.get_linestyle() != "None"
    ]
    markers = []
    for line in axes.lines:
        if line.get_marker() != "None":
            half = line.get_markersize() / 2 * figure.dpi / 72
            markers += [Bbox([at - half, at + half]) for at in line.get_transform().transform(line.get_xydata())]
    legend = axes.get_legend()
    room = axes.get_window_extent(renderer).padded(5)
    covered = [*markers, legend.get_window_extent(renderer)] if legend else markers
    return names, covered, lines, room


def inside(room, box):
    return room.x0 < box.x0 and box.x1 < room.x1 and room.y0 < box.y0 and box.y1 < room.y1


def random_table(seed):
    source = random.Random(seed)
    rows = [
        replace(row, tokens_per_second=source.uniform(150, 323), perplexity=source.gauss(9.2, 0.15))
        for row in measured.main_table().rows
    ]
    return replace(measured.main_table(), rows=rows)


DRAWN = {
    "intro": lambda: figures.intro(measured.main_table()),
    "closer": lambda: figures.closer(measured.main_table()),
    "choice": lambda: figures.choice(measured.choice()),
    "within": lambda: figures.choice(measured.within()),
    "speed": lambda: figures.adaptive_speed(measured.ablation()),
    "sweep": lambda: figures._sweep_panels(measured.k_sweep()),
    "random 4": lambda: figures.closer(random_table(4)),
    "random 11": lambda: figures.closer(random_table(11)),
    "random 16": lambda: figures.intro(random_table(16)),
}
COUNTS = {
    "intro": 8,
    "closer": 7,
    "choice": 1,
    "within": 1,
    "speed": 6,
    "sweep": 8,
    "random 4": 7,
    "random 11": 7,
    "random 16": 8,
}


@pytest.mark.parametrize("name", DRAWN)
def test_names_lie_on_nothing_and_are_not_cut_off(name):
    names, covered, lines, room = boxes(DRAWN[name]())
    assert len(names) == COUNTS[name]
    for number, box in enumerate(names):
        assert not box.count_overlaps(names[:number]) and not box.count_overlaps(covered)
        assert not any(line.intersects_bbox(box, filled=False) for line in lines)
        assert inside(room, box)


def test_the_name_of_the_choice_is_inside_its_figure():
    """As it was not in a real one: the star at the lower left, with others close on its right."""
    crowd = [(time, step / 20) for time in range(29, 90, 4) for step in range(-4, 13, 2)]
    points = [
        measured.option("", time, beyond, pareto=number < 4, chosen=number == 2)
        for number, (time, beyond) in enumerate([(22, 0.48), (24, 0.4), (26.7, -0.145), (65.8, -0.168), *crowd])
    ]
    points[2] = replace(points[2], label="keep 40%, dim 192, nprobe 2, k 128, skip 6%")
    (name,), covered, lines, room = boxes(figures.choice(replace(measured.choice(), points=points)))
    assert inside(room, name) and not name.count_overlaps(covered[-1:])  # the legend
    assert not any(line.intersects_bbox(name, filled=False) for line in lines)
