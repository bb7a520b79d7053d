"""What the page says of each part: a few plain sentences, tables, and which figures to draw."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from nearlm.base import Json, size
from nearlm.paper.report import figures, markup
from nearlm.paper.report.continuation import continuation
from nearlm.paper.report.markup import Column, TableRow
from nearlm.paper.results import ALL, FINETUNED, LEARNED, NLM, RANDOM, VANILLA

_NOTES = {
    NLM: "the language model alone",
    VANILLA: "with a memory, as the paper has it",
    "+ index": "nearlm’s own index",
    "+ AR": "adaptive retrieval: asks only where it helps",
    "+ GM": "greedy merging: fewer records",
    "+ DR": "dimension reduction: narrower keys",
    ALL: "all of them together",
    "kNN-LM, T=1": "the paper’s own temperature",
    "kNN-LM, exact": "distances from the stored keys, not the index",
    "nearlm's index": "another index, the same memory",
    FINETUNED: "trained on the text, no memory",
}
_BASELINE_NOTES = {**_NOTES, VANILLA: "temperature tuned on validation text"}
_COLUMNS = {
    "Perplexity": "how unsure the model is of the next token, as if it had to choose among so many equally likely ones",
    "Tokens/s": "how much text it reads in a second, with everything that runs at test time",
    "Speed-up": "its speed against the vanilla kNN-LM’s",
    "Of the LM": "its speed against the language model’s own",
    "Extra time": "microseconds that a token takes beyond the language model itself",
    "Skipped": "the share of tokens for which the memory is not asked",
}


class Picture(NamedTuple):
    """A figure to draw, with its caption and what to tell those who cannot see it."""

    name: str
    draw: Callable[[], Any]
    caption: str
    alt: str


class Section(NamedTuple):
    """A part of the page; `lead`, `beside` and `rest` are HTML: before, among and after the pictures."""

    part: str
    title: str
    lead: str
    pictures: Sequence[Picture] = ()
    beside: str = ""
    rest: str = ""


def sections(parts: dict[str, Json]) -> list[Section]:
    """Return a section for every part that was measured, in the order of reading."""
    paper = _paper_rows(parts.get("about", {}))
    made = {
        "main": lambda found: _main(found, paper),
        "continuation": lambda found: Section(
            "continuation",
            "What it writes",
            "<p>The same prompt, continued by the language model alone and with its memory. The stronger a token’s "
            "background, the more of its probability came from the memory. Choose a token to see the contexts that "
            "the memory found for it.</p>",
            rest=continuation(found),
        ),
        "baseline": _baseline,
        "choice": _choice,
        "adaptive": _adaptive,
        "pruning": _pruning,
        "pca": _pca,
        "k": _k,
    }
    return [make(parts[part]) for part, make in made.items() if part in parts]


def tiles(main: Json) -> str:
    """Return the numbers that matter most, in large letters."""
    rows = {row["name"]: row for row in main["rows"]}
    alone, vanilla, best = rows[NLM], rows[VANILLA], rows.get(ALL, main["rows"][-1])
    lower = 1 - best["perplexity"] / alone["perplexity"]
    change = f"{markup.share(abs(lower))} {'lower' if lower >= 0 else 'higher'} than without"
    speeds = [markup.speed(row["tokens_per_second"]) for row in (alone, vanilla, best)]
    shown = [
        (markup.perplexity(alone["perplexity"]), "perplexity without a memory", "lower is better"),
        (markup.perplexity(best["perplexity"]), "perplexity with the memory", change),
        (markup.times(best["speedup"]), "the speed of the vanilla kNN-LM", f"{speeds[2]} tokens/s, not {speeds[1]}"),
        (markup.share(best["share_of_nlm"]), "of the model’s own speed", f"{speeds[2]} of {speeds[0]} tokens/s"),
    ]
    items = "\n".join(
        f"<li><strong>{markup.text(value)}</strong><span>{markup.text(what)}</span><small>{markup.text(more)}</small></li>"
        for value, what, more in shown
    )
    return f'<ul class="tiles" aria-label="The main numbers">\n{items}\n</ul>'


def _main(found: Json, paper: dict[str, Json]) -> Section:
    columns = [
        Column("Perplexity", "lower is better"),
        Column("Tokens/s", "more is better"),
        Column("Speed-up", "over kNN-LM"),
        Column("Of the LM", "its speed"),
        Column("Extra time", "µs a token"),
        Column("Skipped", "retrievals"),
    ]
    if paper:
        columns += [Column("Paper", "perplexity"), Column("Paper", "tokens/s")]
    rows = [
        TableRow(row["name"], _NOTES.get(row["name"], ""), _main_cells(row, paper), row["name"] == ALL)
        for row in found["rows"]
    ]
    terms = "".join(
        f"<div><dt>{markup.text(name)}</dt><dd>{markup.text(what)}</dd></div>" for name, what in _COLUMNS.items()
    )
    beside = (
        "<p>The paper’s numbers stand beside ours for orientation: another model, another text, other machines. "
        "Compare how the rows change, not the numbers themselves.</p>"
        if paper
        else ""
    )
    lead = (
        f"<p>Every row is the same language model on the same {found['tokens']:,} test tokens. The first has no "
        "memory; the second has one as the paper describes it. Each row below adds one remedy that makes the memory "
        "cheaper, and the last has all of them. A good row has a low perplexity and nearly the first row’s speed.</p>\n"
        + markup.table("Perplexity and speed on the test text", "Model", columns, rows)
        + _how_timed(found)
        + f'\n<dl class="terms">{terms}</dl>\n'
        + beside
    )
    return Section(
        "main", "What the memory gives, and what it takes", lead, _main_pictures(found), rest=_settings(found)
    )


def _how_timed(found: Json) -> str:
    """Say what the stars of a table mean, if there are any."""
    if not any(row["end_to_end"] for row in found["rows"]):
        return ""
    alone = found.get("rounds", {}).get(NLM, [])
    rounds = (
        f", in {len(alone)} short rounds and compared within each (the language model alone: "
        f"{markup.speed(min(alone))} to {markup.speed(max(alone))} tokens/s)"
        if len(alone) > 1
        else ""
    )
    return (
        f'<p class="note">* timed from end to end{rounds}; the other speeds are put together from the times of '
        "their parts.</p>"
    )


def _main_cells(row: Json, paper: dict[str, Json]) -> list[str]:
    cells = [
        markup.perplexity(row["perplexity"]),
        markup.speed(row["tokens_per_second"]) + ("*" if row["end_to_end"] else ""),
        markup.times(row["speedup"]),
        markup.share(row["share_of_nlm"]),
    ]
    if row["records"] is None:
        cells += [markup.NOTHING] * 2
    else:
        cells += [markup.count(row["microseconds"]), markup.share(row["skipped"])]
    if paper:
        theirs = paper.get(row["name"], {})
        cells += [markup.perplexity(theirs.get("perplexity")), markup.speed(theirs.get("tokens_per_second"))]
    return cells


def _main_pictures(found: Json) -> list[Picture]:
    said = "; ".join(
        f"{row['name']} {markup.perplexity(row['perplexity'])} at {markup.speed(row['tokens_per_second'])}"
        for row in found["rows"]
    )
    pictures = [
        Picture(
            "intro",
            lambda: figures.intro(found),
            "Down is better, right is faster. The circles are the two baselines: the language model alone, and the "
            "kNN-LM as the paper has it. The aim is the lower right corner.",
            f"Scatter plot of perplexity against tokens per second: {said}.",
        )
    ]
    if len(found["rows"]) > 2:
        pictures.append(
            Picture(
                "closer",
                lambda: figures.closer(found),
                "The rows with a memory, seen closer. Below the dashed line a row predicts better than the vanilla "
                "kNN-LM; at the dotted line the memory would cost no time at all.",
                "The same scatter plot without the language model alone, so that the rows with a memory stand apart.",
            )
        )
    return pictures


def _settings(found: Json) -> str:
    names = {"k": "k", "nprobe": "nprobe", "lam": "λ", "temperature": "T"}
    columns = [Column("Records"), Column("Width"), Column("Store"), Column("Index"), Column("Kind of index")]
    rows = [
        TableRow(
            row["name"],
            "",
            [
                *(markup.count(row[name]) for name in ("records", "dim")),
                *(_bytes(row[name]) for name in ("store_bytes", "index_bytes")),
                row["index"] or markup.NOTHING,
                *(markup.plain(row[name]) for name in names),
            ],
            row["name"] == ALL,
        )
        for row in found["rows"]
    ]
    columns += [Column(name) for name in names.values()]
    return markup.details("What every row stores, and its settings", markup.table("Settings", "Model", columns, rows))


def _baseline(found: Json) -> Section:
    columns = [
        Column("Perplexity", "lower is better"),
        Column("Tokens/s", "with the LM"),
        Column("Searches/s", "by themselves"),
        Column("T", "temperature"),
        Column("λ", "share of the memory"),
    ]
    rows = [
        TableRow(
            row["name"],
            _BASELINE_NOTES.get(row["name"].split(" on ")[0], ""),
            [
                markup.perplexity(row["perplexity"]),
                markup.speed(row["tokens_per_second"]),
                markup.speed(row["searches_per_second"]),
                markup.plain(row["temperature"]),
                markup.plain(row["lam"]),
            ],
        )
        for row in found["rows"]
    ]
    lead = (
        f"<p>Before anything is made cheaper, on {found['tokens']:,} test tokens: what the memory alone does for the "
        "model, and what depends on how it is searched. The temperature says how quickly a neighbour’s vote fades "
        "with its distance, λ how much of the prediction is the memory’s. Both are tuned on the validation text "
        "unless the row says otherwise.</p>\n" + markup.table("Baselines", "Model", columns, rows)
    )
    return Section("baseline", "Where it starts", lead)


def _choice(found: Json) -> Section:
    chosen = [point for point in found["points"] if point["chosen"]]
    front = sorted((point for point in found["points"] if point["pareto"]), key=lambda point: point["microseconds"])
    rows = [
        TableRow(
            point["label"],
            "chosen" if point["chosen"] else "",
            [f"{point['beyond']:+.3f}", markup.plain(point["microseconds"])],
            point["chosen"],
        )
        for point in front
    ]
    columns = [Column("Perplexity", "beyond vanilla"), Column("Time", "µs a token")]
    said = f" The chosen one is {chosen[0]['label']}." if chosen else ""
    picture = Picture(
        "choice",
        lambda: figures.choice(found),
        "Every dot is a combination that was tried: down is better, left is faster. The line joins those that no other "
        "beats in both; the star is the one that was taken.",
        f"Scatter plot of perplexity beyond the vanilla kNN-LM against retrieval time: {len(found['points'])} "
        f"combinations.{said}",
    )
    lead = (
        "<p>Skipping retrievals, dropping records and narrowing keys can be combined in many ways. Each was measured "
        "on the validation text by itself, then the combinations that promised most; one that is fast at a cost of at "
        f"most {found['budget']:g} perplexity was wanted.</p>\n" + markup.paragraphs(found["paragraph"])
    )
    table = markup.table("Combinations that nothing beats", "Nothing beats these", columns, rows)
    return Section("choice", "How the combination was chosen", lead, [picture], beside=table)


def _adaptive(found: Json) -> Section:
    equal = found["equal_share"]
    verdict = (
        f"Here the model stays as good as if it always asked until {markup.share(equal)} of the retrievals are skipped."
        if equal >= 0.005
        else "Here even the first retrievals that are skipped cost a little."
    )
    lead = (
        "<p>Often the model knows the next token well enough by itself. A small network, the adaptor, looks at every "
        f"context and decides whether to ask the memory, and how much to trust it. {verdict}</p>"
    )
    oracle = found["oracle"]
    pictures = [
        Picture(
            "adaptive",
            lambda: figures.adaptive(found),
            "Perplexity when a share of the retrievals is skipped. The flatter a curve, the better it knows which ones "
            "do not matter. The star skips exactly those where the memory is worse than the model, "
            "which nobody can know in advance.",
            f"Line chart: {_from_to(found, RANDOM, 'skipping at random')}; "
            f"{_from_to(found, LEARNED, 'skipping as the adaptor says')}. The oracle skips "
            f"{markup.share(oracle['skipped'])} at perplexity {markup.perplexity(oracle['constant'])}.",
        ),
        Picture(
            "adaptive-speed",
            lambda: figures.adaptive_speed(found),
            "What skipping buys: the same perplexities against speed. The labels are the shares skipped.",
            "Line chart of the adaptor’s perplexity against tokens per second as more retrievals are skipped.",
        ),
        Picture(
            "masks",
            lambda: figures.masks(found),
            "The adaptor decides two things: which retrievals to skip (the mask) and how much to trust the others (λ). "
            "Here each is taken away in turn.",
            f"Line chart of four variants: {', '.join(found['curves'])}.",
        ),
    ]
    if found["features"]:
        pictures.append(
            Picture(
                "features",
                lambda: figures.features(found),
                "What the adaptor has to see, with half the retrievals skipped: f(c) is the context’s vector, conf "
                "and ent how sure the model is, freq and fert how often the last words were seen and how many words "
                "followed them.",
                "Dot plot of the perplexity at 50 % skipped for each set of features.",
            )
        )
    return Section("adaptive", "Asking only where it helps", lead, pictures, rest=_adaptive_table(found))


def _from_to(found: Json, curve: str, name: str) -> str:
    values = found["curves"][curve]
    half = values[len(values) // 2]
    return (
        f"{name}, from {markup.perplexity(values[0])} over {markup.perplexity(half)} to {markup.perplexity(values[-1])}"
    )


def _adaptive_table(found: Json) -> str:
    curves = {**found["curves"], **found["objectives"]}
    step = 2 if len(found["shares"]) > 11 else 1
    rows = [
        TableRow(markup.share(value), "", [markup.perplexity(values[number]) for values in curves.values()])
        for number, value in list(enumerate(found["shares"]))[::step]
    ]
    table = markup.table("Perplexity at each share skipped", "Skipped", [Column(name) for name in curves], rows)
    return markup.details("The curves as numbers", table)


def _pruning(found: Json) -> Section:
    pictures = [
        Picture(
            "pruning",
            lambda: figures.pruning(found),
            "Perplexity when only a share of the records is kept. Merging and k-means let one record stand for its "
            "like; random and rank simply drop records.",
            f"Line chart of perplexity against records kept, by {_listed(found)}.",
        ),
        Picture(
            "pruning-speed",
            lambda: figures.pruning_speed(found),
            "The same stores against the speed of searching them. Down and right is better.",
            f"Line chart of perplexity against searches per second, by {_listed(found)}.",
        ),
    ]
    lead = (
        "<p>A memory holds many records that say nearly the same. Four ways to a smaller one are compared here, each "
        "measured on the validation text with its own λ and temperature. The lower a line stays to the left, the less "
        "is lost.</p>"
    )
    tables = [
        markup.table(figures.METHODS.get(name, name), "Kept", _POINT_COLUMNS, _points(one)) + _left_out(one)
        for name, one in found.items()
    ]
    return Section("pruning", "A smaller memory", lead, pictures, rest=markup.details("All points", "\n".join(tables)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(figures.METHODS.get(name, name) for name in names)


def _pca(found: Json) -> Section:
    lead = (
        "<p>A key is the model’s own summary of a context. Projecting keys on fewer dimensions makes the store "
        "smaller; whether searches become faster depends on the index. The index is of the same kind at every "
        "point.</p>"
    )
    return _sweep(found, "pca", "Narrower keys", lead, "the width of the keys", "Width")


def _k(found: Json) -> Section:
    lead = (
        "<p>How many neighbours the memory may return for a token. The paper uses 1024, and finds that perplexity "
        "keeps improving with more of them.</p>"
    )
    return _sweep(found, "k", "How many neighbours", lead, "the number of neighbours", "k")


def _sweep(found: Json, part: str, title: str, lead: str, what: str, first: str) -> Section:
    pictures = [
        Picture(
            part,
            lambda: figures.sweep(found),
            f"Perplexity against {what}.",
            f"Line chart of perplexity against {what}; the numbers are in the table below.",
        ),
        Picture(
            f"{part}-speed",
            lambda: figures.sweep_speed(found),
            f"Speed of the searches alone, without the language model, against {what}.",
            f"Line chart of searches per second against {what}; the numbers are in the table below.",
        ),
    ]
    table = markup.table(title, first, _POINT_COLUMNS, _points(found)) + _left_out(found)
    return Section(part, title, lead, pictures, rest=markup.details("All points", table))


_POINT_COLUMNS = [
    Column("Perplexity", "on validation"),
    Column("Searches/s"),
    Column("Records"),
    Column("Width"),
    Column("Store"),
    Column("Index"),
    Column("T"),
    Column("λ"),
]


def _points(found: Json) -> list[TableRow]:
    return [
        TableRow(
            "as it is" if point["value"] is None else _value(found["over"], point["value"]),
            "",
            [
                markup.perplexity(point["perplexity"]),
                markup.speed(point["retrievals_per_second"]),
                markup.count(point["records"]),
                markup.count(point["dim"]),
                _bytes(point["store_bytes"]),
                _bytes(point["index_bytes"]),
                markup.plain(point["temperature"]),
                markup.plain(point["lam"]),
            ],
        )
        for point in found["points"]
    ]


def _value(over: str, value: float) -> str:
    return markup.share(value) if over == "keep" else f"{value:g}"


def _left_out(found: Json) -> str:
    if not found["left_out"]:
        return ""
    items = "".join(f"<li>{markup.text(value)}: {markup.text(why)}</li>" for value, why in found["left_out"].items())
    return f"<p>Could not be measured:</p><ul>{items}</ul>"


def _paper_rows(about: Json) -> dict[str, Json]:
    return {row["name"]: row for row in about.get("paper", [])}


def _bytes(value: float | None) -> str:
    return markup.NOTHING if value is None else size(value)
