"""One page of everything that was measured: a single HTML file that needs nothing else to be read."""

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from urllib.parse import quote

from nearlm.base import Json, StoreError, duration, files, size
from nearlm.paper.report import markup
from nearlm.paper.report.plotting import inline, save
from nearlm.paper.report.sections import Picture, Section, sections, tiles
from nearlm.paper.results import PARTS, Results

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<a class="skip" href="#content">Skip to the results</a>
<header>
$header
</header>
<main id="content">
$main
</main>
<footer id="made">
$footer
</footer>
</body>
</html>
""")


def write_report(results: Results, path: Path | None = None) -> Path:
    """Draw every figure there are numbers for, and write the page, by default `report.html` beside the numbers."""
    parts = results.all()
    if not parts:
        raise StoreError(
            f"{results.folder} holds no results, expected files such as main.json; run an experiment first"
        )
    path = path or results.folder / "report.html"
    (path.parent / "figures").mkdir(parents=True, exist_ok=True)
    found, about = sections(parts), parts.get("about", {})
    page = _PAGE.substitute(
        title=markup.text(about.get("title", "What the memory gives")),
        style=resources.files("nearlm.paper.report").joinpath("style.css").read_text("utf-8"),
        header=_header(about, parts, found),
        main="\n".join(_section(one, results, path) for one in found),
        footer=_footer(about, results, path),
    )
    files.write_bytes(path, page.encode())
    return path


def _header(about: Json, parts: dict[str, Json], found: Sequence[Section]) -> str:
    lines = [f'<p class="setting">{markup.text(about["setting"])}</p>'] if about.get("setting") else []
    lines.append(f"<h1>{markup.text(about.get('title', 'What the memory gives'))}</h1>")
    lines.append(markup.paragraphs(about.get("text", "")))
    facts = [
        *([f"model {about['model']}"] if about.get("model") else []),
        *([f"{about['records']:,} records of {about['dim']} numbers"] if about.get("records") else []),
        *([f"{size(about['store_bytes'])} on disk"] if about.get("store_bytes") else []),
        *([f"{about['test_tokens']:,} test tokens"] if about.get("test_tokens") else []),
    ]
    if facts:
        lines.append(f'<ul class="facts">{"".join(f"<li>{markup.text(fact)}</li>" for fact in facts)}</ul>')
    if "main" in parts:
        lines.append(tiles(parts["main"]))
    links = "".join(f'<li><a href="#{one.part}">{markup.text(one.title)}</a></li>' for one in found)
    if len(found) > 1:
        lines.append(
            f'<nav aria-label="On this page"><ul>{links}<li><a href="#made">How it was made</a></li></ul></nav>'
        )
    return "\n".join(lines)


def _section(section: Section, results: Results, path: Path) -> str:
    pictures = "\n".join([*(_figure(picture, path) for picture in section.pictures), section.beside]).strip()
    data = _data_links(section.part, results, path)
    return "\n".join(
        [
            f'<section id="{section.part}" aria-labelledby="{section.part}-title">',
            f'<h2 id="{section.part}-title">{markup.text(section.title)}</h2>',
            section.lead,
            f'<div class="figures">\n{pictures}\n</div>' if pictures else "",
            section.rest,
            f'<p class="data">Numbers: {data}</p>',
            "</section>",
        ]
    )


def _figure(picture: Picture, path: Path) -> str:
    """Draw a figure into its files and return it for the page."""
    drawn = picture.draw()
    names = {kind: path.parent / "figures" / f"{picture.name}.{kind}" for kind in ("png", "svg")}
    for name in names.values():
        save(drawn, name)
    svg = inline(names["svg"].read_text("utf-8"), f"figure-{picture.name}", picture.alt)
    links = " · ".join(f'<a href="figures/{name.name}">{kind.upper()}</a>' for kind, name in names.items())
    caption = f'{markup.text(picture.caption)} <span class="links">{links}</span>'
    return f"<figure>\n{svg}\n<figcaption>{caption}</figcaption>\n</figure>"


def _footer(about: Json, results: Results, path: Path) -> str:
    lines = ["<h2>How it was made</h2>"]
    if about.get("command"):
        took = f" It took {duration(about['seconds'])}." if about.get("seconds") else ""
        lines += [f"<p>One command measures and draws everything on this page.{took}</p>"]
        lines += [f'<pre tabindex="0"><code>{markup.text(about["command"])}</code></pre>']
    facts = {name: about.get(name) for name in ("machine", "cores", "model")}
    facts |= {name.replace("_", " "): f"{about[name]:,}" for name in ("valid_tokens", "test_tokens") if about.get(name)}
    facts |= about.get("versions") or {}
    terms = "".join(
        f"<div><dt>{markup.text(name)}</dt><dd>{markup.text(value)}</dd></div>"
        for name, value in facts.items()
        if value is not None
    )
    if terms:
        lines.append(f'<dl class="made">{terms}</dl>')
    kept = [_data_links(part, results, path) for part in PARTS if results.load(part) is not None]
    lines.append(f'<p class="data">All numbers, for other programs: {" · ".join(kept)}</p>')
    return "\n".join(lines)


def _data_links(part: str, results: Results, path: Path) -> str:
    kept = [results.folder / f"{part}{suffix}" for suffix in (".json", ".csv")]
    return " · ".join(
        f'<a href="{markup.text(_relative(one, path.parent))}">{one.name}</a>' for one in kept if one.exists()
    )


def _relative(target: Path, folder: Path) -> str:
    return quote(Path(os.path.relpath(target, folder)).as_posix())
