"""A text as tokens and windows: the same each time, cut where it is asked for, and gone when it was read once."""

import tempfile

import numpy as np
import pytest

from nearlm.base import OptionError, TextError
from nearlm.text import Framing, Reading, TextSource, read_once, read_text

FRAMING = Framing((0,), (1,))


def framed(tokenizer, folder):
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    return [[0, *tokenizer(text, add_special_tokens=False)["input_ids"], 1] for text in texts]


def test_targets_and_documents_are_those_of_the_text(text_folder, tokenizer, tmp_path):
    text = read_text(str(text_folder), tokenizer, Reading(FRAMING, 16, 16), tmp_path)
    documents = framed(tokenizer, text_folder)
    assert text.tokens.tolist() == [token for one in documents for token in one]
    assert text.targets.tolist() == [token for one in documents for token in one[1:]]
    assert text.documents.tolist() == [number for number, one in enumerate(documents) for _ in one[1:]]
    assert text.bounds.tolist() == np.cumsum([0, *map(len, documents)]).tolist()


def test_the_hash_is_that_of_the_tokens_not_of_the_windows(text_folder, tokenizer, tmp_path):
    def read(name, source, window=16):
        (tmp_path / name).mkdir()
        return read_text(source, tokenizer, Reading(FRAMING, window, window), tmp_path / name)

    one = read("one", str(text_folder))
    assert read("wide", str(text_folder), 32).sha256 == one.sha256
    cut = read("cut", TextSource((str(text_folder),), max_tokens=40))
    assert cut.sha256 != one.sha256 and len(cut.tokens) == 40
    (text_folder / "doc1.txt").write_text("something else")
    assert read("other", str(text_folder)).sha256 != one.sha256


def test_a_folder_is_filled_anew(text_folder, tokenizer, tmp_path):
    folder = tmp_path / "reading"
    folder.mkdir()
    reading = Reading(FRAMING, 16, 16)
    first = read_text(str(text_folder / "doc0.txt"), tokenizer, reading, folder).sha256
    assert read_text(str(text_folder / "doc3.txt"), tokenizer, reading, folder).sha256 != first
    assert read_text(str(text_folder / "doc0.txt"), tokenizer, reading, folder).sha256 == first
    assert not list(folder.glob("*.job"))


def test_what_was_read_once_leaves_nothing_behind(text_folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    reading = Reading(FRAMING, 16, 16)
    with read_once(str(text_folder), tokenizer, reading) as text:
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        whole = text.targets
    assert len(whole) and not list((tmp_path / "temporary").iterdir())
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(TextError), read_once(str(tmp_path / "empty.txt"), tokenizer, reading):
        pass
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(("window", "stride"), [(0, 1), (8, 0), (8, 9)])
def test_windows_that_make_no_sense_are_refused(window, stride):
    with pytest.raises(OptionError):
        Reading(FRAMING, window, stride)
