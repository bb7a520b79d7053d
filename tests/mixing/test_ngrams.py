"""N-gram tables against counting with dictionaries."""

import functools
import itertools
import json
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls import build
from nearlm.base import Job, Reporter, files
from nearlm.base.errors import StoreError
from nearlm.mixing import ngrams
from nearlm.mixing.contexts import Contexts
from nearlm.mixing.ngrams import NGrams, build_ngrams, verify_ngrams
from synthetic import fake_store, forge, put, skewed_store
from tiny import make_text


def oracle(documents):
    """Count every n-gram and what follows it."""
    frequency, followers = Counter(), defaultdict(set)
    for document in documents:
        for n in range(1, 5):
            for i in range(len(document) - n + 1):
                gram = tuple(document[i : i + n])
                frequency[gram] += 1
                if i + n < len(document):
                    followers[gram].add(document[i + n])
    return frequency, followers


def expected(documents, contexts):
    frequency, followers = oracle(documents)
    grams = [[tuple(context[4 - n :]) for n in range(1, 5)] for context in contexts.tolist()]
    return [[frequency[g] for g in row] for row in grams], [[len(followers.get(g, ())) for g in row] for row in grams]


def all_contexts(documents):
    """The contexts of every position of the corpus, and some that are not in it."""
    stream = np.array([token for document in documents for token in document], np.int32)
    bounds = np.cumsum([0, *map(len, documents)])
    seen = Contexts.of_text(stream, bounds, np.arange(len(stream))).last(4)
    others = np.random.default_rng(0).choice([-1, 0, 1, 2, 3, 7, 50, 999_999], (60, 4)).astype(np.int32)
    return np.concatenate([seen, others])


def check(tables, documents):
    contexts = all_contexts(documents)
    counts = tables.look_up(contexts)
    frequency, fertility = expected(documents, contexts)
    np.testing.assert_array_equal(counts.frequency, frequency)
    np.testing.assert_array_equal(counts.fertility, fertility)


token = st.one_of(st.integers(0, 3), st.integers(0, 60), st.just(131_000))


@given(documents=st.lists(st.lists(token, max_size=30), min_size=1, max_size=6), limit=st.integers(1, 40))
def test_tables_equal_counting(tmp_path_factory, documents, limit):
    if not any(documents):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "GROUP_POSITIONS", limit)  # groups of one first token are cut by the second
        patch.setattr(ngrams, "_BLOCK", 7)
        check(build_ngrams(fake_store(tmp_path_factory.mktemp("ngrams"), documents, 2)), documents)


def random_documents(seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.zipf(1.4, rng.integers(1, 400)) % 50).tolist() for _ in range(20)]


@pytest.mark.parametrize("stop", range(1, 60, 3))
def test_a_build_goes_on_after_a_kill_to_the_same_bytes(tmp_path, monkeypatch, stop):
    documents, operations = random_documents(), []
    monkeypatch.setattr(ngrams, "GROUP_POSITIONS", 700)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, store = fake_store(tmp_path / "a", documents), fake_store(tmp_path / "b", documents)
    build_ngrams(whole)
    with monkeypatch.context() as patch:
        for name in ("write_bytes", "append", "replace", "write_at", "remove"):

            def killed(real, *args):
                operations.append(1)
                if len(operations) == stop:
                    raise KeyboardInterrupt
                return real(*args)

            patch.setattr(files, name, functools.partial(killed, getattr(files, name)))
        with pytest.raises(KeyboardInterrupt):
            build_ngrams(store)
    check(build_ngrams(store), documents)
    for path in whole.layout.ngrams.folder.glob("*.*"):
        if path.is_file():
            assert path.read_bytes() == (store.layout.ngrams.folder / path.name).read_bytes(), path.name
    assert not list(store.layout.ngrams.folder.glob("*.job"))


