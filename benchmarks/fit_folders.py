"""`nearlm fit` on the documentation of three source distributions: where a memory helps, how much, how long it takes.

python benchmarks/fit_folders.py [flask pillow celery] [--out FOLDER] [--minutes 6] [--max-tokens N] [--json]

The distributions are pinned and hash-checked downloads by pip, as the named corpora are.
"""

import argparse
import json
import time
from pathlib import Path, PurePosixPath

import nearlm
from nearlm.base import to_json
from nearlm.text.downloads import Package, fetch, read_members

PACKAGES = {
    "flask": Package(
        "Flask", "3.1.2", "sdist", "flask", "bf656c15c80190ed628ad08cdfd3aaa35beb087855e2f494910aa3774cc4fd87"
    ),
    "pillow": Package(
        "pillow", "11.3.0", "sdist", "pillow", "3828ee7586cd0b2091b6209e5ad53e20d0649bbe87164a459d0676e035e8f523"
    ),
    "celery": Package(
        "celery", "5.5.3", "sdist", "celery", "6c972ae7968c2b5281227f01c3a3f984037d21c5129d07bf3550cc2afc6b10a5"
    ),
}
HEAD = """
| folder | documents | records | bits per byte: model | with memory | saved | perplexity: model | with memory | chosen |
|---|---|---|---|---|---|---|---|---|
""".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(PACKAGES)}; by default all")
    parser.add_argument("--out", type=Path, default=Path("fits"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    seconds = {}
    for name in options.names or PACKAGES:
        text = nearlm.TextSource((str(extract(name, options.out)),), max_tokens=options.max_tokens)
        started = time.monotonic()
        out = options.out / f"{name}-memory"
        found[name] = nearlm.fit(
            options.model, text, out, nearlm.FitOptions(options.minutes), reporter=nearlm.Reporter()
        )
        seconds[name] = time.monotonic() - started
    if options.json:
        print(json.dumps({name: {**to_json(fit), "seconds": seconds[name]} for name, fit in found.items()}))
        return
    print(HEAD)
    for name, fit in found.items():
        print(row(name, fit))
    for name, fit in found.items():
        print(f"\n{name} ({seconds[name]:.0f} s)\n{fit.table()}")


def extract(name: str, out: Path) -> Path:
    """Write the .rst files of a distribution's documentation into a folder, unless they are there."""
    folder = out / f"{name}-docs"
    if not folder.exists():
        for member, data in read_members(fetch(PACKAGES[name]), lambda member: member.endswith(".rst")):
            parts = PurePosixPath(member).parts[1:]
            if parts[0] == "docs":
                path = folder.joinpath(*parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    return folder


def row(name: str, fit: nearlm.Fit) -> str:
    """Return a line of the table."""
    unseen = fit.unseen
    if unseen is None:
        return f"| {name} | {fit.documents} | {fit.records:,} |" + " – |" * 6
    alone, alone_perplexity = unseen.alone.cells
    memory, memory_perplexity = unseen.memory.cells
    saved = f"{unseen.saved:.1%} ± {unseen.saved_error:.1%}"
    cells = (
        name,
        fit.documents,
        f"{fit.records:,}",
        alone,
        memory,
        saved,
        alone_perplexity,
        memory_perplexity,
        fit.chosen,
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
