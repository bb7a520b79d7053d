"""Making a suffix array, killing that, and bringing it up to date while others read."""

import functools
import itertools
import threading
from collections import Counter

import pytest
from scanning import DOCUMENTS, check

from calls import build, prune_store
from nearlm.base import QUIET, Reporter, files
from nearlm.base.errors import StoreError
from nearlm.mixing import infinigram, infinigram_building
from nearlm.mixing.infinigram import InfiniGram, verify_infinigram
from nearlm.mixing.infinigram_building import build_infinigram
from synthetic import fake_store
from tiny import make_text


def test_killed_anywhere_an_update_leaves_the_old_state_or_the_new(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    whole = fake_store(tmp_path / "whole", DOCUMENTS, 2)
    build_infinigram(whole)
    expected = contents(whole)
    seen = Counter()
    for stop in itertools.count(1):
        folder = tmp_path / str(stop)
        folder.mkdir()
        earlier = fake_store(folder, DOCUMENTS[:1])
        build_infinigram(earlier)
        store = fake_store(folder, DOCUMENTS, 2)
        killed = killed_at(stop, store, monkeypatch)
        here = InfiniGram.open(store)
        seen[len(here.tokens)] += 1
        if len(here.tokens) == len(earlier.tokens):
            check(here, DOCUMENTS[:1], [1, 2, 3, 1, 2])
            check(InfiniGram.open(earlier), DOCUMENTS[:1], [1, 2, 3, 1, 2])
        else:
            check(here, DOCUMENTS, [1, 2, 3, 1, 2])
            with pytest.raises(StoreError, match="appended to since it was opened"):
                InfiniGram.open(earlier)
        if not killed:
            break
        check(build_infinigram(store), DOCUMENTS, [1, 2, 3, 1, 2])
        assert contents(store) == expected
    assert seen[6] > 15 and seen[12] > 1 and len(seen) == 2


@pytest.mark.parametrize("changed", [[[1, 2, 3, 1, 2, 5], *DOCUMENTS[1:]], [[1, 2, 3]]])
def test_killed_anywhere_nothing_of_another_text_is_used(tmp_path, monkeypatch, changed):
    for stop in itertools.count(1):
        folder = tmp_path / str(stop)
        folder.mkdir()
        build_infinigram(fake_store(folder, changed, 2))
        store = fake_store(folder, DOCUMENTS, 2)
        if not killed_at(stop, store, monkeypatch):
            break
        if not (store.layout.suffixes.description.exists() and len(contents(store)) == 6):
            with pytest.raises(StoreError, match=r"has no suffix array|earlier state"):
                InfiniGram.open(store)
        check(build_infinigram(store), DOCUMENTS, [1, 2, 3, 1, 2])
    assert stop > 20


def test_a_reader_that_meets_the_switch_gets_the_new_state(tmp_path, monkeypatch):
    build_infinigram(fake_store(tmp_path, DOCUMENTS[:1]))
    store = fake_store(tmp_path, DOCUMENTS, 2)
    read = infinigram.read_suffix_info
    calls = []

    def read_and_switch(of):
        info = read(of)
        calls.append(info)
        if len(calls) == 1:  # after the reader has read which files there are, before it maps them
            with monkeypatch.context() as patch:
                patch.setattr(infinigram, "read_suffix_info", read)
                build_infinigram(store)
        return info

    monkeypatch.setattr(infinigram, "read_suffix_info", read_and_switch)
    check(InfiniGram.open(store), DOCUMENTS, [1, 2, 3, 1, 2])
    assert calls[0] != calls[-1]


def test_a_store_that_was_changed_meanwhile_is_not_sorted(tmp_path, lm):
    (tmp_path / "one.txt").write_text(make_text(60, seed=1))
    (tmp_path / "two.txt").write_text(make_text(30, seed=2))
    store = build(lm, str(tmp_path / "one.txt"), tmp_path / "store", window=64, quiet=True, keys="none")
    grown = build(lm, str(tmp_path / "two.txt"), tmp_path / "store", append=True, quiet=True)
    with pytest.raises(StoreError, match="changed since it was opened"):
        build_infinigram(store)
    assert len(build_infinigram(tmp_path / "store").tokens) == len(grown.tokens)
    with pytest.raises(StoreError, match="changed since it was opened"):
        build_infinigram(store)  # not made again of the text before
    assert len(InfiniGram.open(grown).tokens) == len(grown.tokens)


def test_arrays_of_older_versions_are_read_and_replaced_after_an_append(tmp_path, lm):
    (tmp_path / "one.txt").write_text(make_text(60, seed=1))
    (tmp_path / "two.txt").write_text(make_text(30, seed=2))
    store = build(lm, str(tmp_path / "one.txt"), tmp_path / "store", window=64, quiet=True, keys="none")
    build_infinigram(store)
    place = store.layout.suffixes
    noted = files.read_stamped(place.description)
    for path in (place.folder / noted.pop("data")).iterdir():
        path.rename(place.folder / path.name)
    del noted["state"]
    names = {name: name.rpartition("/")[2] for name in noted["files"]}
    files.write_stamped(place.description, {**noted, "files": {names[n]: f for n, f in noted["files"].items()}})
    next(place.folder.glob("data-*")).rmdir()
    before = contents(store)
    assert len(build_infinigram(store).tokens) == len(store.tokens) and contents(store) == before
    grown = build(lm, str(tmp_path / "two.txt"), tmp_path / "store", append=True, quiet=True)
    with pytest.raises(StoreError, match="earlier state"):
        InfiniGram.open(grown)
    assert len(build_infinigram(grown).tokens) == len(grown.tokens)
    assert not list(place.folder.glob("*.npy"))


def contents(store):
    """Return all files of a suffix array by their names, but what marks work on it."""
    folder = store.layout.suffixes.folder
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".lock", "plan.json")))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def killed_at(stop, store, monkeypatch):
    """Build until the `stop`-th change on disk, and tell whether there were that many; the last rename is not one."""
    operations = []

    def counted(real, *args):
        operations.append(1)
        if len(operations) == stop:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        for name in ("append", "sync", "replace", "remove"):
            patch.setattr(files, name, functools.partial(counted, getattr(files, name)))
        try:
            build_infinigram(store)
        except KeyboardInterrupt:
            return True
        return False


