"""Greedy merging against Algorithm 1 in plain Python, on stores with ties, duplicates and missing neighbours."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls import prune_store
from nearlm.base.errors import OptionError
from nearlm.shrink.merging import merge
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
    with pytest.raises(OptionError, match="least that can be reached is `keep=") as refused:
        prune_store(places, "merge", out, keep=0.01, quiet=True)
    least = min(len(oracle_of(places, k, 0)[0]) for k in range(2, 102))
    assert f"leaves {least:,} of 300" in str(refused.value)
    assert [path.name for path in out.iterdir()] == [".lock"]
    reachable = float(str(refused.value).split("`keep=")[-1].split("`")[0])
    assert len(prune_store(places, "merge", out, keep=reachable, quiet=True)) == least


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of the two"),
        ({"neighbors": 5, "keep": 0.5}, "one of the two"),
        ({"neighbors": 1}, "2 to 101"),
        ({"neighbors": 102}, "2 to 101"),
        ({"keep": 0.0}, "more than 0"),
        ({"keep": float("nan")}, "more than 0"),
        ({"keep": 0.5, "ratio": 3.0}, "`ratio` has no effect with `method='merge'`"),
        ({"keep": 0.5, "index": "../x"}, "plain name"),
    ],
)
def test_nonsense_is_refused_before_anything_is_written(places, tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        prune_store(places, "merge", tmp_path / "made", quiet=True, **options)
    assert not (tmp_path / "made" / "manifest.json").exists()
