"""The figures and the page, from made-up results of the shape that the experiments write."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import measured
from nearlm.base.errors import StoreError
from nearlm.paper import report
from nearlm.paper.report import figures, markup, plotting
from nearlm.paper.report import page as page_module
from nearlm.paper.report.continuation import continuation, memory_share
from nearlm.paper.results import PARTS, MainTable, Results

PARTS_OF_PAGE = [part for part in PARTS if part != "about"]
PICTURES = {
    "main": ("intro", "closer"),
    "choice": ("choice",),
    "adaptive": ("adaptive", "adaptive-speed", "masks", "features"),
    "pruning": ("pruning", "pruning-speed"),
    "pca": ("pca", "pca-speed"),
    "k": ("k", "k-speed"),
}
DRAWINGS = [
    (figures.intro, "main", "intro"),
    (figures.closer, "main", "closer"),
    (figures.choice, "choice", "choice"),
    (figures.adaptive, "adaptive", "adaptive"),
    (figures.adaptive_speed, "adaptive", "adaptive-speed"),
    (figures.masks, "adaptive", "masks"),
    (figures.features, "adaptive", "features"),
    (figures.pruning, "pruning", "pruning"),
    (figures.pruning_speed, "pruning", "pruning-speed"),
    (figures.sweep, "pca", "pca"),
    (figures.sweep_speed, "k", "k-speed"),
]
VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = "</p><script>alert(1)</script>\"'&amp;<!-- ]]> $title ${x} \\1 \x00\x1b\ud800 \u202e"


class Page(HTMLParser):
    """Collects what a page holds, and complains where its tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def write(folder, parts):
    results = Results(folder)
    for part, found in parts.items():
        results.save(part, found, found.get("rows", ()))
    path = report.write_report(results)
    return path, path.read_text("utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path, text = write(folder, measured.parts())
    return SimpleNamespace(folder=folder, path=path, text=text, page=Page(text))


def test_the_page_holds_every_part(whole):
    assert whole.path == whole.folder / "report.html"
    sections = [attrs["id"] for attrs in whole.page.of("section")]
    assert sorted(sections) == sorted(PARTS_OF_PAGE)
    said = " ".join(whole.page.text)
    for number in ("16.89", "9.18", "1.22×", "98\xa0%", "27,800", "IVF1024,PQ64", "transformers", "2.3 h"):
        assert number in said
    for words in (measured.about()["command"], measured.choice()["paragraph"], "3 short rounds", "310 to 340 tokens/s"):
        assert words in said


def test_every_figure_is_in_the_page_and_beside_it(whole):
    names = [name for part in PICTURES.values() for name in part]
    drawings = [attrs for attrs in whole.page.of("svg") if attrs.get("role") == "img"]
    assert len(drawings) == len(whole.page.of("figcaption")) == len(names)
    assert all(len(attrs["aria-label"]) > 30 for attrs in drawings)
    for name in names:
        assert (whole.folder / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (whole.folder / "figures" / f"{name}.svg").read_text().startswith("<?xml")


def test_the_page_needs_nothing_from_elsewhere(whole):
    assert not whole.page.of("script") and not whole.page.of("link") and not whole.page.of("img")
    assert "@import" not in whole.text and not re.search(r"url\((?!#)", whole.text)
    assert "://" not in whole.text
    for tag, attrs in whole.page.tags:
        assert not any(name.startswith("on") for name in attrs)
        target = attrs.get("href") or attrs.get("src") or "#"
        assert target.startswith("#") or (whole.folder / target).is_file(), (tag, target)


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(whole):
    assert len(set(whole.page.ids)) == len(whole.page.ids)
    inner = {attrs["href"][1:] for _, attrs in whole.page.tags if attrs.get("href", "").startswith("#")}
    inner |= set(re.findall(r"url\(#([^)]+)\)", whole.text))
    assert inner <= set(whole.page.ids)


def test_tables_can_be_read_aloud(whole):
    assert len(whole.page.of("caption")) == len(whole.page.of("table")) > 8
    assert {attrs.get("scope") for attrs in whole.page.of("th")} == {"col", "row"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_alone_makes_a_page_of_its_own(tmp_path, part, monkeypatch):
    monkeypatch.setattr(page_module, "save", lambda figure, path: path.write_text('<svg width="1" height="1"></svg>'))
    path, text = write(tmp_path, {part: measured.parts()[part]})
    page = Page(text)
    assert [attrs["id"] for attrs in page.of("section")] == ([] if part == "about" else [part])
    drawn = {file.stem for file in (path.parent / "figures").iterdir()}
    assert drawn == set(PICTURES.get(part, ()))


def test_a_part_that_is_missing_is_left_out(tmp_path):
    parts = {part: found for part, found in measured.parts().items() if part in ("about", "baseline", "continuation")}
    del parts["about"]["paper"], parts["about"]["seconds"], parts["about"]["versions"]
    page = Page(write(tmp_path, parts)[1])
    assert [attrs["id"] for attrs in page.of("section")] == ["continuation", "baseline"]
    assert not any("tiles" in attrs.get("class", "") for attrs in page.of("ul"))


def test_the_name_of_the_choice_is_inside_its_figure():
    """As it was not in a real one: the star at the lower left, with others close on its right."""
    crowd = [(time, step / 20) for time in range(29, 90, 4) for step in range(-4, 13, 2)]
    points = [
        {"label": "", "microseconds": time, "beyond": beyond, "pareto": number < 4, "chosen": number == 2}
        for number, (time, beyond) in enumerate([(22, 0.48), (24, 0.4), (26.7, -0.145), (65.8, -0.168), *crowd])
    ]
    points[2]["label"] = "keep 40%, dim 192, nprobe 2, k 128, skip 6%"
    figure = figures.choice({**measured.choice(), "points": points})
    (axes,) = figure.axes
    renderer = figure.canvas.get_renderer()
    name, room = axes.texts[0].get_window_extent(renderer), axes.get_window_extent(renderer).padded(10)
    assert room.x0 < name.x0 and name.x1 < room.x1 and room.y0 < name.y0 and name.y1 < room.y1


def test_numbers_on_an_axis_do_not_touch():
    found = measured.parts()["pca"]
    points = [{**found["points"][0], "value": dim, "dim": dim} for dim in (32, 256, 512, 576)]
    points[-1]["value"] = None  # the store as it is
    figure = figures.sweep({**found, "points": points})
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["32", "256", "", "576"]


def test_no_results_are_an_error_that_says_so(tmp_path):
    with pytest.raises(StoreError, match="holds no results"):
        report.write_report(Results(tmp_path))


def test_a_page_elsewhere_links_back_to_the_numbers(tmp_path):
    results = Results(tmp_path / "a b")
    results.save("baseline", measured.baseline())
    (tmp_path / "out").mkdir()
    path = report.write_report(results, tmp_path / "out" / "page.html")
    assert 'href="../a%20b/baseline.json"' in path.read_text()


def nasty(value):
    """Put a nasty text wherever a part has a text that comes from outside."""
    if isinstance(value, dict):
        free = (
            "title",
            "text",
            "source",
            "token",
            "prompt",
            "with",
            "without",
            "label",
            "paragraph",
            "command",
            "machine",
        )
        return {name: NASTY if name in free and isinstance(one, str) else nasty(one) for name, one in value.items()}
    return [nasty(one) for one in value] if isinstance(value, list) else value


def test_texts_from_outside_are_shown_and_never_run(tmp_path):
    parts = nasty(
        {part: found for part, found in measured.parts().items() if part in ("about", "choice", "continuation")}
    )
    page = Page(write(tmp_path, parts)[1])
    assert not page.of("script")
    said = "".join(page.text)
    assert said.count("<script>alert(1)</script>") > 20 and "${x} \\1" in said
    assert "\x00" not in said and "\x1b" not in said


@given(st.text(st.characters(codec=None), max_size=60))
def test_any_token_is_shown_as_text(token):
    found = measured.continuation()
    one = {**found["tokens"][0], "token": token}
    page = Page(continuation({**found, "prompt": token, "without": token, "tokens": [one]}))
    allowed = {
        "div",
        "h3",
        "p",
        "span",
        "a",
        "details",
        "summary",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert {tag for tag, _ in page.tags} <= allowed | {"small"}
    markup.text(token).encode()


def test_a_token_is_shaded_by_what_the_memory_gave():
    token = {"p": 0.5, "lam": 0.25, "p_knn": 0.8, "p_lm": 0.4}
    assert memory_share(token) == pytest.approx(0.25 * 0.8 / 0.5)
    assert memory_share({**token, "p": 0.0}) == 0.0
    assert memory_share({**token, "p": 0.1}) == 1.0


@pytest.mark.parametrize(("draw", "part", "name"), DRAWINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_figures_are_the_same_bytes_each_time(whole, tmp_path, draw, part, name):
    report.save(draw(measured.parts()[part]), tmp_path / "again.svg")
    drawn = (whole.folder / "figures" / f"{name}.svg").read_bytes()
    assert drawn == (tmp_path / "again.svg").read_bytes()
    assert b"<dc:date>" not in drawn and not re.search(rb"\b(nan|inf)\b", drawn)


def single(part):
    """Return a part with as few points as it can have."""
    main = measured.main_table()
    sweeps = {
        "pca": measured.dim_sweep(()).to_json(),
        "k": measured.k_sweep(()).to_json(),
        "pruning": {"merge": measured.keep_sweep("merge", ()).to_json()},
    }
    one = replace(
        measured.ablation(),
        shares=(0.0,),
        curves={name: values[:1] for name, values in measured.ablation().curves.items()},
        features=[{"features": ["keys"], "perplexity": [9.0], "epochs": 1}],
        objectives={},
        speed={"seconds_per_token": {}, "tokens_per_second": [300.0]},
    )
    choice = {**measured.choice(), "points": [{**measured.choice()["points"][0], "pareto": True, "chosen": True}]}
    rows = {"main": MainTable(1, main.rows[:2]).to_json(), "adaptive": one.to_json(), "choice": choice}
    return {**sweeps, **rows}[part]


@pytest.mark.parametrize(("draw", "part", "name"), DRAWINGS, ids=lambda value: value if isinstance(value, str) else "")
def test_one_point_is_enough_for_a_figure(tmp_path, draw, part, name, recwarn):
    report.save(draw(single(part)), tmp_path / "one.svg")
    assert not re.search(r"\b(nan|inf)\b", (tmp_path / "one.svg").read_text())
    assert not recwarn.list


def test_points_that_were_not_measured_are_left_out(tmp_path):
    found = measured.k_sweep().to_json()
    found["points"][2]["perplexity"] = math.nan
    found["points"][3]["perplexity"] = None
    report.save(figures.sweep(found), tmp_path / "k.svg")
    assert "nan" not in (tmp_path / "k.svg").read_text()


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_command_line_draws_any_kind(tmp_path, kind):
    report.sweep_figure(measured.dim_sweep().to_json(), tmp_path / f"s.{kind}")
    assert (tmp_path / f"s.{kind}").stat().st_size > 5_000


def test_an_ablation_is_drawn_with_and_without_variants(tmp_path):
    found = measured.ablation()
    report.ablation_figure(found.to_json(), tmp_path / "a.svg")
    report.ablation_figure(replace(found, objectives={}, features=[]).to_json(), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_text() != (tmp_path / "b.svg").read_text()


def test_labels_do_not_lie_on_each_other():
    figure = figures.intro(measured.main_table().to_json())
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    assert len(boxes) == 7
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


def luminance(colour):
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_and_lines_are_told_apart():
    assert len(set(plotting.COLOURS)) == len(plotting.COLOURS) == len(set(plotting.LINES))
    assert contrast(plotting.INK, plotting.PAPER) > 7 and contrast(plotting.MUTED, plotting.PAPER) > 4.5


def test_text_is_readable_in_both_modes(whole):
    light, dark = (dict(re.findall(r"(--[\w-]+): (#\w{6});", part)) for part in whole.text.split("@media", 2)[:2])
    for mode in (light, dark):
        for text in ("--ink", "--muted", "--link"):
            assert all(contrast(mode[text], mode[behind]) >= 4.5 for behind in ("--page", "--card", "--best"))
        assert all(contrast(mode[f"--figure-{number}"], mode["--figure-paper"]) >= 2 for number in range(6))


@pytest.mark.parametrize(
    ("write", "value", "expected"),
    [
        (markup.perplexity, 9.1849, "9.18"),
        (markup.perplexity, 106.56, "106.6"),
        (markup.perplexity, None, "–"),
        (markup.perplexity, math.nan, "–"),
        (markup.speed, 27800.4, "27,800"),
        (markup.speed, 0.8234, "0.82"),
        (markup.times, 1.2248, "1.22×"),
        (markup.times, 42.4, "42×"),
        (markup.share, 0.978, "98\xa0%"),
        (markup.chance, 0.0042, "0.4\xa0%"),
        (markup.chance, 0.0, "0\xa0%"),
        (markup.plain, 31.25, "31.25"),
        (markup.count, 1048576, "1,048,576"),
    ],
)
def test_numbers_are_written_for_people(write, value, expected):
    assert write(value) == expected


def test_a_wide_range_of_times_has_plain_numbers():
    found = measured.choice()
    found["points"][0]["microseconds"], found["points"][1]["microseconds"] = 3.0, 900.0
    axes = figures.choice(found).axes[0]
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels(which="both") if low <= label.get_position()[0] <= high]
    assert axes.get_xscale() == "log" and {"5", "10", "20", "100", "500"} <= set(shown)
    assert all(text.replace(",", "").isdigit() for text in shown if text)
