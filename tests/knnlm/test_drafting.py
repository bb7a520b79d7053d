"""Drafts come from the right places: neighbours, merged records, the longest suffix, the text so far."""

import numpy as np
import pytest

from calls import build, build_index, load_knnlm, prune_store
from nearlm.knnlm.draft_votes import BACK, windows_of
from nearlm.knnlm.drafting import Drafter, RecordPlaces
from nearlm.mixing.infinigram_building import build_infinigram
from nearlm.search import Neighbors
from tiny import make_text


def neighbors(store, records, distances=None):
    """A row of neighbours, and before it one of others."""
    ids = np.array([np.zeros(len(records)), records], np.int64)
    far = np.zeros(ids.shape, np.float32)
    far[1] = distances if distances is not None else np.arange(len(records))
    return Neighbors(far, store.values.take(ids), None, ids)


@pytest.fixture(scope="module")
def pruned(knnlm, tmp_path_factory):
    return prune_store(knnlm.store, "merge", tmp_path_factory.mktemp("pruned") / "store", neighbors=8, quiet=True)


def test_the_places_of_merged_records_are_all_that_they_stand_for(pruned, knnlm):
    records = np.arange(len(pruned))
    every = RecordPlaces(pruned).of(records, most=10_000)
    assert every.tolist() == [place for record in records for place in pruned.positions_of(record)]
    assert (pruned.weights[:] > 4).any()
    some = RecordPlaces(pruned).of(records[::-1], most=3)
    expected = [pruned.positions_of(record) for record in records[::-1]]
    assert len(some) == sum(min(len(places), 3) for places in expected)
    assert set(some) <= set(every) and len(set(some)) == len(some)
    assert RecordPlaces(knnlm.store).of(np.array([5, 2])).tolist() == knnlm.store.origin.take([5, 2]).tolist()


def test_a_chain_follows_the_neighbours_that_hold_the_chosen_token(knnlm):
    store = knnlm.store
    drafter = Drafter(store, None)
    record = 40
    place = int(store.origin[record])
    token = int(store.values[record])
    other = int(np.flatnonzero(store.values[:] != token)[0])
    read = np.array([299, 298, token], np.int32)  # nothing of it is read twice
    chain = drafter.chain(read, neighbors(store, [other, record, other]), 1)
    assert chain.tokens.tolist() == store.tokens[place + 1 : place + 17].tolist()
    assert set(chain.shares) == {1.0} and chain.alike.tolist() == list(range(1, 17))
    assert not len(drafter.chain(read, None, 0)) and not len(drafter.chain(read, neighbors(store, [other]), 1))


def test_of_many_neighbours_the_nearest_count(knnlm, monkeypatch):
    store = knnlm.store
    monkeypatch.setattr("nearlm.knnlm.drafting._NEAREST", 1)
    values = store.values[:]
    token = int(np.bincount(values).argmax())
    first, second = np.flatnonzero(values == token)[:2]
    read = np.array([299, token], np.int32)
    for near in (first, second):
        distances = [1.0 if record == near else 9.0 for record in (first, second)]
        chain = Drafter(store, None).chain(read, neighbors(store, [first, second], distances), 1)
        place = int(store.origin[near])
        assert chain.tokens.tolist() == store.tokens[place + 1 : place + 1 + len(chain)].tolist()


def test_a_chain_follows_the_longest_suffix_in_the_stores_text(bare):
    drafter = bare.drafter
    text = bare.store.tokens[:]
    for place in (30, 77, 200):
        read = np.concatenate([[299], text[place - 12 : place]]).astype(np.int32)
        chain = drafter.chain(read, None, 0)
        occurrences = [at for at in range(12, len(text)) if (text[at - 12 : at] == text[place - 12 : place]).all()]
        assert any((text[at : at + 8] == chain.tokens[:8]).all() for at in occurrences)
        assert chain.alike[0] >= 12


def test_the_text_so_far_is_enough_for_a_draft(knnlm):
    drafter = Drafter(knnlm.store, None)
    chain = drafter.chain(np.array([9, 5, 6, 7, 8, 5, 6], np.int32), None, 0)
    assert chain.tokens[:6].tolist() == [7, 8, 5, 6, 7, 8]


def test_a_text_of_several_segments_gives_the_same_windows_with_and_without_suffix_array(tmp_path, double_lm):
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text(make_text(60, seed=number))
        store = build(
            double_lm, str(tmp_path / f"{number}.txt"), tmp_path / "s", append=number > 0, window=48, quiet=True
        )
    apart = Drafter.of(store, None)
    assert apart.infinigram is None and len(store.tokens.shards) == 2
    places = np.arange(0, len(store.tokens) - 1, 7)
    expected = windows_of(store.tokens[:], store.document_bounds, places)
    np.testing.assert_array_equal(apart._windows(places), expected)
    build_infinigram(store)
    whole = Drafter.of(store, None)
    assert whole.infinigram is not None
    np.testing.assert_array_equal(whole._windows(places), expected)
    assert (expected[:, BACK - 1] == store.tokens.take(places)).all()


def test_a_memory_lends_its_suffix_array(bare):
    assert bare.drafter.infinigram is bare.memory.mixture.infinigram


def test_a_merged_store_drafts(pruned, knnlm):
    build_index(pruned, "flat", quiet=True)
    merged = load_knnlm(pruned, knnlm.lm, lam=0.5, knn_temperature=3.0, k=8)
    options = {"max_new_tokens": 12, "do_sample": False}
    assert merged.generate("the licence", **options) == merged.generate("the licence", draft=False, **options)
