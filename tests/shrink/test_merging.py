"""Greedy merging against Algorithm 1 in plain Python, on stores with ties, duplicates and missing neighbours."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import build_index, prune_store
from nearlm.base import jobs
from nearlm.base.errors import OptionError, StoreError
from nearlm.base.progress import Reporter
from nearlm.shrink import neighbors as self_search
from nearlm.shrink.merging import merge
from nearlm.shrink.neighbors import verify_neighbors
from synthetic import make_store


def algorithm_1(neighbors, values, order, least=0):
    """The paper's loop, with the skip: return the survivors and their weights, and who absorbed whom."""
    s, absorbed_by = [1] * len(values), {}
    left = len(values)
    for i in order:
        if s[i] == 0:
            continue
        for t in neighbors[i]:
            if t != -1 and s[t] == 1 and values[i] == values[t] and t != i and left > least:
                s[i] += 1
                s[t] -= 1
                absorbed_by[t] = i
                left -= 1
    return {i: s[i] for i in range(len(values)) if s[i] > 0}, absorbed_by


def weighed(absorbers):
    ids, counts = np.unique(absorbers, return_counts=True)
    return dict(zip(ids.tolist(), counts.tolist(), strict=True))


def random_case(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 40)), int(rng.integers(2, 12))
    values = rng.integers(0, rng.integers(1, 6), n).astype(np.int32)
    if seed % 3:
        points = rng.integers(0, 4, (n, 2))  # few places: many ties and duplicates
        distances = ((points[:, None] - points) ** 2).sum(-1)
        ids = np.argsort(distances + rng.random((n, n)) * 1e-9, axis=1)[:, :k].astype(np.int32)
    else:
        ids = rng.integers(-1, n, (n, k)).astype(np.int32)  # what no index gives: repeated ids, no self
    ids = np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)
    ids[rng.random(ids.shape) < 0.1] = -1
    return ids, values, rng.permutation(n).astype(np.int32)


@pytest.mark.parametrize("stopping", [False, True])
def test_merging_is_algorithm_1_with_the_skip(stopping):
    merged = 0
    for seed in range(400):
        ids, values, order = random_case(seed)
        k = 1 + seed % ids.shape[1]
        least = 1 + seed % len(values) if stopping else 1
        expected, absorbed_by = algorithm_1(ids[:, :k].tolist(), values.tolist(), order.tolist(), least)
        absorbers, left = merge(ids, k, values, order, least)
        assert weighed(absorbers) == expected and left == len(expected)
        assert {t: int(i) for t, i in enumerate(absorbers) if t != i} == absorbed_by
        merged += len(absorbed_by)
    assert merged > 400


