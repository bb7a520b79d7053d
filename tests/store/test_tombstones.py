"""Which positions and records forgotten documents have."""

import numpy as np
import pytest

from nearlm.base import StoreError
from nearlm.store import Datastore
from nearlm.store.forgetting import Choice, write_tombstones
from nearlm.store.tombstones import count_before, forgotten_segments, mask_of, without
from synthetic import cut_documents, forge, make_store, put


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    made = make_store(tmp_path / "store", rng.normal(0, 1, (99, 4)), rng.integers(0, 9, 99), shard=30)
    return cut_documents(made, [20, 30, 10, 40])


def test_positions_and_records_are_those_between_the_bounds(store):
    for name in ("b", "d"):
        write_tombstones(store.path, Choice(document=name))
    gone = Datastore.open(store.path).forgotten
    positions = np.r_[20:50, 60:100]
    assert gone.documents.tolist() == [1, 3] and (1 in gone, 2 in gone) == (True, False)
    assert np.flatnonzero(gone.positions).tolist() == positions.tolist()
    assert np.flatnonzero(gone.record_mask).tolist() == (positions - 1).tolist()
    assert (gone.tokens, gone.records) == (70, 70)
    assert [gone.holds(at) for at in (19, 20, 49, 50, 60, 99)] == [False, True, True, False, True, True]


def test_neighbouring_documents_are_one_run(store):
    write_tombstones(store.path, Choice(source="[bc]"))
    gone = Datastore.open(store.path).forgotten
    assert gone.runs.tolist() == [[20, 60]] and gone.record_runs.tolist() == [[19, 59]]


def test_segments_of_which_nothing_remains(store):
    assert forgotten_segments(store) == set()
    write_tombstones(store.path, Choice(document="b"))
    assert forgotten_segments(Datastore.open(store.path)) == set()


@pytest.mark.parametrize("number", [-1, 4, 1 << 40])
def test_numbers_that_no_document_has_are_refused(store, number):
    write_tombstones(store.path, Choice(document="b"))
    name = Datastore.open(store.path).manifest.forgotten.file
    forge(store.layout.manifest, store.path / name, put(0, number))
    with pytest.raises(StoreError, match="ascending numbers of documents"):
        Datastore.open(store.path)


def test_runs_as_masks_gaps_and_counts():
    runs = np.array([[2, 4], [7, 8]])
    mask = mask_of(runs, 10)
    assert np.flatnonzero(mask).tolist() == [2, 3, 7]
    for begin, end in ((0, 10), (3, 8), (2, 4), (4, 7), (8, 10)):
        kept = np.concatenate([np.arange(begin, end)[part] for part in without(runs, begin, end)] or [np.empty(0, int)])
        assert kept.tolist() == [at for at in range(begin, end) if not mask[at]]
    assert count_before(runs, np.arange(10)).tolist() == [int(mask[:at].sum()) for at in range(10)]
