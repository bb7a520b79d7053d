"""The names of a store's files, which never change: other programs and older stores rely on them."""

from pathlib import Path

import pytest

from nearlm.base import Job, OptionError, StoreError
from nearlm.store import Layout, is_key_file, is_record_file


def test_every_file_has_the_name_that_stores_have_always_had():
    layout = Layout(Path("s"))
    assert [layout.manifest, layout.defaults, layout.probe, layout.tokenizer] == [
        Path("s/manifest.json"),
        Path("s/defaults.json"),
        Path("s/probe.npy"),
        Path("s/tokenizer"),
    ]
    assert (layout.transform, layout.assign) == (Path("s/transform.faiss"), Path("s/assign.npy"))
    assert layout.segment(3).tokens == Path("s/tokens-00003.npy")
    index = layout.index("mine")
    assert (index.description, index.settings) == (Path("s/index/mine/index.json"), Path("s/index/mine/settings.json"))
    assert (index.neighbors, index.ranks) == (Path("s/index/mine/neighbors.npy"), Path("s/index/mine/ranks.npy"))
    assert index.data("data-1").codes == Path("s/index/mine/data-1/codes.npy")
    gate = layout.gate("mine")
    assert gate.weights == Path("s/gate/mine/gate.safetensors")
    assert gate.description == Path("s/gate/mine/gate.json")
    assert layout.ngrams.table("counts", "int64", 3).path == Path("s/ngrams/counts.npy")
    suffixes = layout.suffixes
    assert suffixes.description == Path("s/suffixes/suffixes.json")
    arrays = suffixes.arrays("data-9", tokens=9, rows=7, vocabulary=5, dtype="int64")
    assert [suffixes.name_of(file) for file in arrays.values()][:2] == ["data-9/order.npy", "data-9/following.npy"]
    assert suffixes.arrays("", 9, 7, 5, "int64")["order"].path == Path("s/suffixes/order.npy")
    for odd in ("data-", "data-1/..", "..", "data-9-new"):
        with pytest.raises(StoreError, match="names a folder"):
            suffixes.arrays(odd, 9, 7, 5, "int64")
    assert {file.path.as_posix(): (file.dtype.name, file.shape) for file in arrays.values()} == {
        "s/suffixes/data-9/order.npy": ("int64", (7,)),
        "s/suffixes/data-9/following.npy": ("int32", (7,)),
        "s/suffixes/data-9/starts.npy": ("int64", (6,)),
        "s/suffixes/data-9/depths.npy": ("uint8", (7,)),
        "s/suffixes/data-9/tokens.npy": ("int32", (9,)),
    }


def test_a_shard_has_weights_only_if_records_have():
    plain, weighted = (Layout(Path("s")).shard(7, 10, 4, "float16", weighted) for weighted in (False, True))
    assert {name: (file.path.name, file.dtype.name, file.shape) for name, file in weighted.items()} == {
        "keys": ("keys-00007.npy", "float16", (10, 4)),
        "values": ("values-00007.npy", "int32", (10,)),
        "origin": ("origin-00007.npy", "int64", (10,)),
        "weights": ("weights-00007.npy", "int32", (10,)),
    }
    assert plain == {name: file for name, file in weighted.items() if name != "weights"}
    assert all(is_record_file(file.path.name) for file in weighted.values())
    assert [is_key_file(name) for name in ("keys-00007.npy", "values-00007.npy")] == [True, False]
    assert not is_record_file("tokens-00000.npy")


@pytest.mark.parametrize("name", ["", "a/b", "../x", "/x", ".", "..", ".hidden"])
def test_names_that_are_no_plain_names_are_refused(name):
    with pytest.raises(OptionError, match=r"`index` is .*expected a plain name"):
        Layout(Path("s")).index(name)
    with pytest.raises(OptionError, match=r"`gate` is .*expected a plain name"):
        Layout(Path("s")).gate(name)


def test_only_what_is_finished_is_listed(tmp_path):
    layout = Layout(tmp_path)
    assert layout.names("index") == layout.names("gate") == [] and not layout.is_store
    for place in (layout.index("b"), layout.index("a"), layout.gate("c")):
        place.folder.mkdir(parents=True)
    assert layout.names("index") == layout.names("gate") == []
    for place in (layout.index("b"), layout.index("a"), layout.gate("c")):
        place.description.touch()
    assert (layout.names("index"), layout.names("gate")) == (["a", "b"], ["c"])


def test_what_a_build_may_have_written_is_nothing_of_the_users(tmp_path):
    ours = ["docs-00000.json", "docs-00000.npy", "keys-00000.npy", "manifest.json.part", "tokens-00000.npy"]
    for name in (*ours, "mine.npy", "keys.txt", "defaults.json"):
        (tmp_path / name).touch()
    assert sorted(path.name for path in Layout(tmp_path).of_a_build()) == sorted(ours)


@pytest.mark.parametrize(
    ("kept", "gone"),
    [
        ("index/a/settings.json", "index/a/index.json"),
        ("index/a/data-000000000007/ids.npy", "index/a/index.json"),
        ("gate/b/gate.safetensors", "gate/b/gate.json"),
        ("mixture/c/mixture.safetensors", "mixture/c/mixture.json"),
        ("suffixes/data-000000000007/depths.npy", "suffixes/suffixes.json"),
        ("suffixes/depths.npy", "suffixes/suffixes.json"),
        ("ngrams/counts-1.npy", "ngrams/ngrams.json"),
        ("ngrams/data-0a/counts-1.npy", "ngrams/ngrams.json"),
    ],
)
def test_what_describes_a_part_is_missed(tmp_path, kept, gone):
    path, description = tmp_path / kept, tmp_path / gone
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match=f"{description} is missing"):
        Layout(tmp_path).check_described()
    Job(description.parent, "made").begin({})
    Layout(tmp_path).check_described()  # one that is made anew has none yet
    Job(description.parent, "made").close()
    description.write_bytes(b"")
    Layout(tmp_path).check_described()
