"""Pushing a store to a folder and pulling it: the same bytes, or the same answers without keys; nothing half done."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearlm.base import NearLMError, OptionError, StoreError, files
from nearlm.search import Retriever, build_index, write_settings
from nearlm.search.index import read_index_info
from nearlm.shrink import ReduceOptions, reduce_store
from nearlm.store import Datastore, SearchSettings, Tuned, write_defaults
from nearlm.store.sharing import hub_id, local_folder, pull, push, receive, take_inventory
from synthetic import skewed_store


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    build_index(skewed_store(tmp_path / "store"), "IVF8,SQ8")
    return tmp_path / "store"


def contents(folder: Path) -> dict[str, bytes]:
    own = (".lock", "shared.json", "README.md")
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in own)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_pushed_and_pulled_store_has_the_same_bytes(indexed, tmp_path):
    place = push(indexed, tmp_path / "shared", license="mit")
    assert place == str(tmp_path / "shared")
    store = pull((tmp_path / "shared").as_uri(), tmp_path / "copy")
    assert contents(indexed) == contents(tmp_path / "shared") == contents(tmp_path / "copy")
    assert store.checksum == Datastore.open(indexed).checksum
    store.verify()
    card = (tmp_path / "shared" / "README.md").read_text()
    assert "mit" in card and "nearlm pull ./shared" in card and str(tmp_path) not in card


def test_a_store_that_was_never_pushed_can_be_copied_too(indexed, tmp_path):
    (indexed / "index" / "default" / "neighbors.npy.part").write_bytes(b"left over")
    pull(str(indexed), tmp_path / "copy")
    assert contents(indexed).keys() - contents(tmp_path / "copy").keys() == {"index/default/neighbors.npy.part"}


@pytest.mark.parametrize("slim", [False, True])
def test_8_bit_keys_are_passed_on_with_their_scales(tmp_path, slim):
    store = skewed_store(tmp_path / "store", coded=True)
    build_index(store, "IVF8,SQ8")
    push(tmp_path / "store", tmp_path / "shared", slim=slim)
    copy = pull(str(tmp_path / "shared"), tmp_path / "copy")
    copy.verify()
    assert (tmp_path / "copy" / "scales.npy").read_bytes() == (tmp_path / "store" / "scales.npy").read_bytes()
    queries = store.keys[:9]
    np.testing.assert_array_equal(Retriever(copy).search(queries, 5).ids, Retriever(store).search(queries, 5).ids)
    if not slim:
        np.testing.assert_array_equal(copy.keys[:], store.keys[:])


def test_a_slim_store_finds_the_same_and_says_what_it_cannot(indexed, tmp_path):
    whole = Datastore.open(indexed)
    push(indexed, tmp_path / "slim", slim=True)
    slim = Datastore.open(tmp_path / "slim")
    queries = whole.keys[:20].astype(np.float32)
    for ours, theirs in zip(Retriever(slim).search(queries, 9), Retriever(whole).search(queries, 9), strict=True):
        assert ours is theirs is None or np.array_equal(ours, theirs)
    assert slim.slim and slim.bytes == whole.bytes - sum(path.stat().st_size for path in indexed.glob("keys-*"))
    assert slim.document_of(3)[0] == "made up"
    slim.verify()
    for refused in (
        lambda: slim.keys,
        lambda: build_index(slim, "flat", name="other"),
        lambda: reduce_store(slim, ReduceOptions(4), tmp_path / "narrow"),
        lambda: Retriever(slim, distances="store"),
    ):
        with pytest.raises(StoreError, match="without its keys"):
            refused()
    assert not (tmp_path / "slim" / "index" / "other").exists()
    push(slim, tmp_path / "again")
    assert Datastore.open(tmp_path / "again").slim


def test_keys_that_are_just_missing_are_damage(indexed, tmp_path):
    push(indexed, tmp_path / "shared")
    (tmp_path / "shared" / "keys-00000.npy").unlink()
    with pytest.raises(StoreError, match="keys-00000"):
        Datastore.open(tmp_path / "shared")


def test_without_an_index_a_slim_store_would_be_useless(tmp_path):
    skewed_store(tmp_path / "store")
    with pytest.raises(StoreError, match="nearlm index"):
        push(tmp_path / "store", tmp_path / "slim", slim=True)
    assert not (tmp_path / "slim").exists()


@pytest.mark.parametrize("stopped_at", range(0, 12, 2))
def test_stopped_anywhere_it_is_no_store_and_resumes(indexed, tmp_path, stopped_at):
    store = Datastore.open(indexed)
    inventory = take_inventory(store)
    left = stopped_at

    def fetch(name: str) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return indexed / name

    with pytest.raises(KeyboardInterrupt):
        receive(inventory, tmp_path / "copy", fetch)
    with pytest.raises(StoreError):
        Datastore.open(tmp_path / "copy")
    fetched = []
    receive(inventory, tmp_path / "copy", lambda name: fetched.append(name) or indexed / name)
    assert contents(tmp_path / "copy") == contents(indexed)
    assert len(fetched) == len(inventory.files) - stopped_at


def test_other_folders_and_stores_are_left_alone(indexed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    with pytest.raises(StoreError, match="diary"):
        push(indexed, tmp_path / "mine")
    push(indexed, tmp_path / "shared")
    push(indexed, tmp_path / "shared")  # the same again is done already
    other = skewed_store(tmp_path / "other")
    build_index(other, "flat")
    with pytest.raises(StoreError, match="another store"):
        push(other, tmp_path / "shared")
    with pytest.raises(OptionError, match="private"):
        push(indexed, tmp_path / "new", private=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        push(indexed, tmp_path / "file")


def test_a_push_that_was_killed_as_it_began_resumes(indexed, tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / ".lock").touch()
    (tmp_path / "shared" / "shared.json.part").write_text("{")
    push(indexed, tmp_path / "shared")
    assert not list((tmp_path / "shared").glob("*.part"))
    pull(tmp_path / "shared", tmp_path / "copy").verify()


def test_damage_on_the_way_is_found(indexed, tmp_path):
    push(indexed, tmp_path / "shared")
    path = tmp_path / "shared" / "values-00001.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StoreError, match="not as it was pushed"):
        pull(tmp_path / "shared", tmp_path / "copy")
    assert not (tmp_path / "copy" / "manifest.json").exists()
    assert not list((tmp_path / "copy").glob("*.part"))


@pytest.mark.parametrize("name", ["index/default/data-*/codes.npy", "values-00001.npy", "index/default/settings.json"])
@pytest.mark.parametrize("share", [push, pull])
def test_damage_is_not_passed_on(indexed, tmp_path, name, share):
    store = Datastore.open(indexed)
    write_settings(store, Tuned(index="default", k=8, lam=0.3, index_hash=read_index_info(store, "default").hash))
    path = next(indexed.glob(name))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=f"{path.name} is .*damaged"):
        share(indexed, tmp_path / "shared")
    assert not (tmp_path / "shared" / "manifest.json").exists()


@pytest.mark.parametrize("gone", ["index/default/index.json", "defaults.json"])
@pytest.mark.parametrize("share", [push, pull])
def test_what_lacks_its_description_is_not_passed_on(indexed, tmp_path, gone, share):
    layout = Datastore.open(indexed).layout
    write_defaults(layout, SearchSettings(index="default"))
    files.write_stamped(layout.optimized, {"plan": {}})
    (indexed / gone).unlink()
    with pytest.raises(StoreError, match=f"{Path(gone).name} is missing"):
        share(indexed, tmp_path / "shared")
    assert not (tmp_path / "shared" / "manifest.json").exists()


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "tokenizer/../../x", "index/a/b/c.py", "code.py", ".x"])
def test_a_hostile_inventory_writes_nothing(indexed, tmp_path, name):
    push(indexed, tmp_path / "shared")
    noted = files.read_stamped(tmp_path / "shared" / "shared.json")
    noted["files"][name] = next(iter(noted["files"].values()))
    files.write_stamped(tmp_path / "shared" / "shared.json", noted)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="no store has"):
        pull(tmp_path / "shared", tmp_path / "copy")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("there", ["../../../diary.txt", "data-x/../../../../diary.txt", "{folder}/diary.txt"])
@pytest.mark.parametrize("share", [push, pull])
def test_a_hostile_index_publishes_no_file_from_elsewhere(indexed, tmp_path, there, share):
    (tmp_path / "diary.txt").write_text("dear diary")
    path = indexed / "index" / "default" / "index.json"
    noted = files.read_stamped(path)
    name = there.format(folder=tmp_path)
    noted["files"][name] = {"bytes": 10, "sha256": files.checksum(tmp_path / "diary.txt")}
    files.write_stamped(path, noted)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="no store has"):
        share(indexed, tmp_path / "shared" / "deep" / "er")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("listed", [None, [], {"x": 1}, {"x": {"bytes": "many"}}])
def test_a_description_that_lists_no_files_is_refused(indexed, tmp_path, listed):
    path = indexed / "index" / "default" / "index.json"
    files.write_stamped(path, {**files.read_stamped(path), "files": listed})
    with pytest.raises(StoreError, match="not as this nearlm writes it"):
        push(indexed, tmp_path / "shared")


def test_a_pipe_or_link_in_what_is_pulled_is_refused(indexed, tmp_path):
    push(indexed, tmp_path / "shared")
    path = tmp_path / "shared" / "values-00000.npy"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StoreError, match="pipe"):
        pull(tmp_path / "shared", tmp_path / "copy")
    path.unlink()
    path.symlink_to(indexed / path.name)
    with pytest.raises(StoreError, match="leads out"):
        pull(tmp_path / "shared", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_link_in_what_is_pulled_into_is_not_followed(indexed, tmp_path):
    push(indexed, tmp_path / "shared")
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "shared" / "shared.json", tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "copy" / "index").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="leads out"):
        pull(tmp_path / "shared", tmp_path / "copy")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("place", "repository"),
    [
        ("user/name", "user/name"),
        ("hf:user/name", "user/name"),
        ("hf:user/name@v1", "user/name@v1"),
        ("./user/name", None),
        ("../name", None),
        ("/mnt/shared/name", None),
        ("name", None),
        ("a/b/c", None),
        ("~/name", None),
        ("file:///mnt/name", None),
        ("cache:name", None),
    ],
)
def test_what_is_on_the_hub_and_what_is_a_folder(place, repository):
    assert hub_id(place) == repository


@given(st.text(max_size=20))
def test_no_name_of_a_place_is_unexpected(place):
    try:
        if hub_id(place) is None:
            local_folder(place)
    except NearLMError as error:
        assert place == "" or repr(place) in str(error) or "UTF-8" in str(error) or place in str(error)


def test_addresses_of_other_machines_are_refused(tmp_path):
    assert local_folder((tmp_path / "a b").as_uri()) == tmp_path / "a b"
    for place in ("file://server/share", "file:relative"):
        with pytest.raises(OptionError, match="expected file:///"):
            local_folder(place)
    with pytest.raises(OptionError, match="hf:user/name"):
        hub_id("hf:justaname")
