"""The ∞-gram against looking for every suffix in every document."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scanning import DOCUMENTS, check, found, longest

from nearlm.base import files
from nearlm.base.errors import StoreError
from nearlm.mixing import infinigram
from nearlm.mixing.infinigram import MAX_LENGTH, InfiniGram, verify_infinigram
from nearlm.mixing.infinigram_building import build_infinigram
from synthetic import fake_store, forge, put, skewed_store


def arrays_of(store):
    """Return the folder that the arrays lie in."""
    return store.layout.suffixes.folder / files.read_json(store.layout.suffixes.description)["data"]


token = st.one_of(st.integers(0, 2), st.integers(0, 40), st.just(131_000))
unknown = st.one_of(token, st.integers(-3, 200_000))


@given(
    documents=st.lists(st.lists(token, max_size=30), min_size=1, max_size=6),
    text=st.lists(unknown, max_size=20),
    segments=st.integers(1, 3),
)
def test_matches_equal_a_scan(tmp_path_factory, documents, text, segments):
    if not any(documents):
        return
    grams = build_infinigram(fake_store(tmp_path_factory.mktemp("suffixes"), documents, segments))
    check(grams, documents, [*text, *itertools.chain(*documents[:2])])


@given(st.lists(st.lists(st.integers(0, 1), max_size=60), min_size=1, max_size=4), st.integers(0, 9))
def test_matches_of_two_tokens_equal_a_scan(tmp_path_factory, documents, seed):
    if not any(documents):
        return
    grams = build_infinigram(fake_store(tmp_path_factory.mktemp("suffixes"), documents))
    check(grams, documents, np.random.default_rng(seed).integers(0, 2, 60).tolist())


def test_matches_end_where_documents_do(tmp_path):
    grams = build_infinigram(fake_store(tmp_path, DOCUMENTS))
    assert found(grams, [4, 2, 4], [0], [3]) == [(2, Counter([5]))]  # not 4 | 2 4, of two documents
    assert found(grams, [5], [0], [1]) == [(0, Counter())]  # it ends its document
    assert found(grams, [7], [0], [1]) == [(0, Counter())]
    assert found(grams, [3, 1, 2], [0], [3]) == [(3, Counter([4]))]
    assert found(grams, [9, 1, 2], [0], [3]) == [(2, Counter([3, 4]))]
    assert found(grams, [], [0], [0]) == [(0, Counter())]
    assert found(grams, [1], [], []) == []


@pytest.mark.parametrize("contexts", [1, infinigram._FEW, infinigram._FEW + 1, 1000])
def test_few_contexts_and_many_are_looked_up_alike(tmp_path, contexts):
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 5, 200).tolist() for _ in range(3)]
    grams = build_infinigram(fake_store(tmp_path, documents))
    text = rng.integers(0, 6, 30).tolist()
    ends = rng.integers(0, 31, contexts).tolist()
    expected = {end: longest(documents, text[:end]) for end in set(ends)}
    assert found(grams, text, [0] * contexts, ends) == [expected[end] for end in ends]


@pytest.mark.parametrize("length", [MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, 2 * MAX_LENGTH])
def test_longer_matches_count_as_the_longest_that_are_compared(tmp_path, length):
    passage = np.random.default_rng(length).integers(0, 3, length).tolist()
    documents = [[5, *passage, 1], [6, *passage, 2], [*passage[1:], 3]]
    grams = build_infinigram(fake_store(tmp_path, documents))
    text = [5, *passage]
    assert found(grams, text, [0], [len(text)]) == [longest(documents, text)]
    assert found(grams, text, [1], [len(text)]) == [longest(documents, passage)]
    assert found(grams, [0] * 900, [0], [900]) == [longest(documents, [0] * 900)]


def test_contexts_outside_of_their_text_are_refused(tmp_path):
    grams = build_infinigram(fake_store(tmp_path, DOCUMENTS))
    for begins, ends in (([-1], [1]), ([0], [4]), ([2], [1]), ([0, 1], [1]), ([[0]], [[1]])):
        with pytest.raises(ValueError, match="contexts"):
            grams.look_up(np.array([1, 2, 3], np.int32), np.array(begins), np.array(ends))


def test_positions_lead_to_the_text(tmp_path):
    store = fake_store(tmp_path, DOCUMENTS)
    grams = build_infinigram(store)
    (length,), (begin,), (end,) = grams.look_up(np.array([1, 2], np.int32), np.array([0]), np.array([2]))
    assert length == 2
    assert sorted(grams.order[begin:end].tolist()) == [1, 4]  # where both occurrences end
    assert grams.bytes == len(grams.order) * (4 + 4 + 1) + len(grams.starts) * 8


@pytest.mark.parametrize("name", ["order", "following", "starts", "depths", "tokens", "suffixes"])
def test_damage_is_refused_and_built_over(tmp_path, name):
    store = fake_store(tmp_path, DOCUMENTS, 2)
    build_infinigram(store)
    path = arrays_of(store) / f"{name}.npy" if name != "suffixes" else store.layout.suffixes.description
    sound = path.read_bytes()
    flipped = sound[:-3] + bytes([sound[-3] ^ 1]) + sound[-2:]
    for damaged in (flipped, sound[:-1], sound + b"\0", b""):
        path.write_bytes(damaged)
        for refuses in (InfiniGram.open, verify_infinigram):
            with pytest.raises(StoreError, match=path.name):
                refuses(store)
    path.unlink()
    with pytest.raises(StoreError):
        InfiniGram.open(store)
    check(build_infinigram(store), DOCUMENTS, [1, 2, 3, 1, 2])
    assert path.read_bytes() == sound


@pytest.mark.parametrize(
    ("name", "row", "value", "expected"),
    [
        ("order", 2, 500, "positions that a token follows"),
        ("order", 2, -1, "positions that a token follows"),
        ("starts", 2, 10**6, "where the rows of tokens begin"),
        ("starts", 2, -1, "where the rows of tokens begin"),
        ("following", 3, 8888, "the tokens that follow"),
        ("depths", slice(None), 255, "how many tokens come before each"),
    ],
)
def test_arrays_that_lead_outside_each_other_are_refused(tmp_path, name, row, value, expected):
    store = skewed_store(tmp_path / "store")
    build_infinigram(store)
    place = store.layout.suffixes
    forge(place.description, arrays_of(store) / f"{name}.npy", put(row, value))
    with pytest.raises(StoreError, match=rf"{name}\.npy does not hold {expected}"):
        InfiniGram.open(store)


def test_a_copy_of_another_text_is_refused(tmp_path):
    store = fake_store(tmp_path, DOCUMENTS, 2)
    build_infinigram(store)
    place = store.layout.suffixes
    forge(place.description, arrays_of(store) / "tokens.npy", put(0, 3))
    with pytest.raises(StoreError, match=r"tokens\.npy does not hold the store's tokens"):
        InfiniGram.open(store)


@pytest.mark.parametrize("seed", range(3))
def test_a_forged_order_gives_wrong_answers_but_no_crash(tmp_path, seed):
    store = skewed_store(tmp_path / "store")
    grams = build_infinigram(store)
    place = store.layout.suffixes
    rng = np.random.default_rng(seed)
    positions = rng.integers(0, len(grams.tokens) - 1, len(grams.order))
    depths = np.minimum(rng.integers(0, MAX_LENGTH, len(positions)), positions)
    forge(place.description, arrays_of(store) / "order.npy", put(slice(None), positions))
    forge(place.description, arrays_of(store) / "following.npy", put(slice(None), grams.tokens[positions + 1]))
    forge(place.description, arrays_of(store) / "depths.npy", put(slice(None), depths))
    text = store.tokens[:]
    matches = InfiniGram.open(store).look_up(text, np.zeros(len(text), int), np.arange(len(text)))
    assert (matches.begin >= 0).all() and (matches.end <= len(grams.order)).all()
    assert (matches.begin <= matches.end).all() and (matches.length <= MAX_LENGTH).all()


@pytest.mark.parametrize(
    "change",
    [
        {"rows": -1},
        {"rows": 10**6},
        {"tokens": 10},
        {"vocabulary": -1},
        {"vocabulary": 10**30},
        {"dtype": "object"},
        {"dtype": "int64"},
        {"files": {}},
        {"order": None, "rows": "many"},
    ],
)
def test_descriptions_that_cannot_be_are_refused(tmp_path, change):
    store = skewed_store(tmp_path / "store")
    build_infinigram(store)
    description = store.layout.suffixes.description
    files.write_stamped(description, {**files.read_stamped(description), **change})
    with pytest.raises(StoreError, match="suffixes"):
        InfiniGram.open(store)


def test_names_of_files_elsewhere_are_refused(tmp_path):
    store = skewed_store(tmp_path / "store")
    build_infinigram(store)
    description = store.layout.suffixes.description
    elsewhere = {"../manifest.json": {"bytes": 1, "sha256": ""}}
    files.write_stamped(description, {**files.read_stamped(description), "files": elsewhere})
    for refuses in (InfiniGram.open, verify_infinigram):
        with pytest.raises(StoreError, match=r"suffixes\.json names a file '../manifest\.json', which it cannot have"):
            refuses(store)
