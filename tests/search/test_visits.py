"""Visits of lists against loops in plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nearlm.search.packing import pack
from nearlm.search.scan import Lists
from nearlm.search.visits import Coding, Kept, Visits, visit, weigh

SIZES = st.lists(st.integers(0, 80), min_size=1, max_size=6)  # of lists
DIMS = st.integers(1, 300) | st.sampled_from([63, 64, 128, 192, 256])  # rows that need padding, and rows that do not


def some_lists(rng, dim, sizes, bits=8, widest=1):
    top = 1 << (bits - 1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    codes = rng.integers(-top, top, (offsets[-1], dim)).astype(np.int8)
    scale = rng.uniform(1, 10, dim).astype(np.float32) / top
    scale[0] *= widest
    bias = np.square(codes * scale).sum(1, dtype=np.float32)
    return Lists(offsets, np.arange(offsets[-1]), pack(codes, bits), bias), codes, scale


@given(SIZES, DIMS, st.integers(1, 12), st.sampled_from([(8, 1), (4, 1), (4, 30)]), st.integers(0, 99))
def test_every_record_within_its_limit_is_kept_in_order(sizes, dim, queries, kind, seed):
    """Also of 4-bit codes, once weights are rounded as they say."""
    bits, widest = kind
    rng = np.random.default_rng(seed)
    lists, codes, scale = some_lists(rng, dim, sizes, bits, widest)
    coding = Coding.of(scale, packed=bits == 4)
    centroids = rng.normal(size=(len(sizes), dim)).astype(np.float32)
    centre = rng.normal(size=dim).astype(np.float32)
    x = rng.normal(size=(queries, dim)).astype(np.float32) * 3
    nprobe = rng.integers(1, len(sizes) + 1)
    probed = np.stack([rng.permutation(len(sizes))[:nprobe] for _ in range(queries)])
    probed[rng.random(probed.shape) < 0.1] = -1
    limits = rng.uniform(0, 30 * dim, queries).astype(np.float32)
    every = int(rng.integers(1, 4))
    visits = Visits.plan(probed, lists.offsets).sample(lists.offsets, every)
    room = Kept(
        *(np.empty(visits.candidates, kind) for kind in (np.float32, np.int32)), np.zeros(probed.size, np.int32)
    )
    weights = weigh(x, centroids, scale, centre, visits, coding)
    kept = visit(weights, limits, lists, visits, room)
    for i in range(queries):
        for probe, number in enumerate(probed[i]):
            count = kept.counts[i * nprobe + probe]
            if number < 0:
                assert count == 0
                continue
            some = codes[lists.offsets[number] : lists.offsets[number + 1] : every] * scale.astype(np.float64)
            rest = (x[i] - centroids[number] - centre).astype(np.float64)
            unit = np.abs(rest * scale).max() / coding.most
            true = (rest**2).sum() + (some**2).sum(1) - 2 * (some / scale) @ np.rint(rest * scale / unit) * unit
            begin = visits.begins[i, probe]
            rows = kept.rows[begin : begin + count]
            slack = 1e-4 * ((rest**2).sum() + (some**2).sum(1).max(initial=0)) + 2 * coding.offset * unit
            assert (np.diff(rows) > 0).all()
            np.testing.assert_allclose(kept.distances[begin : begin + count], true[rows], atol=slack)
            assert set(np.flatnonzero(true < limits[i] - slack)) <= set(rows)
            assert (true[rows] <= limits[i] + slack).all()


def test_weights_are_finer_where_an_axis_is_much_wider_than_the_others():
    alike, unlike = np.ones(192, np.float32), np.ones(192, np.float32)
    unlike[7] = 4
    assert [Coding.of(scale, packed=True).parts for scale in (alike, unlike)] == [1, 2]
    assert Coding.of(unlike, packed=False).parts == 1
    for dim in (1, 192, 4096, 100_000):
        for scale in (np.ones(dim), np.eye(1, dim)[0]):
            for packed in (True, False):
                coding = Coding.of(scale, packed=packed)
                assert 0 < coding.most * (15 if packed else 128) * coding.width < 2**31


def test_pairs_are_grouped_by_list():
    probed = np.array([[2, 0], [0, -1], [2, 1]])
    visits = Visits.plan(probed, np.array([0, 5, 5, 7]))
    groups = [visits.pairs[a:b].tolist() for a, b in zip(visits.groups[:-1], visits.groups[1:], strict=True)]
    assert groups == [[1, 2], [5], [0, 4]]
    assert visits.begins.tolist() == [[0, 2, 7], [7, 12, 12], [12, 14, 14]]
    assert visits.sample(np.array([0, 5, 5, 7]), 2).begins.tolist() == [[0, 1, 4], [4, 7, 7], [7, 8, 8]]


def test_queries_that_are_no_numbers_are_far_from_everything():
    rng = np.random.default_rng(0)
    lists, _, scale = some_lists(rng, 8, [20])
    x = np.full((3, 8), [[np.nan], [np.inf], [1.0]], np.float32)
    visits = Visits.plan(np.zeros((3, 1), np.int64), lists.offsets)
    room = Kept(np.empty(60, np.float32), np.empty(60, np.int32), np.zeros(3, np.int32))
    coding = Coding.of(scale, packed=False)
    weights = weigh(x, np.zeros((1, 8), np.float32), scale, np.zeros(8, np.float32), visits, coding)
    kept = visit(weights, np.full(3, 1e6, np.float32), lists, visits, room)
    assert kept.counts.tolist() == [0, 0, 20]
