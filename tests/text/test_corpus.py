import io
import os
import sys
from pathlib import Path

import pytest
from documents import ALL, make_folder, read, unreadable, write

from nearlm.base.errors import TextError
from nearlm.text.corpus import Corpus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


def test_texts_keep_their_order(folder):
    corpus = Corpus([str(folder / "b.txt"), str(folder / "a.md")])
    assert [(d.text, d.source, "".join(d.pieces)[:4]) for d in corpus.documents()] == [
        (0, "b.txt", "text"),
        (1, "a.md", "text"),
    ]


def test_a_corpus_can_be_read_twice(folder):
    corpus = Corpus([str(folder)])
    assert read(corpus) == read(corpus)
    assert corpus.repeatable


def test_a_pipe_as_text_can_be_read_once(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe")
    os.close(writer)
    corpus = Corpus([f"/dev/fd/{reader}"])
    assert not corpus.repeatable
    assert list(read(corpus).values()) == ["from a pipe"]
    os.close(reader)


def test_names_and_labels_hold_no_absolute_path(folder, monkeypatch):
    monkeypatch.chdir(folder / "sub")
    texts = [str(folder), str(folder / "b.txt"), str(folder / "*.md"), ".", "..", "../b.txt", f"{folder}/"]
    corpus = Corpus(texts)
    assert corpus.labels == ["docs", "b.txt", "*.md", "sub", "docs", "b.txt", "docs"]
    names = {document.source for document in corpus.documents() for _ in document.pieces}
    assert not any(name.startswith(("/", ".")) or str(folder.parent) in name for name in names)
    assert "sub/c.rst" in names


def test_stdin_is_one_document():
    corpus = Corpus(["-"], stdin=io.BytesIO(b"some words"))
    assert not corpus.repeatable
    assert corpus.labels == ["stdin"]
    assert read(corpus) == {"stdin": "some words"}


def test_stdin_given_twice_or_closed_is_refused(monkeypatch):
    with pytest.raises(TextError, match="more than once"):
        Corpus(["-", "-"])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TextError, match="closed"):
        read(Corpus(["-"]))


def test_unreadable_files_are_counted_with_an_example(folder):
    unreadable(folder / "broken.txt")
    corpus = Corpus([str(folder)])
    assert list(read(corpus)) == ALL
    assert dict(corpus.problems) == {"unreadable file (No such file or directory)": 1}
    assert list(corpus.examples.values()) == ["docs/broken.txt"]


def strict_cases(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "undecodable.txt").write_bytes(b"caf\xe9")
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "folder").mkdir()
    unreadable(tmp_path / "folder" / "gone.txt")
    return {
        "undecodable bytes": str(tmp_path / "undecodable.txt"),
        "NUL": str(tmp_path / "binary.txt"),
        "empty document": str(tmp_path / "empty.txt"),
        "unreadable": str(tmp_path / "folder"),
        "not JSON": write(tmp_path / "bad.jsonl", {"text": "one"}, "{"),
        "without a text": write(tmp_path / "missing.jsonl", {"text": "one"}, {"other": "two"}),
        "without rows": write(tmp_path / "norows.jsonl"),
    }


def test_strict_refuses_what_is_counted_otherwise(tmp_path):
    for problem, text in strict_cases(tmp_path).items():
        lenient = Corpus([text])
        read(lenient)
        assert sum(lenient.problems.values()) == 1, problem
        with pytest.raises(TextError, match=f"{problem}.*`strict`"):
            read(Corpus([text], strict=True))


def checksums(*texts: object) -> list[str]:
    corpus = Corpus([str(text) for text in texts])
    read(corpus)
    return corpus.checksums()


def test_checksums_stand_for_names_and_texts(folder, tmp_path):
    before = checksums(folder, folder / "b.txt")
    assert checksums(folder, folder / "b.txt") == before
    os.utime(folder / "b.txt", (1, 1))
    (folder / "picture.png").write_text("other")
    moved = folder.rename(tmp_path / "elsewhere").rename(tmp_path / "docs")
    assert checksums(moved, moved / "b.txt") == before

    changes = {
        "a changed text": lambda: (folder / "sub" / "c.rst").write_text("text of sub/c.rsT"),
        "a new name": lambda: (folder / "a.md").rename(folder / "aa.md"),
        "a new document": lambda: (folder / "zz.txt").write_text("more"),
        "a document less": lambda: (folder / "Z.TXT").unlink(),
    }
    for what, change in changes.items():
        last = checksums(folder, folder / "b.txt")
        change()
        now = checksums(folder, folder / "b.txt")
        assert now[0] != last[0], what
        assert now[1] == last[1], what
