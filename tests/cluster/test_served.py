"""Searches in parts find what one search of the whole index finds, in the same order."""

import numpy as np
import pytest

from nearlm.base import NearLMWarning, Reporter
from nearlm.cluster import SearchOn
from nearlm.cluster.list_part import PartScan, cut_lists
from nearlm.cluster.served import ServedScan, open_served, searching_on
from nearlm.cluster.serving import serve_index, stop_index
from nearlm.cluster.session import NAMESPACE, ClusterError, ServeOptions
from nearlm.search import Retriever, SearchIndex, open_index


class Here:
    """A part in this process, which can be gone."""

    def __init__(self, index, first, stop):
        self.part = PartScan(index.faiss, index.scan.lists, first, stop)
        self.gone = False

    def ask(self, question, k):
        return None

    def get(self, question, k, asked, *, wait):
        assert not (self.gone and wait)
        return None if self.gone else self.part.answer(*map(travelled, question[2:]), k)


def travelled(array):
    """Return an array as Ray gives it to an actor: nobody may write to it."""
    array = array.copy()
    array.flags.writeable = False
    return array


def in_parts(index, parts, **options):
    bounds = cut_lists(index.scan.lists.offsets, parts)
    there = [Here(index, *bounds[part : part + 2]) for part in range(parts)]
    scan = ServedScan(index, there, **options)
    return SearchIndex(index.spec, index.transform, index.faiss, scan), there


@pytest.mark.parametrize("name", ["default", "graph", "grouped"])
@pytest.mark.parametrize("parts", [1, 3, 7])
@pytest.mark.parametrize("ordered", [True, False])
def test_neighbours_are_those_of_the_whole_index(indexed, queries, name, parts, ordered):
    index, _ = open_index(indexed, name)
    served, _ = in_parts(index, parts)
    for some in (queries[:0], queries[5:6], queries[:20], queries):
        for k in (1, 7, 300, 6000):
            distances, ids = index.search(some, k, ordered=ordered)
            near, found = served.search(some, k, ordered=ordered)
            assert np.array_equal(ids, found)
            assert np.array_equal(distances, near)


def test_without_a_part_it_is_said_which_share_was_searched(indexed, queries):
    index, _ = open_index(indexed)
    served, parts = in_parts(index, 3, allow_partial=True)
    served.search(queries, 5)
    assert served.scan.searched == 1
    parts[1].gone = True
    share = 1 - served.scan.records[1] / 6000
    with pytest.warns(NearLMWarning, match=rf"part 2 of 3 does not answer: {share:.1%} of the records are searched"):
        _, ids = served.search(queries, 6000)
    there = np.isin(ids, parts[1].part.ids)
    assert not there.any()
    assert served.scan.searched == pytest.approx((1 + share) / 2)
    parts[1].gone = False
    with pytest.warns(NearLMWarning, match="all parts answer again"):
        served.search(queries, 5)


def check_same(expected, found):
    for ours, theirs in zip(expected, found, strict=True):
        assert np.array_equal(ours, theirs) or ours is None


def test_a_served_index_gives_the_same_and_survives_its_node(indexed, queries, ray_here, address, lose_a_node):
    expected = Retriever(indexed).search(queries, 50)
    one = [each if each is None else each[7:8] for each in expected]
    serve_index(ray_here, indexed, ServeOptions(shards=2, replicas=2, cpus=0.1))
    with searching_on(SearchOn(address), Reporter(quiet=True), indexed):
        retriever = Retriever(indexed)
        assert isinstance(retriever.index.scan, ServedScan)
        for _ in range(2):  # every replica
            check_same(expected, retriever.search(queries, 50))
            check_same(one, retriever.search(queries[7:8], 50))
        lose_a_node()
        for _ in range(6):
            check_same(expected, retriever.search(queries, 50))
        assert retriever.searched == 1
        assert retriever.describe() == Retriever(indexed).describe()
    assert not isinstance(Retriever(indexed).index.scan, ServedScan)
    assert stop_index(ray_here, indexed) == 4


def test_a_part_that_died_for_good(indexed, queries, ray_here, monkeypatch):
    monkeypatch.setattr("nearlm.cluster.served._GIVE_UP", 0.5)
    served = serve_index(ray_here, indexed, ServeOptions(shards=2, cpus=0.1))
    whole, _ = open_served(ray_here, indexed, "default")
    partial, _ = open_served(ray_here, indexed, "default", allow_partial=True)
    ray_here.kill(ray_here.get_actor(served.name_of(0, 0), namespace=NAMESPACE), no_restart=True)
    with (
        pytest.warns(NearLMWarning, match="part 1 does not answer; waiting for it"),
        pytest.raises(ClusterError, match=r"part 1 of the index did not answer for 0 s"),
    ):
        whole.search(queries, 5)
    with pytest.warns(NearLMWarning, match="part 1 of 2 does not answer"):
        partial.search(queries, 5)
    assert 0 < partial.scan.searched < 1
    stop_index(ray_here, indexed)


def test_an_index_that_nobody_serves(indexed, ray_here, address):
    with (
        pytest.raises(ClusterError, match=r"no index of .* is served on this Ray; start it with: nearlm serve-index"),
        searching_on(SearchOn(address), Reporter(quiet=True), indexed),
    ):
        pass
    assert open_served(ray_here, indexed, "default") is None
