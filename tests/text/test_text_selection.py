"""Some documents of a text as a text of its own."""

import pytest

from nearlm.text.selection import Selection
from nearlm.text.source import TextSource
from nearlm.text.split import passages
from nearlm.text.tokens import read_checksums
from tiny import make_text


def texts(selection) -> dict[str, str]:
    return {one.source: "".join(one.pieces) for one in selection.open().documents()}


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(make_text(40, seed=number))
    (tmp_path / "image.png").write_bytes(b"\0")
    return tmp_path


def test_only_the_chosen_documents_are_read_with_their_names_and_checksums(folder):
    base = TextSource((str(folder),), glob="*.txt")
    keys = {one.name: one.key for one in passages(base.open())}
    names = [f"{folder.name}/1.txt", f"{folder.name}/3.txt"]
    chosen = Selection.of_text(base, frozenset(keys[name] for name in names))
    assert texts(chosen) == {name: make_text(40, seed=int(name[-5])) for name in names}
    assert (chosen.glob, chosen.max_tokens) == ("*.txt", None)
    before = read_checksums(chosen.open(), 0)
    (folder / "0.txt").write_text("changed")  # which was not chosen
    assert read_checksums(chosen.open(), 0) == before
    (folder / "3.txt").write_text("changed")
    assert read_checksums(chosen.open(), 0) != before and list(texts(chosen)) == names[:1]


def test_held_out_blocks_keep_away_from_their_neighbours(tmp_path):
    (tmp_path / "long.txt").write_text(make_text(1000))
    base = TextSource((str(tmp_path / "long.txt"),))
    blocks = list(passages(base.open(), 800))
    chosen = frozenset([blocks[2].key])
    (whole,) = texts(Selection.of_text(base, chosen, 800)).values()
    (inside,) = texts(Selection.of_text(base, chosen, 800, gaps=True)).values()
    assert whole == blocks[2].text and inside in whole and whole.index(inside) > 50 and len(inside) > len(whole) / 2
    assert texts(Selection.of_text(base, chosen, gaps=True)) == {}
