"""Records as files: they read back, and what is missing, wrong, edited, cut or damaged is refused by name."""

import json
import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.base import FileInfo, StoreError, check_files, files, from_json, read_if_there, read_record, write_record


@dataclass(frozen=True)
class Part:
    name: str
    share: float


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    sizes: dict[str, int]
    note: str | None = None
    flags: list[bool] = field(default_factory=list)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
PARTS = st.builds(Part, TEXT, st.floats(allow_nan=False, allow_infinity=False))
WHOLES = st.builds(
    Whole,
    st.lists(PARTS, max_size=4),
    st.dictionaries(TEXT, st.integers(-(2**60), 2**60), max_size=4),
    st.none() | TEXT,
    st.lists(st.booleans(), max_size=3),
)
ONE = Whole([Part("a", 0.5)], {"b": 3}, "c")


@given(WHOLES)
def test_any_record_reads_back(tmp_path_factory, record):
    path = tmp_path_factory.getbasetemp() / "record.json"
    write_record(path, record)
    assert read_record(Whole, path) == record


def test_what_is_not_there_is_none(tmp_path):
    assert read_if_there(Whole, tmp_path / "none.json") is None
    write_record(tmp_path / "one.json", ONE)
    assert read_if_there(Whole, tmp_path / "one.json") == ONE


def test_fields_with_a_default_may_be_missing_and_unknown_ones_are_ignored(tmp_path):
    files.write_stamped(tmp_path / "old.json", {"parts": [], "sizes": {}, "from_the_future": 1})
    assert read_record(Whole, tmp_path / "old.json") == Whole([], {})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sizes": None}, "sizes"),
        ({"sizes": {"b": "3"}}, "sizes"),
        ({"sizes": {"b": 3.5}}, "sizes"),
        ({"parts": {}}, "parts"),
        ({"parts": [{"name": "a"}]}, "share"),
        ({"note": 7}, "note"),
        ({"flags": [1]}, "flags"),
    ],
)
def test_a_wrong_type_is_one_line_that_names_file_and_field(tmp_path, changed, named):
    path = tmp_path / "record.json"
    files.write_stamped(path, {"parts": [], "sizes": {}, **changed})
    with pytest.raises(StoreError, match=re.escape(f"{path} is not as this nearlm writes it")) as refused:
        read_record(Whole, path)
    assert named in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["parts", "sizes"])
def test_a_missing_field_is_named(name):
    values = {"parts": [], "sizes": {}}
    del values[name]
    with pytest.raises(StoreError, match=rf"there is not as .*{name}"):
        from_json(Whole, values, "there")


def test_an_edited_file_is_refused(tmp_path):
    path = tmp_path / "record.json"
    write_record(path, ONE)
    files.write_json(path, {**json.loads(path.read_text()), "note": "edited"})
    with pytest.raises(StoreError, match="does not match its own checksum"):
        read_record(Whole, path)


@pytest.fixture
def listed(tmp_path):
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"second")
    return {name: FileInfo.of(tmp_path / name) for name in ("a", "b")}


def test_files_as_they_were_are_counted_byte_by_byte(tmp_path, listed):
    counted = []
    check_files(tmp_path, listed, "", every_byte=True, advance=counted.append)
    assert counted == [5, 6]


@pytest.mark.parametrize("content", [None, b"", b"secon", b"seconds"])
def test_a_missing_cut_or_longer_file_is_named_with_its_remedy(tmp_path, listed, content):
    (tmp_path / "b").unlink()
    if content is not None:
        (tmp_path / "b").write_bytes(content)
    with pytest.raises(StoreError, match=r"b is missing or cut, expected 6 bytes; make it again"):
        check_files(tmp_path, listed, "make it again")


def test_damage_of_the_same_length_is_found_when_every_byte_is_read(tmp_path, listed):
    (tmp_path / "b").write_bytes(b"sekond")
    check_files(tmp_path, listed, "")
    with pytest.raises(StoreError, match=r"b is damaged .*make it again"):
        check_files(tmp_path, listed, "make it again", every_byte=True)