def test_a_second_builder_waits_and_uses_the_result(tmp_path, monkeypatch):
    store = fake_store(tmp_path, DOCUMENTS)
    place = store.layout.suffixes
    place.folder.mkdir()
    waiting = threading.Event()
    said, made = [], []

    class Listener(Reporter):
        def say(self, line):
            said.append(line)
            waiting.set()

    second = threading.Thread(target=lambda: made.append(build_infinigram(store, Listener())))
    with files.lock(place.folder):
        second.start()
        assert waiting.wait(30)
        infinigram_building._build(store, QUIET)
        monkeypatch.setattr(infinigram_building, "sort_contexts", lambda *_: pytest.fail("sorted again"))
    second.join(30)
    assert len(said) == 1 and "waiting for it" in said[0]
    check(made[0], DOCUMENTS, [1, 2, 3])


def test_it_is_made_once_used_after_an_append_and_brought_up_to_date(tmp_path, lm, monkeypatch):
    (tmp_path / "one.txt").write_text(make_text(200, seed=1))
    (tmp_path / "two.txt").write_text(make_text(100, seed=2))
    store = build(lm, str(tmp_path / "one.txt"), tmp_path / "store", window=64, quiet=True)
    with pytest.raises(StoreError, match="has no suffix array"):
        InfiniGram.open(store)
    verify_infinigram(store)
    build_infinigram(store)
    with monkeypatch.context() as patch:
        patch.setattr(infinigram_building, "sort_contexts", lambda *_: pytest.fail("sorted again"))
        build_infinigram(store)
    assert not any("tokens.npy" in name for name in contents(store))
    before = InfiniGram.open(store)
    grown = build(lm, str(tmp_path / "two.txt"), tmp_path / "store", append=True, quiet=True)
    old = InfiniGram.open(grown)
    assert len(old.tokens) == len(store.tokens) and (old.order == before.order).all()
    grams = build_infinigram(grown)
    verify_infinigram(grown)
    stream, bounds = grown.tokens[:], grown.document_bounds
    documents = [stream[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    assert len(documents) == 2 and len(grown.tokens.shards) == 2
    check(grams, documents, documents[1][-20:] + documents[0][:20])
    small = prune_store(grown, "random", tmp_path / "small", keep=0.5, quiet=True)
    check(build_infinigram(small), documents, documents[0][30:60])


def test_what_an_earlier_build_left_goes_before_the_work(tmp_path, monkeypatch):
    store = fake_store(tmp_path, DOCUMENTS)
    build_infinigram(store)
    sound = contents(store)
    folder = store.layout.suffixes.folder
    (folder / "data-000000000099").mkdir()
    for name in ("tokens.npy", "tokens.npy.part", "data-000000000099/order.npy.part"):  # of a version before, of a kill
        (folder / name).write_bytes(b"left")
    next(folder.glob("*/order.npy")).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(infinigram_building, "_build", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_infinigram(store)
    assert contents(store) == {}
    build_infinigram(store)
    (folder / "data-000000000007").mkdir()  # a kill before an earlier one was removed
    build_infinigram(store)
    assert contents(store) == sound and not (folder / "data-000000000007").exists()
    assert not list(folder.glob("*.job"))


def test_too_little_memory_is_said_before_the_work(tmp_path, monkeypatch):
    store = fake_store(tmp_path, DOCUMENTS)
    monkeypatch.setattr(infinigram_building, "available_ram", lambda: 100)
    with pytest.raises(StoreError, match=r"the 12 tokens of .* takes 216 B of RAM, and 100 B are free"):
        build_infinigram(store)
    monkeypatch.setattr(infinigram_building, "available_ram", lambda: None)
    monkeypatch.setattr(infinigram_building, "_LARGE", 100)
    said = []
    reporter = Reporter()
    monkeypatch.setattr(reporter, "say", said.append)
    build_infinigram(store, reporter)
    assert said == ["sorting 12 tokens takes 216 B of RAM", "sorted 12 tokens in 0 s"]