@pytest.fixture
def places(tmp_path):
    """A store of few places and few tokens: much to merge."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 3, (300, 3)) + rng.normal(0, 0.05, (300, 3))
    return make_store(tmp_path / "places", keys.astype(np.float16), rng.integers(0, 5, 300), shard=120)


def per_token(store):
    return np.bincount(store.values[:], store.weights[:], minlength=10).tolist()


def oracle_of(store, k, seed, least=0):
    """Algorithm 1 over the true neighbours, in the seeded order."""
    keys = store.keys[:].astype(np.float64)
    ids = np.argsort(((keys[:, None] - keys) ** 2).sum(-1), axis=1, kind="stable")[:, :k]
    order = np.random.default_rng(seed).permutation(len(store)).tolist()
    return algorithm_1(ids.tolist(), store.values[:].tolist(), order, least)


@pytest.mark.parametrize("k", [2, 7, 30])
def test_a_merged_store_holds_the_survivors_with_their_weights(places, tmp_path, k):
    made = prune_store(places, "merge", tmp_path / "made", neighbors=k, seed=3, quiet=True)
    survivors, absorbed_by = oracle_of(places, k, seed=3)
    kept = sorted(survivors)
    assert made.weights[:].tolist() == [survivors[i] for i in kept]
    for name in ("keys", "values", "origin"):
        np.testing.assert_array_equal(getattr(made, name)[:], getattr(places, name).take(kept))
    stands = [kept.index(absorbed_by.get(i, i)) for i in range(len(places))]
    assert made.assign.tolist() == [-1, *stands]
    for record in range(len(made)):
        positions = made.positions_of(record)
        assert len(positions) == made.weights[record] and made.origin[record] in positions
        assert set(made.tokens.take(positions).tolist()) == {made.values[record]}
        assert made.next_record(record) == ([*stands, -1][kept[record] + 1])
    assert per_token(made) == per_token(places)
    made.verify()


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(2, 8), st.floats(0.5, 1.0))
def test_weights_per_token_stay_the_same_over_any_chain(tmp_path_factory, seed, records, k, keep):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("chain")
    keys = rng.normal(0, 1, (records, 4)).astype(np.float16)
    store = make_store(folder / "0", keys, rng.integers(0, 4, records), shard=17)
    first = prune_store(store, "merge", folder / "1", neighbors=k, seed=seed, quiet=True)
    second = prune_store(first, "kmeans", folder / "2", keep=1.0, ratio=None, quiet=True)
    third = prune_store(second, "kmeans", folder / "3", ratio=1 / keep + 0.5, seed=seed, quiet=True)
    fourth = prune_store(third, "merge", folder / "4", neighbors=k, seed=seed, quiet=True)
    for made in (first, second, third, fourth):
        assert per_token(made) == per_token(store)
        assert (np.diff(made.origin[:]) > 0).all()
        counts = np.bincount(made.assign[1:], minlength=len(made))
        np.testing.assert_array_equal(counts, made.weights[:])
        np.testing.assert_array_equal(made.values.take(made.assign[1:]), store.values[:])
    assert len(second) == len(first) and len(fourth) <= len(third) <= len(second)


def test_a_second_pass_adds_weights_and_starts_afresh(places, tmp_path):
    first = prune_store(places, "merge", tmp_path / "1", neighbors=3, quiet=True)
    second = prune_store(first, "merge", tmp_path / "2", neighbors=3, quiet=True)
    survivors, absorbed_by = oracle_of(first, 3, seed=0)
    weights = first.weights[:].tolist()
    expected = {i: weights[i] for i in survivors}
    for t, i in absorbed_by.items():
        expected[i] += weights[t]
    assert second.weights[:].tolist() == [expected[i] for i in sorted(expected)]
    heavy = [i for i in range(len(first)) if weights[i] > 1]
    assert set(heavy) & set(absorbed_by), "a record that weighs more than 1 can be absorbed in a second pass"
    assert [step.options["method"] for step in second.manifest.transforms] == ["merge", "merge"]


def test_keep_takes_the_smallest_k_and_stops_at_the_target(places, tmp_path):
    for keep in (0.9, 0.5, 1.0):
        made = prune_store(places, "merge", tmp_path / f"made{keep}", keep=keep, quiet=True)
        least = round(keep * len(places))
        k = made.manifest.transforms[-1].result["neighbors"]
        assert len(made) == least
        if keep < 1:
            smallest = next(k for k in range(2, 102) if len(oracle_of(places, k, 0)[0]) <= least)
            assert k == smallest
        survivors, _ = oracle_of(places, k, 0, least)
        assert made.weights[:].tolist() == [survivors[i] for i in sorted(survivors)]


def test_a_share_out_of_reach_names_the_least_there_is_and_leaves_nothing(places, tmp_path):
    out = tmp_path / "made"
    with pytest.raises(OptionError, match="least that can be reached is --keep") as refused:
        prune_store(places, "merge", out, keep=0.01, quiet=True)
    least = min(len(oracle_of(places, k, 0)[0]) for k in range(2, 102))
    assert f"leaves {least:,} of 300" in str(refused.value)
    assert [path.name for path in out.iterdir()] == [".lock"]
    reachable = float(str(refused.value).split("--keep ")[-1].split()[0])
    assert len(prune_store(places, "merge", out, keep=reachable, quiet=True)) == least


def test_neighbours_are_searched_once_for_every_smaller_k(places, tmp_path, monkeypatch):
    searched = []
    real = self_search.SelfSearch.block
    monkeypatch.setattr(self_search, "SEARCH_BLOCK", 100)
    monkeypatch.setattr(self_search.SelfSearch, "block", lambda *a: (searched.append(a[1]), real(*a))[1])
    prune_store(places, "merge", tmp_path / "9", neighbors=9, quiet=True)
    assert searched == [0, 100, 200]
    prune_store(places, "merge", tmp_path / "4", neighbors=4, quiet=True)
    assert len(searched) == 3
    prune_store(places, "merge", tmp_path / "12", neighbors=12, quiet=True)
    assert len(searched) == 6
    folder = places.path / "index" / "default"
    about = json.loads((folder / "neighbors.json").read_text())
    assert about["k"] == 12 and np.load(folder / "neighbors.npy").shape == (300, 12)
    build_index(places, "IVF4,Flat", quiet=True)
    prune_store(places, "merge", tmp_path / "other", neighbors=4, quiet=True)
    assert len(searched) == 9, "of another index"
    verify_neighbors(places, "default")
    data = bytearray((folder / "neighbors.npy").read_bytes())
    data[-1] ^= 1
    (folder / "neighbors.npy").write_bytes(data)
    with pytest.raises(StoreError, match=r"neighbors\.npy"):
        verify_neighbors(places, "default")


def test_who_reads_neighbours_keeps_them_while_more_are_searched(places):
    quiet = Reporter(quiet=True)
    build_index(places, quiet=True)
    few = self_search.saved_neighbors(places, "default", 4, quiet)
    before = np.array(few)
    self_search.saved_neighbors(places, "default", 12, quiet)
    np.testing.assert_array_equal(few, before)


def test_the_search_goes_on_after_a_kill(places, tmp_path, monkeypatch):
    whole = shutil.copytree(places.path, tmp_path / "copy")
    expected = prune_store(whole, "merge", tmp_path / "expected", neighbors=9, quiet=True)
    monkeypatch.setattr(self_search, "SEARCH_BLOCK", 50)
    monkeypatch.setattr("nearlm.base.jobs.CHECKPOINT_SECONDS", 0)
    searched, real = [], self_search.SelfSearch.block

    def killed(search, start, k):
        searched.append(start)
        if len(searched) == 4:
            raise KeyboardInterrupt
        return real(search, start, k)

    monkeypatch.setattr(self_search.SelfSearch, "block", killed)
    with pytest.raises(KeyboardInterrupt):
        prune_store(places, "merge", tmp_path / "made", neighbors=9, quiet=True)
    made = prune_store(places, "merge", tmp_path / "made", neighbors=9, quiet=True)
    assert searched == [0, 50, 100, 150, 150, 200, 250]
    for name in ("keys", "weights", "origin"):
        np.testing.assert_array_equal(getattr(made, name)[:], getattr(expected, name)[:])
    assert not jobs.Job(places.path / "index" / "default", "neighbors").started


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of the two"),
        ({"neighbors": 5, "keep": 0.5}, "one of the two"),
        ({"neighbors": 1}, "2 to 101"),
        ({"neighbors": 102}, "2 to 101"),
        ({"keep": 0.0}, "more than 0"),
        ({"keep": float("nan")}, "more than 0"),
        ({"keep": 0.5, "ratio": 3.0}, "--ratio means nothing to --method merge"),
        ({"keep": 0.5, "index": "../x"}, "plain name"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(places, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        prune_store(places, "merge", tmp_path / "made", quiet=True, **options)
    assert not (tmp_path / "made" / "manifest.json").exists()
