import json
import sys
from pathlib import Path

import pytest
from documents import read, undecodable, write

from nearlm.base.errors import MissingExtraError, TextError
from nearlm.text import rows
from nearlm.text.corpus import Corpus


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
        ('{"a": 1, "b": 2}', r"no field 'text' \(it has a, b\).*`field`"),
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
    with pytest.raises(TextError, match="not a readable Parquet file"):
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
    assert rows._dataset_arguments(name) == calls
