"""Settings of a search: what is given goes first; what older versions wrote is read."""

from dataclasses import fields

import pytest

from nearlm.base import OptionError, StoreError, files
from nearlm.store import Layout, SearchSettings, Tuned, read_tuned, write_defaults, write_tuned
from nearlm.store.settings import read_defaults


def test_what_is_given_is_what_is_not_none():
    assert SearchSettings().values == {}
    assert SearchSettings(lam=0.0, k=3, skip="auto").values == {"lam": 0.0, "k": 3, "skip": "auto"}
    assert Tuned(k=3, perplexity=7.0, tokens=5, text="x").values == {"k": 3}


def test_others_are_taken_only_where_nothing_was_said():
    mine = SearchSettings(k=3, lam=0.0)
    theirs = SearchSettings(k=9, lam=0.5, knn_temperature=2.0, index="a")
    assert mine.over(theirs) == SearchSettings(k=3, lam=0.0, knn_temperature=2.0, index="a")
    assert mine.over(None) == mine == mine.over(SearchSettings())
    tuned = Tuned(k=4, perplexity=7.0).over(theirs)
    assert isinstance(tuned, Tuned) and (tuned.k, tuned.lam, tuned.perplexity) == (4, 0.5, 7.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lam": -0.1}, "`lam` is -0.1, expected 0 to 1"),
        ({"lam": float("nan")}, "`lam` is nan"),
        ({"knn_temperature": 0.0}, "`knn_temperature` is 0.0, expected more than 0"),
        ({"k": 0}, "`k` is 0, expected at least 1"),
        ({"nprobe": -1}, "`nprobe` is -1, expected at least 1"),
        ({"distances": "near"}, "`distances` is 'near', expected one of index, store, parent"),
        ({"skip": 1.5}, "`skip` is 1.5, expected 0 to 1 or auto"),
        ({"budget": -0.5}, "`budget` is -0.5, expected 0 or more perplexity"),
    ],
)
def test_nonsense_is_refused(wrong, message):
    with pytest.raises(OptionError, match=message):
        SearchSettings(**wrong)


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path)
    made.index("default").folder.mkdir(parents=True)
    return made


def test_what_was_tuned_reads_back_with_its_index(layout):
    assert read_tuned(layout, "default") is None
    tuned = Tuned("default", 0.3, 2.0, 64, 8, "index", perplexity=9.5, tokens=100, text="abc")
    write_tuned(layout, tuned)
    assert read_tuned(layout, "default") == tuned


def test_settings_as_older_versions_wrote_them_are_read(layout):
    old = {"k": 64, "lam": 0.3, "perplexity": 9.5}
    old |= {"nprobe": None, "distances": "index", "tokens": 100, "text": "abc"}
    files.write_stamped(layout.index("default").settings, {**old, "temperature": 2.0})
    found = read_tuned(layout, "default")
    assert {name: getattr(found, name) for name in old} == old
    assert found.index == "default" and found.knn_temperature == 2.0
    assert (found.gate, found.skip, found.budget) == (None, None, None)


def make_index_and_gate(layout):
    for description in (layout.index("a").description, layout.gate("b").description):
        description.parent.mkdir(parents=True)
        description.touch()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"index": "c"}, "names index 'c'"),
        ({"index": "../a"}, r"names index '\.\./a'"),
        ({"index": "a", "gate": "c"}, "names gate 'c'"),
        ({"index": "a", "gate": "b", "skip": 7}, r"skip is 7\.0, expected 0 to 1"),
        ({"index": "a", "gate": "b", "budget": -1}, r"budget is -1\.0, expected 0 or more"),
        ({"skip": 0.5}, "skip 0.5, but names no gate"),
        ({"gate": "none", "skip": 0.5}, "skip 0.5, but names no gate"),
        ({"lam": 7}, r"lam is 7\.0, expected 0 to 1"),
        ({"k": 0}, "k is 0, expected at least 1"),
        ({"temperature": -1}, r"knn_temperature is -1\.0"),
        ({"distances": "near"}, "distances is 'near'"),
        ({"skip": "never"}, "Invalid enum value 'never'"),
    ],
)
def test_defaults_that_make_no_sense_are_refused_by_file_and_value(layout, wrong, message):
    make_index_and_gate(layout)
    files.write_stamped(layout.defaults, wrong)
    with pytest.raises(StoreError, match=rf"defaults\.json .*{message}"):
        read_defaults(layout)


def test_defaults_are_the_default_index_until_they_are_written(layout):
    assert read_defaults(layout) == SearchSettings(index="default")
    make_index_and_gate(layout)
    for chosen in (SearchSettings(index="a", gate="b", skip=0.25), SearchSettings(index="a")):
        write_defaults(layout, chosen)
        assert read_defaults(layout) == chosen
    files.write_stamped(layout.defaults, {"index": "a", "adaptor": "b", "skip": 0.5})  # as older versions did
    assert read_defaults(layout) == SearchSettings(index="a", gate="b", skip=0.5)


@pytest.mark.parametrize("name", [field.name for field in fields(SearchSettings)])
def test_a_wrong_type_is_refused_by_name(layout, name):
    files.write_stamped(layout.defaults, {name: ["nonsense"]})
    with pytest.raises(StoreError, match=rf"defaults\.json is not as .*{name}"):
        read_defaults(layout)


@pytest.mark.parametrize("name", ["optimize.json", "fit/fit.json"])
def test_the_defaults_that_were_chosen_are_not_missed_silently(layout, name):
    chose = layout.folder / name
    chose.parent.mkdir(exist_ok=True)
    chose.write_text("{}")
    with pytest.raises(StoreError, match=rf"defaults\.json is missing.*{chose.name}"):
        read_defaults(layout)
    write_defaults(layout, SearchSettings(index="default"))
    assert read_defaults(layout) == SearchSettings(index="default")
