"""Which text to read: one name, several, or a source that says how."""

import pytest

from nearlm.base import OptionError
from nearlm.text import TextSource


def test_a_name_several_names_and_a_source_are_all_sources():
    assert TextSource.of("a.txt") == TextSource(("a.txt",))
    assert TextSource.of(["a.txt", "b"]) == TextSource(("a.txt", "b"))
    source = TextSource(("a",), field="body", max_tokens=9)
    assert TextSource.of(source) is source


def test_what_is_opened_is_read_as_the_source_says(tmp_path):
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "b.jsonl").write_text('{"body": "in a row", "text": "not this"}\n')
    source = TextSource((str(tmp_path),), field="body", glob="*.jsonl")
    assert ["".join(one.pieces) for one in source.open().documents()] == ["in a row"]
    both = TextSource.of([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]).open()
    assert ["".join(one.pieces) for one in both.documents()] == ["plain", "not this"]


@pytest.mark.parametrize("tokens", [1, 0, -5])
def test_fewer_than_two_tokens_are_refused(tokens):
    with pytest.raises(OptionError, match=f"`max_tokens` is {tokens}, expected at least 2"):
        TextSource(("a",), max_tokens=tokens)


def test_one_name_and_strings_that_are_none():
    assert TextSource("docs/").text == ("docs/",)
    with pytest.raises(OptionError, match=r"a document is a list, expected strings"):
        TextSource.from_strings(["a", "b"])
