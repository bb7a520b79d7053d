"""The page, from made-up results."""

import re
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import measured
from nearlm.base import MissingExtraError, StoreError, from_json, to_json
from nearlm.paper import report
from nearlm.paper.report import page as page_module
from nearlm.paper.report import plotting
from nearlm.paper.report.page import FIGURES
from nearlm.paper.results import WITHIN, Continuation, Parts, Results

PARTS = [part.name for part in fields(Parts)]
VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = "</p><script>alert(1)</script>\"'&amp;<!-- ]]> $title ${x} {{ 7 * 7 }} {% raw %} \\1 \x00\x1b\ud800 \u202e"


class Page(HTMLParser):
    """Collects what a page holds, and complains where its tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.tags = []
        self.text = []
        self.ids = []
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

    def said(self):
        return "".join(self.text).replace("\n", " ")


def write(folder, parts):
    results = Results(folder)
    for part in PARTS:
        if (found := getattr(parts, part)) is not None:
            results.save(part, found, getattr(found, "rows", ()))
    path = report.write_report(results)
    return path, path.read_text("utf-8")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    path, text = write(folder, measured.parts())
    return SimpleNamespace(folder=folder, path=path, text=text, page=Page(text))


def test_the_page_holds_every_part(whole):
    assert whole.path == whole.folder / "report.html"
    assert [attrs["id"] for attrs in whole.page.of("section")] == [part for part in PARTS if part != "about"]
    said = whole.page.said()
    for number in ("16.89", "9.18", "1.22×", "98\xa0%", "27,800", "IVF1024,PQ64", "transformers", "2.3 h"):
        assert number in said
    for words in (measured.about().command, measured.choice().paragraph, "3 short rounds", "310 to 340 tokens/s"):
        assert words in said
    assert "None" not in said and "Undefined" not in said


def test_every_figure_is_in_the_page_and_beside_it(whole):
    names = [name for drawn in FIGURES.values() for name in drawn]
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
    (policy,) = [attrs for attrs in whole.page.of("meta") if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    for tag, attrs in whole.page.tags:
        assert not any(name.startswith("on") for name in attrs)
        target = attrs.get("href") or attrs.get("src") or "#"
        assert target.startswith("#") or (whole.folder / target).is_file(), (tag, target)


def test_the_page_fits_a_phone(whole):
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in whole.page.of("meta")
    scrolling = [attrs for attrs in whole.page.of("div") if attrs.get("class") == "scroll"]
    assert len(scrolling) == len(whole.page.of("table")) and all(attrs["tabindex"] == "0" for attrs in scrolling)


def test_ids_are_unique_and_links_within_the_page_lead_somewhere(whole):
    assert len(set(whole.page.ids)) == len(whole.page.ids)
    inner = {attrs["href"][1:] for _, attrs in whole.page.tags if attrs.get("href", "").startswith("#")}
    inner |= set(re.findall(r"url\(#([^)]+)\)", whole.text))
    assert inner <= set(whole.page.ids)


def test_tables_can_be_read_aloud(whole):
    assert len(whole.page.of("caption")) == len(whole.page.of("table")) > 8
    assert {attrs.get("scope") for attrs in whole.page.of("th")} == {"col", "row"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_alone_makes_a_page_of_its_own(tmp_path, part, sketched):
    path, text = write(tmp_path, Parts(**{part: getattr(measured.parts(), part)}))
    page = Page(text)
    assert [attrs["id"] for attrs in page.of("section")] == ([] if part == "about" else [part])
    assert not page.of("nav")
    drawn = {file.stem for file in (path.parent / "figures").iterdir()}
    assert drawn == set(FIGURES.get(part, ()))


def test_a_part_that_is_missing_is_left_out(tmp_path):
    about = replace(measured.about(), paper=[], seconds=0.0, versions={})
    page = Page(write(tmp_path, Parts(about, continuation=measured.continuation(), baseline=measured.baseline()))[1])
    assert [attrs["id"] for attrs in page.of("section")] == ["continuation", "baseline"]
    assert not any("tiles" in attrs.get("class", "") for attrs in page.of("ul"))
    assert "It took" not in page.said()


def test_without_the_papers_numbers_or_variants_the_page_has_none(tmp_path, sketched):
    main = measured.main_table()
    few = replace(main, rows=main.rows[:2], rounds={})
    path, text = write(tmp_path, Parts(main=few, adaptive=replace(measured.ablation(), features=[], equal_share=0.0)))
    said = Page(text).said()
    assert "Paper" not in said and "short rounds" not in said and "cost a little" in said
    drawn = {file.stem for file in (path.parent / "figures").iterdir()}
    assert drawn == {"intro", "adaptive", "adaptive-speed", "masks"}


def test_a_speed_within_the_noise_is_not_given_exactly(tmp_path, sketched):
    main = measured.main_table()
    rows = [replace(row, tokens_per_second=326.0) if row.name == WITHIN else row for row in main.rows]
    found = replace(main, rows=rows, rounds={**main.rounds, WITHIN: [318.0, 326.0, 331.0]})
    said = Page(write(tmp_path, Parts(main=found))[1]).said()
    assert said.count("≈\xa0100\xa0%") == 2 and "101" not in said  # in the table and above it


def test_a_continuation_without_tokens_is_shown_as_text(tmp_path):
    page = Page(write(tmp_path, Parts(continuation=replace(measured.continuation(), tokens=[])))[1])
    assert "with ``object.__new__(cls)``" in page.said() and "Token by token" not in page.said()


def test_tokens_that_did_not_ask_say_so(tmp_path):
    found = measured.continuation()
    silent = replace(found, tokens=[replace(found.tokens[0], nearest=[])])
    assert "Retrieval was skipped." in Page(write(tmp_path, Parts(continuation=silent))[1]).said()


def test_no_results_are_an_error_that_says_so(tmp_path):
    with pytest.raises(StoreError, match="holds no results"):
        report.write_report(Results(tmp_path))


def test_without_jinja_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"a page .*nearlm\[report\]"):
        write(tmp_path, Parts(about=measured.about()))


def test_a_page_elsewhere_links_back_to_the_numbers(tmp_path):
    results = Results(tmp_path / "a b")
    results.save("baseline", measured.baseline())
    (tmp_path / "out").mkdir()
    path = report.write_report(results, tmp_path / "out" / "page.html")
    assert 'href="../a%20b/baseline.json"' in path.read_text()


def nasty(value):
    """Put a nasty text wherever a part has a text that comes from outside."""
    free = "title text document token target prompt written without label paragraph command machine setting".split()
    if isinstance(value, dict):
        return {name: NASTY if name in free and isinstance(one, str) else nasty(one) for name, one in value.items()}
    return [nasty(one) for one in value] if isinstance(value, list | tuple) else value


def test_texts_from_outside_are_shown_and_never_run(tmp_path):
    parts = Parts(about=measured.about(), choice=measured.choice(), continuation=measured.continuation())
    page = Page(write(tmp_path, from_json(Parts, nasty(to_json(parts)), "nasty"))[1])
    assert not page.of("script")
    said = "".join(page.text)
    assert said.count("<script>alert(1)</script>") > 20 and "${x} {{ 7 * 7 }} {% raw %} \\1" in said
    attributes = "".join(value or "" for _, attrs in page.tags for value in attrs.values())
    assert NASTY[:29] in attributes
    assert not set("\x00\x1b\ud800") & set(said + attributes)


@given(st.text(st.characters(codec=None), max_size=60))
def test_any_token_is_shown_as_text(token):
    one = replace(measured.continuation().tokens[0], token=token)
    found = Continuation(prompt=token, without=token, written=token, tokens=[one])
    template = page_module._environment().get_template("page.html")
    text = template.render(dict.fromkeys(PARTS), continuation=found, data={"continuation": {}}, pictures={})
    text.encode()
    inner = text[text.index("<section") : text.index("</main>")]
    tags = "section h2 h3 div p span a details summary table caption thead tbody tr th td small".split()
    assert {tag for tag, _ in Page(inner).tags} <= set(tags)


def test_spaces_and_line_breaks_of_tokens_are_kept(tmp_path):
    tokens = [measured.explanation(number, word) for number, word in enumerate([" two", "  words", "\n", "end"])]
    _, text = write(tmp_path, Parts(continuation=replace(measured.continuation(), tokens=tokens)))
    (_, _, written) = re.findall(r'class="written">(.*?)</p>', text, re.DOTALL)
    assert re.sub("<[^>]*>", "", written) == "two  words⏎\nend"


def luminance(colour):
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_is_readable_in_both_modes(whole):
    light, dark = (dict(re.findall(r"(--[\w-]+): (#\w{6});", part)) for part in whole.text.split("@media", 2)[:2])
    for mode in (light, dark):
        for text in ("--ink", "--muted", "--link"):
            assert all(contrast(mode[text], mode[behind]) >= 4.5 for behind in ("--page", "--card", "--best"))
        assert all(contrast(mode[f"--figure-{number}"], mode["--figure-paper"]) >= 2 for number in range(6))
    assert contrast(plotting.INK, plotting.WHITE) > 7 and contrast(plotting.MUTED, plotting.WHITE) > 4.5
