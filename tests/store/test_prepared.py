"""What is prepared for a state of a store is used with that state only."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from nearlm.base import read_record, write_record
from nearlm.store.layout import Layout
from nearlm.store.prepared import current_description, is_settled, prepare, read_current, read_current_if_there, settle


@dataclass(frozen=True)
class Said:
    manifest: str
    value: int


@pytest.fixture
def place(tmp_path):
    made = Layout(tmp_path).suffixes
    made.folder.mkdir()
    return made


def store(place, checksum, held=""):
    return SimpleNamespace(layout=Layout(place.folder.parent), checksum=checksum, held=held or checksum)


def test_the_manifest_decides_which_description_holds(place):
    now = Said("now", 1)
    assert read_current_if_there(Said, place, store(place, "now")) is None
    write_record(place.description, now)
    prepare(place, replace(now, manifest="next", value=2))
    assert read_current(Said, place, store(place, "now")).value == 1
    assert read_current(Said, place, store(place, "next")).value == 2
    assert read_current(Said, place, store(place, "edited", "next")).value == 2
    assert current_description(place, store(place, "other")) == place.description


def test_settling_keeps_what_holds_and_nothing_else(place):
    write_record(place.description, Said("now", 1))
    prepare(place, Said("next", 2))
    assert is_settled(store(place, "now")) and not is_settled(store(place, "next"))
    settle(store(place, "next"))
    assert read_record(Said, place.description).value == 2 and not place.prepared.exists()
    prepare(place, Said("never", 3))
    settle(store(place, "next"))
    assert read_record(Said, place.description).value == 2 and not place.prepared.exists()


def test_a_damaged_preparation_is_as_none(place):
    write_record(place.description, Said("now", 1))
    place.prepared.write_text("{")
    assert read_current(Said, place, store(place, "now")).value == 1
