"""What `fit` keeps with a store: the same when it is read again, refused when it is damaged."""

import json

import pytest

from nearlm.base import StoreError, files
from nearlm.optimizer.continuations import Continuation
from nearlm.optimizer.fit_record import Fit, read_fit, verify_fit, write_fit
from nearlm.optimizer.unseen import Quality, Unseen
from nearlm.store import FitFiles
from nearlm.text import TEST, TRAIN, Split

UNSEEN = Unseen(3, 400, 1600, Quality(1.5, 0.1, 20.0, 2.0), Quality(1.2, 0.1, 12.0, 1.0), 0.2, 0.03, 40.0, 2000.0)
SHOWN = Continuation('A "prompt" of `nine` words and $then some more', " alone", " memory", " truth")
FOUND = Fit("tiny", 900, 9, 12_345, 2, 300, 3, 0, "k 64", ("cut up",), UNSEEN, SHOWN)
SPLIT = Split({b"a" * 16: TRAIN, b"b" * 16: TEST}, {5: TRAIN, -7: TEST}, 400)


def test_what_is_kept_is_read_again_and_an_old_table_goes(tmp_path):
    place = FitFiles(tmp_path / "fit")
    assert read_fit(place) is None
    write_fit(place, "request", "text", Split(), FOUND)
    write_fit(place, "request", "text", SPLIT, FOUND)
    record, split = read_fit(place)
    assert (record.fit, record.request, record.text, split) == (FOUND, "request", "text", SPLIT) and len(
        place.all_documents()
    ) == 1


@pytest.mark.parametrize("damage", ["table", "record", "name", "format"])
def test_what_is_damaged_is_refused(tmp_path, damage):
    place = FitFiles(tmp_path / "fit")
    write_fit(place, "request", "text", SPLIT, FOUND)
    (table,) = place.all_documents()
    if damage == "table":
        table.write_bytes(table.read_bytes()[:-8] + b"12345678")
    else:
        text = place.description.read_text()
        changed = {"record": ("900", "901"), "name": (table.name, "../x.npy"), "format": ('"format": 1', '"format": 9')}
        assert changed[damage][0] in text or damage == "format"
        place.description.write_text(text.replace(*changed[damage]).replace('"format":1', '"format":9'))
        if damage == "format":
            assert json.loads(place.description.read_text())["format"] in (1, 9)
    with pytest.raises(StoreError):
        verify_fit(place)


def test_the_table_tells_all_and_commands_are_safe_to_paste():
    told = FOUND.table()
    for part in (
        "900 records of 9 documents",
        "1.200 ± 0.100",
        "12.00 ± 1.00",
        "20.0% of the bits",
        "the memory helps",
    ):
        assert part in told
    assert "40 µs per token, 2.0% of" in told and "the document itself: truth" in told and "Note: cut up" in told
    serve, generate = FOUND.commands("my store")
    assert serve == "nearlm serve 'my store'"
    assert generate == "nearlm generate 'my store' \"A prompt of nine words and then some\""


def test_a_prompt_with_escapes_does_not_command_a_terminal():
    shown = Continuation("one \x1b[2Jtwo \x9b3J three", "", "", "")
    said = Fit("tiny", 900, 9, 12_345, 2, 300, 3, 0, "k 64", (), None, shown).commands("ready")
    assert said[1] == 'nearlm generate ready "one [2Jtwo 3J three"'


@pytest.mark.parametrize("block", [0, -3])
def test_a_forged_record_cannot_cut_a_text_into_nothing_for_ever(tmp_path, block):
    place = FitFiles(tmp_path / "fit")
    write_fit(place, "request", "text", SPLIT, FOUND)
    files.write_stamped(place.description, {**files.read_stamped(place.description), "block": block})
    with pytest.raises(StoreError, match="block"):
        read_fit(place)