def test_tables_are_made_once_used_after_an_append_and_verified(tmp_path, lm, monkeypatch):
    (tmp_path / "one.txt").write_text(make_text(200, seed=1))
    (tmp_path / "two.txt").write_text(make_text(100, seed=2))
    store = build(lm, str(tmp_path / "one.txt"), tmp_path / "store", window=64, quiet=True)
    with pytest.raises(StoreError, match="nearlm gate"):
        NGrams.open(store)
    build_ngrams(store)
    left = Job(store.layout.ngrams.folder, "ngrams")
    left.begin({})  # as by a kill at the very end
    with monkeypatch.context() as patch:
        patch.setattr(ngrams, "count_group", lambda *_: pytest.fail("counted again"))
        build_ngrams(store)
    assert not left.folder.exists()
    grown = build(lm, str(tmp_path / "two.txt"), tmp_path / "store", append=True, quiet=True)
    assert (NGrams.open(grown).tables["counts-1"] == NGrams.open(store).tables["counts-1"]).all()
    noted = files.read_stamped(grown.layout.ngrams.description)
    files.write_stamped(grown.layout.ngrams.description, {**noted, "state": None})  # as older versions wrote it
    with pytest.raises(StoreError, match="earlier state"):
        NGrams.open(grown)
    files.write_stamped(grown.layout.ngrams.description, noted)
    tables, stream, bounds = build_ngrams(grown), grown.tokens[:], grown.document_bounds
    assert len(bounds) == 3 and bounds[-1] == len(stream)
    check(tables, [stream[a:b].tolist() for a, b in itertools.pairwise(bounds)])
    verify_ngrams(grown)
    description = grown.layout.ngrams.description
    known = description.read_bytes()
    for change in ({"lengths": {"../../keys-00000": 1}}, {"files": {"../manifest.json": {"bytes": 1, "sha256": ""}}}):
        files.write_stamped(description, {**files.read_json(description), **change})
        for use in (NGrams.open, verify_ngrams):
            with pytest.raises(StoreError, match=r"ngrams\.json names a file .*, which it cannot have"):
                use(grown)
        description.write_bytes(known)
    path = grown.layout.ngrams.folder / "counts-3.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    for refuses in (verify_ngrams, NGrams.open):
        with pytest.raises(StoreError, match=r"counts-3.npy is damaged"):
            refuses(grown)
    path.write_bytes(damaged[:-4])
    with pytest.raises(StoreError, match="counts-3"):
        NGrams.open(grown)
    assert json.loads((grown.layout.ngrams.folder / "ngrams.json").read_text())["tokens"] == len(stream)


@pytest.mark.parametrize(("name", "value"), [("starts-1", 10**6), ("starts-2", -1), ("starts-3", 10**6)])
def test_tables_that_lead_outside_each_other_are_refused(tmp_path, name, value):
    store = skewed_store(tmp_path / "store")
    build_ngrams(store)
    place = store.layout.ngrams
    forge(place.description, place.folder / f"{name}.npy", put(2, value))
    with pytest.raises(StoreError, match=rf"{name}\.npy does not hold where n-grams begin"):
        NGrams.open(store)


def test_tables_of_lengths_that_do_not_fit_are_refused(tmp_path):
    store = skewed_store(tmp_path / "store")
    build_ngrams(store)
    place = store.layout.ngrams
    noted = files.read_stamped(place.description)
    noted["lengths"]["counts-1"] += 1
    files.write_stamped(place.description, noted)
    with pytest.raises(StoreError, match=r"ngrams\.json does not hold lengths that fit together"):
        NGrams.open(store)


class Listener(Reporter):
    """Waits to hear that somebody waits."""

    def __init__(self):
        super().__init__(quiet=False)
        self.heard = threading.Event()

    def say(self, line):
        if "waiting" in line:
            self.heard.set()


def test_who_needs_tables_that_are_being_made_waits_for_them(tmp_path, monkeypatch):
    store = fake_store(tmp_path, [[1, 2, 3, 1, 2], [2, 3, 1]])
    counted = []
    began = threading.Event()
    listener = Listener()
    run = ngrams._Counting.run

    def slowly(self):
        counted.append(self)
        began.set()
        assert listener.heard.wait(60)
        run(self)

    monkeypatch.setattr(ngrams._Counting, "run", slowly)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build_ngrams, store)
        assert began.wait(60)
        second = pool.submit(build_ngrams, store, listener)
        contexts = np.array([[-1, 1, 2, 3]], np.int32)
        found = [future.result(120).look_up(contexts).frequency.tolist() for future in (first, second)]
    assert found[0] == found[1] == [[2, 2, 1, 0]]
    assert len(counted) == 1


def test_tables_without_a_checksum_are_refused(tmp_path):
    store = skewed_store(tmp_path / "store")
    build_ngrams(store)
    place = store.layout.ngrams
    noted = files.read_stamped(place.description)
    del noted["files"]["starts-2.npy"]
    files.write_stamped(place.description, noted)
    for use in (NGrams.open, verify_ngrams):
        with pytest.raises(StoreError, match=r"ngrams\.json does not hold the checksums of all tables"):
            use(store)
