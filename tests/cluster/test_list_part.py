"""Parts of an index's lists."""

import numpy as np
import pytest

from nearlm import __version__
from nearlm.cluster.list_part import ListPart, PartScan, Place, cut_lists
from nearlm.cluster.session import ClusterError
from nearlm.search import open_index


def test_parts_hold_about_equally_many_records_in_whole_lists():
    offsets = np.array([0, 10, 20, 25, 60, 61, 90, 100])
    assert cut_lists(offsets, 2).tolist() == [0, 4, 7]
    assert cut_lists(offsets, 1).tolist() == [0, 7]
    bounds = cut_lists(offsets, 4)
    assert bounds[0] == 0 and bounds[-1] == 7 and (np.diff(bounds) >= 0).all()


def test_a_part_answers_with_what_its_lists_hold_list_by_list(indexed):
    index, _ = open_index(indexed)
    lists = index.scan.lists
    part = PartScan(index.faiss, lists, 4, 9)
    query = np.zeros((1, 16), np.float32)
    answer = part.answer(query, np.array([[3, -1, 0]]), 10_000)
    expected = [lists.ids[lists.offsets[n] : lists.offsets[n + 1]] for n in (7, 4)]
    assert answer.counts.tolist() == [[len(expected[0]), 0, len(expected[1])]]
    assert answer.ids.tolist() == np.concatenate(expected).tolist()
    nearest = part.answer(query, np.array([[3, -1, 0]]), 5)
    assert sorted(nearest.distances) == pytest.approx(np.sort(answer.distances)[:5])


def place(store, /, **change):
    _, info = open_index(store)
    known = {"store": str(store.path), "index": "default", "manifest": info.manifest, "first": 0, "stop": 3}
    return Place(**{**known, "threads": 1, "version": __version__, **change})


def test_an_actor_reads_its_files_when_it_is_asked(indexed):
    index, _ = open_index(indexed)
    assert ListPart(place(indexed)).load() == index.scan.lists.offsets[3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"store": "/nosuch/store"}, "is not there; a store must be at the same path on every machine"),
        ({"version": "0.0"}, "where it was started"),
        ({"manifest": "other"}, "has changed since"),
    ],
)
def test_what_is_missing_is_said_with_the_machine(indexed, change, said):
    with pytest.raises(ClusterError, match=rf"{said}.* \(worker on "):
        ListPart(place(indexed, **change)).load()
