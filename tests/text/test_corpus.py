import io
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import make_text
from nearlm.base.errors import MissingExtraError, OptionError, TextError
from nearlm.text import corpus as module
from nearlm.text.corpus import PIECE, Corpus


def read(corpus: Corpus) -> dict[str, str]:
    """Return every document by its name."""
    found: dict[str, str] = {}
    for document in corpus.documents():
        name = document.source if document.row < 0 else f"{document.source}:{document.row}"
        assert name not in found
        found[name] = "".join(document.pieces)
    return found


def read_bytes(data: bytes) -> tuple[str, dict[str, int]]:
    corpus = Corpus(["-"], stdin=io.BytesIO(data))
    return read(corpus).get("stdin", ""), dict(corpus.problems)


def undecodable(problems: dict[str, int]) -> bool:
    return any("undecodable" in problem for problem in problems)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with all sorts of things in it."""
    root = tmp_path / "docs"
    for name in ("b.txt", "a.md", "sub/c.rst", "sub/deep/d.py", "Z.TXT"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"text of {name}")
    (root / "x.txt").mkdir()
    (root / "x.txt" / "inner.txt").write_text("inside a folder named x.txt")
    for name in (".hidden.txt", ".git/e.txt", "picture.png", "Makefile"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not to be read")
    return root


ALL = ["docs/Z.TXT", "docs/a.md", "docs/b.txt", "docs/sub/c.rst", "docs/sub/deep/d.py", "docs/x.txt/inner.txt"]


# Files, folders, globs


def test_a_file_is_one_document(tmp_path):
    (tmp_path / "a.weird").write_text("any suffix will do")
    assert read(Corpus([str(tmp_path / "a.weird")])) == {"a.weird": "any suffix will do"}


def test_a_folder_gives_its_text_files_sorted_by_name_without_hidden_ones(folder):
    documents = read(Corpus([str(folder)]))
    assert list(documents) == ALL
    assert documents["docs/sub/c.rst"] == "text of sub/c.rst"


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
    with pytest.raises(OptionError, match="--glob"):
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


def test_a_pipe_as_text_can_be_read_once(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe")
    os.close(writer)
    corpus = Corpus([f"/dev/fd/{reader}"])
    assert not corpus.repeatable
    assert list(read(corpus).values()) == ["from a pipe"]
    os.close(reader)


def test_names_that_are_no_utf8_can_be_read_and_written(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("coffee")
    documents = read(Corpus([str(tmp_path)]))
    assert list(documents) == [f"{tmp_path.name}/caf\\xe9.txt"]
    corpus = Corpus([str(tmp_path / os.fsdecode(b"caf\xe9.txt"))])
    assert corpus.labels == ["caf\\xe9.txt"]
    assert list(read(corpus)) == ["caf\\xe9.txt"]


def test_names_and_labels_hold_no_absolute_path(folder, monkeypatch):
    monkeypatch.chdir(folder / "sub")
    texts = [str(folder), str(folder / "b.txt"), str(folder / "*.md"), ".", "..", "../b.txt", f"{folder}/"]
    corpus = Corpus(texts)
    assert corpus.labels == ["docs", "b.txt", "*.md", "sub", "docs", "b.txt", "docs"]
    names = {document.source for document in corpus.documents() for _ in document.pieces}
    assert not any(name.startswith(("/", ".")) or str(folder.parent) in name for name in names)
    assert "sub/c.rst" in names


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
    with pytest.raises(TextError, match="--glob"):
        Corpus([str(tmp_path / "empty")])
    with pytest.raises(TextError, match=r"\*\.zip"):
        Corpus([str(folder)], glob="*.zip")
    with pytest.raises(TextError, match="no text"):
        Corpus([])


# Bytes


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


@given(
    st.lists(
        st.sampled_from([b"a", b"\r", b"\n", b"\r\n", "é".encode(), "\ufffd".encode(), "𝄞".encode()])
        | st.binary(max_size=3).filter(lambda b: b"\0" not in b),
        max_size=12,
    ),
    st.booleans(),
    st.integers(3, 7),
)
def test_any_bytes_are_decoded_the_same_wherever_blocks_end(parts, bom, block):
    data = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        text, problems = read_bytes((b"\xef\xbb\xbf" if bom else b"") + data)
    if not bom:
        data = data.removeprefix(b"\xef\xbb\xbf")
    assert text == data.decode("utf-8", "replace").replace("\r\n", "\n")
    try:
        data.decode()
    except UnicodeDecodeError:
        assert undecodable(problems)
    else:
        assert not undecodable(problems)


def test_crlf_and_characters_across_the_real_block_border_survive():
    for middle in ("\r\n", "é", "𝄞", "\ufffd"):
        for shift in range(len(middle.encode()) + 1):
            data = b"a" * (module._BLOCK - shift) + middle.encode() + b"b"
            text, problems = read_bytes(data)
            assert text[-3:].lstrip("a") == middle.replace("\r\n", "\n") + "b"
            assert problems == {}


def test_crlf_is_one_line_end_in_files_and_rows_alike(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "one\r\ntwo\rthree\n"}))
    assert set(read(Corpus([str(tmp_path)])).values()) == {"one\ntwo\rthree\n"}


@pytest.mark.parametrize("data", [b"a\0b", "text".encode("utf-16"), b"\0"])
def test_binary_files_are_counted(data):
    text, problems = read_bytes(data)
    assert text == ""
    assert list(problems) == ["binary file (it holds NUL bytes, expected UTF-8 text)"]


@pytest.mark.parametrize("data", [b"", b" \n\t ", b"\xef\xbb\xbf", b"\r\n"])
def test_empty_documents_are_counted(data):
    assert read_bytes(data)[1] == {"empty document": 1}


def test_a_file_that_fails_halfway_is_refused():
    class Failing(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > 0:
                raise OSError(5, "Input/output error")
            return super().read(size)

    with pytest.raises(TextError, match="only in part"):
        read(Corpus(["-"], stdin=Failing(b"x" * (2 * module._BLOCK))))


def unreadable(path: Path) -> Path:
    path.symlink_to(path.parent / "gone")
    return path


def test_unreadable_files_are_counted_with_an_example(folder):
    unreadable(folder / "broken.txt")
    corpus = Corpus([str(folder)])
    assert list(read(corpus)) == ALL
    assert dict(corpus.problems) == {"unreadable file (No such file or directory)": 1}
    assert list(corpus.examples.values()) == ["docs/broken.txt"]


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


# Rows


def write(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.JSONL"])
def test_every_line_of_jsonl_is_a_document_named_by_its_line(tmp_path, name):
    text = write(tmp_path / name, {"text": "one"}, "", {"text": "three", "id": 3}, "   ", '"a bare text"')
    corpus = Corpus([text])
    assert read(corpus) == {f"{name}:1": "one", f"{name}:3": "three", f"{name}:5": "a bare text"}
    assert not corpus.problems


def test_json_may_be_a_list_or_one_object(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}], indent=2))
    (tmp_path / "object.json").write_text("\ufeff" + json.dumps({"text": "alone"}, indent=2))
    assert read(Corpus([str(tmp_path / "*.json")])) == {
        f"{tmp_path.name}/list.json:1": "one",
        f"{tmp_path.name}/list.json:2": "two",
        f"{tmp_path.name}/object.json:1": "alone",
    }


def test_json_is_no_text_of_a_folder_unless_asked_for(tmp_path):
    write(tmp_path / "a.json", {"text": "one"})
    write(tmp_path / "b.txt", "plain")
    assert list(read(Corpus([str(tmp_path)]))) == [f"{tmp_path.name}/b.txt"]
    assert list(read(Corpus([str(tmp_path)], glob="*.json"))) == [f"{tmp_path.name}/a.json:1"]


@pytest.mark.parametrize("field", ["a.b", "body"])
def test_field_names_what_holds_the_text(tmp_path, field):
    rows = [{"a": {"b": "dotted"}, "body": "plain"}, {"a.b": "dotted", "body": "plain"}]
    documents = read(Corpus([write(tmp_path / "a.jsonl", *rows)], field=field))
    assert list(documents.values()) == [{"a.b": "dotted", "body": "plain"}[field]] * 2


def test_a_bom_and_odd_bytes_in_jsonl(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n{"text": "tw\xffo"}\n{"text": "\xef\xbf\xbd"}\n')
    corpus = Corpus([str(tmp_path / "a.jsonl")])
    assert list(read(corpus).values()) == ["one", "tw\ufffdo", "\ufffd"]
    assert undecodable(corpus.problems)
    assert list(corpus.examples.values()) == ["a.jsonl:2"]


def test_half_a_character_in_json_is_replaced_and_counted(tmp_path):
    corpus = Corpus([write(tmp_path / "a.jsonl", '{"text": "x\\ud83d\\ude00y\\ud800"}')])
    assert list(read(corpus).values()) == ["x😀y\ufffd"]
    assert undecodable(corpus.problems)


def test_unusable_rows_are_counted(tmp_path):
    rows = ({"text": "one"}, "{broken", {"text": None}, {"other": 1}, [1], "null", "[" * 100_000, {"text": "last"})
    corpus = Corpus([write(tmp_path / "a.jsonl", *rows)])
    assert list(read(corpus)) == ["a.jsonl:1", "a.jsonl:8"]
    assert dict(corpus.problems) == {"line that is not JSON": 2, "row without a text in field 'text'": 4}
    assert corpus.examples["line that is not JSON"] == "a.jsonl:2"


def test_a_first_row_may_lack_a_value_but_not_the_field(tmp_path):
    corpus = Corpus([write(tmp_path / "a.jsonl", {"text": None}, {"text": "two"})])
    assert list(read(corpus)) == ["a.jsonl:2"]
    assert sum(corpus.problems.values()) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "a.jsonl:1 is not JSON"),
        ('{"a": 1, "b": 2}', r"no field 'text' \(it has a, b\).*--field"),
        ('{"text": 5}', "has a int in field 'text'"),
        ("[1, 2]", "is a JSON list"),
        ("{}", "it has nothing"),
    ],
)
def test_a_first_row_of_another_kind_is_refused(tmp_path, line, message):
    with pytest.raises(TextError, match=message):
        read(Corpus([write(tmp_path / "a.jsonl", line)]))


def test_files_without_rows_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "c.json").write_text("[]")
    corpus = Corpus([str(tmp_path / "*.json*")])
    assert read(corpus) == {}
    assert dict(corpus.problems) == {"file without rows": 3}


def write_parquet(path: Path, columns: dict[str, list[object]]) -> str:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return str(path)


def test_parquet_rows_are_documents(tmp_path):
    text = write_parquet(
        tmp_path / "a.parquet", {"text": ["one", None, "three"], "meta": [{"b": "x"}, {"b": "y"}, {"b": "z"}]}
    )
    corpus = Corpus([text])
    assert read(corpus) == {"a.parquet:1": "one", "a.parquet:3": "three"}
    assert sum(corpus.problems.values()) == 1
    assert list(read(Corpus([text], field="meta.b")).values()) == ["x", "y", "z"]


def test_bad_parquet_is_refused(tmp_path):
    text = write_parquet(tmp_path / "a.parquet", {"body": ["one"], "n": [1]})
    with pytest.raises(TextError, match=r"no field 'text' \(it has body, n\)"):
        read(Corpus([text]))
    with pytest.raises(TextError, match="has a int"):
        read(Corpus([text], field="n"))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(TextError, match="no sound Parquet file"):
        read(Corpus([str(tmp_path / "b.parquet")]))


@pytest.mark.parametrize(
    ("missing", "text", "extra"),
    [("pyarrow.parquet", "a.parquet", "parquet"), ("datasets", "hf:some/thing", "datasets")],
)
def test_a_missing_extra_is_named_before_any_work(tmp_path, monkeypatch, missing, text, extra):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=rf"nearlm\[{extra}\]"):
        Corpus([text])


@pytest.fixture
def dataset(tmp_path, monkeypatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "train.jsonl", {"text": "one", "n": {"b": "x"}}, {"text": "two", "n": {"b": "y"}})
    write(folder / "test.jsonl", {"text": "held out", "n": {"b": "z"}})
    return folder


def test_a_dataset_of_a_local_folder_has_no_absolute_path_in_its_name(dataset):
    corpus = Corpus([f"hf:{dataset}"])
    assert corpus.labels == ["hf:data"]
    assert read(corpus) == {"hf:data:1": "one", "hf:data:2": "two"}
    held_out = Corpus([f"hf:{dataset}:test"], field="n.b")
    assert read(held_out) == {"hf:data:test:1": "z"}


def test_a_dataset_without_the_field_or_split_is_refused(dataset):
    with pytest.raises(TextError, match=r"no field 'body' \(it has text, n\)"):
        Corpus([f"hf:{dataset}"], field="body")
    with pytest.raises(TextError, match="cannot be loaded"):
        Corpus([f"hf:{dataset}:nosuch"])


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("wikitext", [("wikitext",)]),
        ("owner/name", [("owner/name",), ("owner", "name")]),
        ("owner/name/config", [("owner/name", "config"), ("owner/name/config",)]),
    ],
)
def test_dataset_names_are_read_as_owner_name_config(name, calls):
    assert module._dataset_arguments(name) == calls


# Strictness and checksums


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
        with pytest.raises(TextError, match=f"{problem}.*--strict"):
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


# Pieces of long documents


def pieces_of(corpus: Corpus) -> list[str]:
    return [piece for document in corpus.documents() for piece in document.pieces]


def test_long_documents_come_in_pieces_that_make_up_the_text(tmp_path):
    texts = {
        "lines": make_text(200_000),
        "one-line": make_text(120_000).replace("\n", " "),
        "no-space": "x" * (3 * PIECE + 17),
        "spaces": " " * PIECE + "x" + "\n" * PIECE,
        "cjk": "知己知彼百战不殆。" * 80_000,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
        write(tmp_path / f"{name}.jsonl", {"text": text})
        for suffix in ("txt", "jsonl"):
            pieces = pieces_of(Corpus([str(tmp_path / f"{name}.{suffix}")]))
            assert "".join(pieces) == text
            assert len(pieces) > 1
            assert all(0 < len(piece) <= PIECE for piece in pieces)
            if suffix == "txt":
                first = pieces
        assert pieces == first


@pytest.mark.parametrize("lines", [True, False])
def test_pieces_are_tokenised_like_the_whole(tokenizer, monkeypatch, lines):
    monkeypatch.setattr(module, "PIECE", 500)
    text = make_text(8000)
    if not lines:
        text = text.replace("\n", "  ")
    pieces = pieces_of(Corpus(["-"], stdin=io.BytesIO(text.encode())))
    assert len(pieces) > 50
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    assert [i for piece in pieces for i in encode(piece)] == encode(text)
