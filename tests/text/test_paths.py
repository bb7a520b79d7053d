import os
from pathlib import Path

import pytest
from documents import ALL, make_folder, read, write

from nearlm.base.errors import OptionError, TextError
from nearlm.text.corpus import Corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def test_a_file_is_one_document(tmp_path):
    (tmp_path / "a.weird").write_text("any suffix will do")
    assert read(Corpus([str(tmp_path / "a.weird")])) == {"a.weird": "any suffix will do"}


def test_a_folder_gives_its_text_files_sorted_by_name_without_hidden_ones(folder):
    documents = read(Corpus([str(folder)]))
    assert list(documents) == ALL
    assert documents["docs/sub/c.rst"] == "text of sub/c.rst"


def test_files_of_other_kinds_are_counted_by_suffix_but_hidden_ones(folder):
    (folder / "sub" / "a.PNG").touch()
    os.mkfifo(folder / "pipe.pdf")
    corpus = Corpus([str(folder)], strict=True)
    assert corpus.skipped == {".png": 2, "no suffix": 1}
    read(corpus)
    assert corpus.skipped == {".png": 2, "no suffix": 1} and not corpus.problems
    assert Corpus([str(folder), str(folder / "sub")]).skipped == {".png": 3, "no suffix": 1}


def test_files_that_nobody_asked_for_are_not_counted(folder):
    assert not Corpus([str(folder)], glob="*.md").skipped
    assert not Corpus([str(folder / "*.md")]).skipped
    assert not Corpus([str(folder / "picture.png")]).skipped


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.md", ["docs/a.md"]),
        ("**/*.py", ["docs/sub/deep/d.py"]),
        ("sub/**", ["docs/sub/c.rst", "docs/sub/deep/d.py"]),
        ("*.png", ["docs/picture.png"]),
        (".hidden*", ["docs/.hidden.txt"]),
        ("**/*.txt", ["docs/b.txt", "docs/x.txt/inner.txt"]),
        ("**/**/c.*", ["docs/sub/c.rst"]),
        ("**/deep/**/*.py", ["docs/sub/deep/d.py"]),
        ("**/.git/*", ["docs/.git/e.txt"]),
        ("[ab].*", ["docs/a.md", "docs/b.txt"]),
        ("*", ["docs/Makefile", "docs/Z.TXT", "docs/a.md", "docs/b.txt", "docs/picture.png"]),
    ],
)
def test_glob_option_chooses_files_of_a_folder(folder, pattern, names):
    assert list(read(Corpus([str(folder)], glob=pattern))) == names


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "sub/../*"])
def test_glob_option_stays_inside_the_folder(folder, pattern):
    with pytest.raises(OptionError, match="`glob`"):
        Corpus([str(folder)], glob=pattern)


def test_a_glob_as_text_names_files_from_its_folder_on(folder, monkeypatch):
    assert list(read(Corpus([str(folder / "**" / "*.txt")]))) == ["docs/b.txt", "docs/x.txt/inner.txt"]
    monkeypatch.chdir(folder)
    assert list(read(Corpus(["*.txt"]))) == ["b.txt"]
    assert list(read(Corpus(["sub/*"]))) == ["sub/c.rst"]
    assert list(read(Corpus(["../docs/*.md"]))) == ["docs/a.md"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(name)
    assert read(Corpus([str(tmp_path / "a[1].txt")])) == {"a[1].txt": "a[1].txt"}


def test_tilde_is_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert list(read(Corpus(["~/docs"]))) == ALL
    assert list(read(Corpus(["~/docs/*.md"]))) == ["docs/a.md"]


def test_a_linked_file_counts_once_and_links_may_go_in_circles(folder):
    (folder / "again.txt").symlink_to(folder / "b.txt")
    (folder / "circle").symlink_to(folder)
    (folder / "sub" / "up").symlink_to(folder)
    names = sorted([*(name for name in ALL if name != "docs/b.txt"), "docs/again.txt"])
    assert list(read(Corpus([str(folder)]))) == names
    everything = sorted([*names, "docs/picture.png"])
    assert list(read(Corpus([str(folder)], glob="**/*.*"))) == everything
    assert list(read(Corpus([str(folder / "**" / "*.*")]))) == everything


def test_a_linked_folder_is_read(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.txt").write_text("far away")
    (folder / "link").symlink_to(outside)
    assert read(Corpus([str(folder)]))["docs/link/far.txt"] == "far away"


def test_pipes_in_a_folder_are_left_alone(folder):
    os.mkfifo(folder / "pipe.txt")
    assert list(read(Corpus([str(folder)]))) == ALL


def test_names_that_are_no_utf8_can_be_read_and_written(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("coffee")
    documents = read(Corpus([str(tmp_path)]))
    assert list(documents) == [f"{tmp_path.name}/caf\\xe9.txt"]
    corpus = Corpus([str(tmp_path / os.fsdecode(b"caf\xe9.txt"))])
    assert corpus.labels == ["caf\\xe9.txt"]
    assert list(read(corpus)) == ["caf\\xe9.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch", "does not exist"),
        ("no*such", "no file matches"),
        ("", "is empty"),
        ("x" * 5000, "cannot be read"),
        ("~nosuchuser/x", "cannot be read"),
        ("nul\0byte", "does not exist"),
        ("spdx:tset", "spdx:test"),
        ("hf:", "names no dataset"),
    ],
)
def test_texts_that_are_not_there_are_refused_at_once(text, message):
    with pytest.raises(TextError, match=message) as caught:
        Corpus([text])
    assert len(str(caught.value)) < 600


def test_a_folder_without_text_and_no_text_at_all_are_refused(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    with pytest.raises(TextError, match="`glob`"):
        Corpus([str(tmp_path / "empty")])
    with pytest.raises(TextError, match=r"\*\.zip"):
        Corpus([str(folder)], glob="*.zip")
    with pytest.raises(TextError, match="no text"):
        Corpus([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_listed_are_counted(folder):
    (folder / "sub").chmod(0)
    try:
        corpus = Corpus([str(folder)])
        read(corpus)
        assert dict(corpus.problems) == {"unreadable file (Permission denied)": 1}
    finally:
        (folder / "sub").chmod(0o755)


def test_folders_that_cannot_be_listed_are_counted(folder, monkeypatch):
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    corpus = Corpus([str(folder)])
    assert list(read(corpus)) == [name for name in ALL if "/sub/" not in name]
    assert list(corpus.examples.values()) == ["docs/sub"]


def test_json_is_no_text_of_a_folder_unless_asked_for(tmp_path):
    write(tmp_path / "a.json", {"text": "one"})
    write(tmp_path / "b.txt", "plain")
    assert list(read(Corpus([str(tmp_path)]))) == [f"{tmp_path.name}/b.txt"]
    assert list(read(Corpus([str(tmp_path)], glob="*.json"))) == [f"{tmp_path.name}/a.json:1"]
